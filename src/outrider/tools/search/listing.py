"""The files below a folder, by ripgrep or by walking."""

import os
from contextlib import aclosing
from itertools import islice

from outrider.tools.search.ripgrep import find_ripgrep, records, ripgrep
from outrider.tools.search.walk import walk
from outrider.tools.threads import Threads

MOST_FILES = 500_000
_threads = Threads(4)


async def list_files(folder: int, path: str) -> list[str]:
    """Relative paths, at most MOST_FILES of them, in no order."""
    program = find_ripgrep()
    if program is None:
        return await _threads.run(lambda: list(islice(walk(folder), MOST_FILES)))
    found: list[str] = []
    lists = records(ripgrep(program, ["--files", "--null"], folder, path), b"\0")
    async with aclosing(lists):
        async for names in lists:
            found += [os.fsdecode(name).removeprefix("./") for name in names]
            if len(found) >= MOST_FILES:
                break
    return found
