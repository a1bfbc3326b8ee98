"""Answers that arrive late or from another process; the model receives the text of a denial in every case."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from outrider import Engine, Tool, ToolError, ToolPart
from outrider.sessions.sqlite.store import SqliteStore
from tests.fault.processes import ROOT
from tests.scenario.scripted_runs import agent, scripted


def received_text(request: Any) -> str:
    return request.prompt[-1].content[0].content


async def test_a_denial_with_a_message_from_another_process_reaches_the_waiting_model(tmp_path: Path):
    path = tmp_path / "sessions.db"
    command = [sys.executable, "-m", "tests.scenario.waiting_engine", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        session_id, approval_id = (await asyncio.to_thread(program.stdout.readline)).split()
        async with SqliteStore(path) as store:
            await store.answer(approval_id, "denied", by="another process", words="use pnpm")
            while not (part := (await calls(store, session_id))[-1]).ended:
                await asyncio.sleep(0.02)
        program.kill()
    assert isinstance(part.state, ToolError)
    assert part.state.reason == "rejected"
    assert "use pnpm" in part.state.error


async def test_a_denial_with_a_message_while_no_engine_runs_reaches_the_model_later(tmp_path: Path):
    path = tmp_path / "sessions.db"
    command = [sys.executable, "-m", "tests.scenario.waiting_engine", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        session_id, approval_id = (await asyncio.to_thread(program.stdout.readline)).split()
        program.kill()
    risky = Tool(lambda: "ran", name="risky", policy="ask")
    async with SqliteStore(path) as store:
        await store.answer(approval_id, "denied", words="not on a Friday")
        async with Engine([agent()], [scripted([received_text])], [risky], store=store) as held:
            assert "not on a Friday" in (await held.resume(session_id)).output


async def calls(store: SqliteStore, session_id: str) -> list[ToolPart]:
    messages = (await store.load(session_id)).messages
    return [part for message in messages for part in message.get_parts_by_type(ToolPart)]
