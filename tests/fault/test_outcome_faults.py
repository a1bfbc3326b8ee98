"""A program that waits for an answer about an outcome is killed; another one answers, and commits exactly that."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from outrider import Engine, ToolCompleted, ToolError, ToolPart
from outrider.processes.sandbox.detect import find_sandbox_cached
from tests.fault.outcome_worker import engine
from tests.fault.processes import ROOT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = find_sandbox_cached(tmp_path / "scratch")
    if not found.overlays:
        pytest.skip(f"no overlays here: {found.limitations}")
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "notes.txt").write_text("first\n")
    (tmp_path / "workspace" / "gone.txt").write_text("gone\n")
    return tmp_path


def kill_while_it_waits(folder: Path) -> tuple[str, str]:
    """Returns the session and the question that a killed program left."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    command = [sys.executable, "-m", "tests.fault.outcome_worker", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        report = msgspec.json.decode(child.stdout.readline())
        child.kill()
        assert child.wait() == -signal.SIGKILL
    return report["session"], report["question"]


def kill_at(folder: Path, failpoint: str) -> str:
    """Returns the session of a program that commits the outcome and is killed at a failpoint."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        "OUTRIDER_FAULT": failpoint,
    }
    command = [sys.executable, "-m", "tests.fault.outcome_worker", str(folder), "answer"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        report = msgspec.json.decode(child.stdout.readline())
        assert child.wait() == -signal.SIGKILL
    return report["session"]


async def ended_call(held: Engine, session: str) -> ToolPart:
    async with asyncio.timeout(30):
        while True:
            loaded = await held.store.load(session)
            parts = [part for message in loaded.messages for part in message.get_parts_by_type(ToolPart)]
            if parts and parts[0].ended:
                return parts[0]
            await asyncio.sleep(0.02)


async def answer(folder: Path, session: str, **answers: object) -> ToolPart:
    asked: asyncio.Queue = asyncio.Queue()
    async with engine(folder, asked) as held:
        await held.open(session)
        async with asyncio.timeout(30):
            question = await asked.get()
        await held.answer(question.approval_id, **answers)
        return await ended_call(held, session)


async def test_an_outcome_that_waits_survives_a_kill_and_is_committed_once(folder: Path):
    workspace = folder / "workspace"
    session, _ = kill_while_it_waits(folder)
    assert sorted(path.name for path in workspace.iterdir()) == ["gone.txt", "notes.txt"]
    (upper,) = (folder / "data" / "overlays").rglob("upper")
    stamp = (upper / "stamp").read_text()
    part = await answer(folder, session, allow=True)
    assert isinstance(part.state, ToolCompleted)
    assert part.state.output.strip() == "said"
    assert (workspace / "stamp").read_text() == stamp  # the command did not run a second time
    assert (workspace / "notes.txt").read_text() == "first\nline\n"
    assert (workspace / "made" / "x").read_text() == "x\n"
    assert not (workspace / "gone.txt").exists()
    assert not list((folder / "data" / "overlays").rglob("upper"))


async def test_a_change_of_the_user_meanwhile_stays(folder: Path):
    workspace = folder / "workspace"
    session, _ = kill_while_it_waits(folder)
    (workspace / "notes.txt").write_text("mine\n")
    part = await answer(folder, session, allow=True)
    assert isinstance(part.state, ToolCompleted)
    assert "notes.txt" in part.state.output
    assert (workspace / "notes.txt").read_text() == "mine\n"
    assert (workspace / "made" / "x").exists()


async def test_a_no_after_a_kill_leaves_the_workspace_as_it_is(folder: Path):
    session, _ = kill_while_it_waits(folder)
    part = await answer(folder, session, allow=False)
    assert part.state.status == "error"
    assert part.state.reason == "rejected"
    assert sorted(path.name for path in (folder / "workspace").iterdir()) == ["gone.txt", "notes.txt"]
    assert not list((folder / "data" / "overlays").rglob("upper"))


async def test_an_outcome_can_be_answered_while_no_program_waits(folder: Path):
    """The answer is stored by a program that does not run the session; the next one that opens it commits."""
    session, question = kill_while_it_waits(folder)
    async with engine(folder, asyncio.Queue()) as held:
        await held.answer(question, allow=True, keep=("made/x",))
        await held.open(session)
        part = await ended_call(held, session)
    assert isinstance(part.state, ToolCompleted)
    assert (folder / "workspace" / "made" / "x").exists()
    assert (folder / "workspace" / "notes.txt").read_text() == "first\n"


async def resumed_on_another_machine(folder: Path, session: str) -> ToolPart:
    """Continues a session with the same store and workspace and another data folder, as another machine would."""
    (folder / "data" / "overlays").rename(folder / "other_machine")
    asked: asyncio.Queue = asyncio.Queue()
    async with engine(folder, asked) as held:
        await held.open(session)
        return await ended_call(held, session)


async def test_an_outcome_of_another_machine_is_not_made_a_second_time(folder: Path):
    workspace = folder / "workspace"
    session, question = kill_while_it_waits(folder)
    part = await resumed_on_another_machine(folder, session)
    assert isinstance(part.state, ToolError)
    assert part.state.reason == "interrupted"
    assert "was not run again" in part.state.error
    assert sorted(path.name for path in workspace.iterdir()) == ["gone.txt", "notes.txt"]
    async with engine(folder, asyncio.Queue()) as held:
        assert not await held.approvals()
        assert {one.id: one.answer for one in await held.store.approvals()}[question] == "revoked"


@pytest.mark.parametrize("failpoint", ["FP-outcome-staged", "FP-mid-outcome"])
async def test_a_commit_that_a_kill_interrupted_is_not_repeated_by_a_machine_without_the_outcome(
    folder: Path, failpoint: str
):
    workspace = folder / "workspace"
    session = kill_at(folder, failpoint)
    part = await resumed_on_another_machine(folder, session)
    assert isinstance(part.state, ToolError)
    assert part.state.reason == "interrupted"
    assert (workspace / "notes.txt").read_text().count("line") <= 1
