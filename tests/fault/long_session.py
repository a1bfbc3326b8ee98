"""Opens and continues a long session, and prints time and memory: `long_session.py STORE`."""

import asyncio
import sys
from pathlib import Path
from time import perf_counter, process_time

from outrider import Engine
from outrider.sessions.sqlite.store import SqliteStore
from tests.fault.worker import say
from tests.scenario.scripted_runs import agent, scripted


async def main(path: str) -> None:
    async with SqliteStore(Path(path)) as store, Engine([agent()], [scripted(["one", "two"])], store=store) as held:
        took: dict[str, float] = {}
        started, worked = perf_counter(), process_time()

        def lap(name: str) -> None:
            """Or the time that it worked: a machine with other things to do is not what is measured."""
            nonlocal started, worked
            took[name] = round(min(perf_counter() - started, process_time() - worked) * 1000, 1)
            started, worked = perf_counter(), process_time()

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
    say(**took, megabytes=peak())


def peak() -> float:
    """The other counter of the system includes the parent process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
