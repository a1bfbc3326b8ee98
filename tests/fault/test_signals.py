"""Signals to the program at work: the turn ends, all that it started ends with it, and everything is stored."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from outrider.sessions.records import SessionTranscript
from outrider.sessions.sqlite.store import SqliteStore
from outrider.testing.simulator import Simulator
from outrider.testing.simulator_answers import SIMULATED_APIS
from outrider.types.parts import ToolPart, ToolUsePart
from outrider.types.tool_state import ToolError
from tests.fault.processes import ROOT
from tests.fixtures.process_checks import is_alive, wait_until_dead

VENDOR = SIMULATED_APIS["anthropic"]


class Program:
    """`outrider run` in a separate process, with a model that starts a long command."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process) -> None:
        self.folder = folder
        self.process = process

    async def at_work(self) -> int:
        """The process id of its command, once its first output is stored."""
        async with asyncio.timeout(60):
            while not (text := self._read("pid")).strip():
                await asyncio.sleep(0.02)
            while "begun" not in str((await self.transcript()).messages):
                await asyncio.sleep(0.1)
        return int(text)

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 60)

    async def transcript(self) -> SessionTranscript:
        async with SqliteStore(next((self.folder / "home").rglob("*.db"))) as store:
            (session,) = (await store.list()).sessions
            return await store.load(session.id)

    def _read(self, name: str) -> str:
        path = self.folder / "workspace" / name
        return path.read_text() if path.exists() else ""


@contextlib.asynccontextmanager
async def program(folder: Path) -> AsyncIterator[Program]:
    (folder / "workspace").mkdir()
    (folder / "workspace" / "work.sh").write_text("echo $$ > pid; echo begun; exec sleep 300")
    answers: list[Any] = [[ToolUsePart("toolu_1", "shell", {"command": "sh work.sh"})], "never"]
    async with Simulator(answers) as server:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "src"),
            "HOME": str(folder),
            "OUTRIDER_HOME": str(folder / "home"),
            "ANTHROPIC_API_KEY": "key",
            "ANTHROPIC_BASE_URL": server.url(),
        }
        arguments = [
            "run",
            "--model",
            f"anthropic/{VENDOR.model}",
            "--allow",
            "shell(sh work.sh)",
            "--cwd",
            str(folder / "workspace"),
        ]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "outrider", *arguments, "go", env=environment, cwd=folder, start_new_session=True
        )
        try:
            yield Program(folder, process)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def check_stored(run: Program) -> None:
    (call,) = [part for m in (await run.transcript()).messages for part in m.get_parts_by_type(ToolPart)]
    assert isinstance(call.state, ToolError)
    assert call.state.reason == "canceled"
    assert "begun" in call.state.error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["sf_009", "sf_010"])
async def test_sf_009_and_010_a_signal_ends_the_turn_and_all_it_started_with_everything_preserved(
    tmp_path: Path, number
):
    async with program(tmp_path) as run:
        pid = await run.at_work()
        run.process.send_signal(number)
        assert await run.ended() == 128 + number
        assert not is_alive(pid)
        await check_stored(run)


@pytest.mark.parametrize("pause", [0.0, 0.1, 0.3])
async def test_sf_011_the_second_interrupt_ends_the_program_and_the_session_can_be_resumed(tmp_path: Path, pause):
    async with program(tmp_path) as run:
        pid = await run.at_work()
        run.process.send_signal(signal.SIGINT)
        await asyncio.sleep(pause)
        with contextlib.suppress(ProcessLookupError):
            os.kill(run.process.pid, signal.SIGINT)  # its own way to send one may take the exit code away
        assert await run.ended() == 130
        await asyncio.to_thread(wait_until_dead, pid)
        loaded = await run.transcript()
        assert [message.role for message in loaded.messages] == ["user", "assistant"]
