"""Runs ripgrep in a folder that is already open, and reads what it prints piece by piece."""

import asyncio
import os
import shutil
import sys
import sysconfig
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import cache
from pathlib import Path

from outrider.errors import ToolFailure

_BLOCK = 256 * 1024
_LONGEST_RECORD = 1024 * 1024
# The same files whatever the user's own settings say; hidden ones too, repositories' insides never.
ALWAYS = (
    "--no-config", "--no-messages", "--color=never", "--hidden", "--no-require-git", "--no-ignore-global",
    "--glob=!.git", "--glob=!.hg", "--glob=!.svn", "--glob=!.jj", "--glob=!.bzr",
)  # fmt: skip


@cache
def find_ripgrep() -> str | None:
    """Installed with the package, else on the search path; a relative place there is not trusted."""
    beside = Path(sysconfig.get_path("scripts")) / ("rg.exe" if os.name == "nt" else "rg")
    if beside.is_file():
        return str(beside)
    found = shutil.which("rg")
    return found if found and os.path.isabs(found) else None  # noqa: PTH117


async def ripgrep(program: str, arguments: Sequence[str], folder: int, path: str) -> AsyncGenerator[bytes]:
    """Blocks of output. The process is gone when the iteration ends, however it ends; refusals raise ToolFailure."""
    process = await asyncio.create_subprocess_exec(
        program,
        *ALWAYS,
        *arguments,
        cwd=f"/proc/self/fd/{folder}" if sys.platform == "linux" else path,
        env={"PATH": os.defpath},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_BLOCK,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        while block := await process.stdout.read(_BLOCK):
            yield block
        complaint = (await process.stderr.read()).decode("utf-8", "replace").strip()
        # 1 is "nothing found"; 2 with matches only says that some file could not be read.
        if await process.wait() not in {0, 1} and complaint:
            raise ToolFailure(complaint.removeprefix("rg: ")[:2_000])
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def records(blocks: AsyncGenerator[bytes], end: bytes) -> AsyncGenerator[list[bytes]]:
    """The output cut at `end`, many records at a time; an endless one is cut short."""
    rest = b""
    async with aclosing(blocks):
        async for block in blocks:
            *whole, rest = (rest + block).split(end)
            if whole:
                yield whole
            rest = rest[:_LONGEST_RECORD]
    if rest:
        yield [rest]
