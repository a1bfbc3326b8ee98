"""A long session, opened and gone on with in a process that tells what it took: `long_session.py STORE`."""

import asyncio
import resource
import sys
from pathlib import Path
from time import perf_counter

from outrider import Engine
from outrider.sessions.sqlite_store import SqliteStore
from tests.faults.worker import say
from tests.turns.stories import agent, scripted


async def main(path: str) -> None:
    async with SqliteStore(Path(path)) as store, Engine([agent()], [scripted(["one", "two"])], store=store) as held:
        took: dict[str, float] = {}
        start = perf_counter()

        def lap(name: str) -> None:
            nonlocal start
            took[name] = round((perf_counter() - start) * 1000, 1)
            start = perf_counter()

        session_id = (await store.list()).sessions[0].id
        lap("list")
        await store.load(session_id, limit=50)
        lap("page")
        await held.open(session_id)
        lap("open")
        await held.prompt(session_id, "go on")
        lap("first turn")
        await held.prompt(session_id, "and on")
        lap("second turn")
    say(**took, megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
