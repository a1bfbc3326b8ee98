"""An engine whose turn changes files, in a separate process: `undo_worker.py FOLDER turn|undo SESSION`."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from outrider import Engine, EventBus
from outrider.engine.session_tools import ToolEnvironment
from outrider.events import ToolApprovalRequestedEvent
from outrider.processes.sandbox.sandbox import NoSandbox
from outrider.providers.scripted import call
from outrider.sessions.sqlite.store import SqliteStore
from tests.fault.worker import say
from tests.scenario.scripted_runs import agent, scripted

COMMAND = "printf s > shell.txt; rm gone.txt; rm -r folder; printf f > folder; rm file; mkdir file; printf x > file/x"
SCRIPT = [
    [call("write", "w1", file_path="written.txt", content="written\n")],
    [call("shell", "s1", command=COMMAND)],
    "done",
]


def furnish(workspace: Path) -> None:
    (workspace / "folder").mkdir(parents=True)
    (workspace / "folder" / "inner.txt").write_text("inner")
    (workspace / "file").write_text("a file")
    (workspace / "gone.txt").write_text("gone")


@contextlib.asynccontextmanager
async def engine(folder: Path, script: Any = SCRIPT, **options: Any) -> AsyncIterator[Engine]:
    bus = EventBus()
    around = ToolEnvironment(sandbox=NoSandbox("none is wanted", ""), data=folder / "data", home=folder, bus=bus)
    async with (
        SqliteStore(folder / "data" / "sessions.db") as store,
        Engine([agent()], [scripted(script)], store=store, bus=bus, surroundings=around, **options) as held,
    ):

        async def approve(event: ToolApprovalRequestedEvent) -> None:
            await held.answer(event.approval_id, allow=True, by="the test")

        bus.subscribe(ToolApprovalRequestedEvent, approve)
        yield held


async def main(folder: str, what: str, session_id: str) -> None:
    async with engine(Path(folder)) as held:
        say(ready=True)
        if what == "turn":
            await held.prompt(session_id, "go")
        else:
            await held.file_changes(session_id).undo()
        say(done=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
