"""An engine whose command waits for an answer, in a separate process: `outcome_worker.py FOLDER [answer]`."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from outrider import Engine, EventBus
from outrider.engine.session_tools import ToolEnvironment
from outrider.events import ToolApprovalRequestedEvent
from outrider.processes.sandbox.detect import find_sandbox_cached
from outrider.sessions.sqlite.store import SqliteStore
from tests.fault.worker import say
from tests.scenario.scripted_runs import agent, call, scripted

COMMAND = "date +%N > stamp; echo line >> notes.txt; mkdir made; echo x > made/x; rm gone.txt; echo said"


@contextlib.asynccontextmanager
async def engine(folder: Path, asked: "asyncio.Queue[ToolApprovalRequestedEvent]") -> AsyncIterator[Engine]:
    bus = EventBus()
    sandbox = find_sandbox_cached(folder / "scratch")
    around = ToolEnvironment(sandbox=sandbox, data=folder / "data", home=folder / "home", bus=bus)
    script = [[call("shell", "s1", command=COMMAND)], "done"]
    bus.subscribe(ToolApprovalRequestedEvent, asked.put_nowait)
    async with (
        SqliteStore(folder / "data" / "sessions.db") as store,
        Engine([agent()], [scripted(script)], store=store, bus=bus, surroundings=around) as held,
    ):
        yield held


async def main(folder: str, answer: str = "") -> None:
    asked: asyncio.Queue[ToolApprovalRequestedEvent] = asyncio.Queue()
    async with engine(Path(folder), asked) as held:
        session = await held.create(workspace=Path(folder) / "workspace")
        working = asyncio.ensure_future(held.prompt(session, "go"))
        question = await asked.get()
        say(session=session, question=question.approval_id)
        if answer:
            await held.answer(question.approval_id, allow=True)
        await working


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
