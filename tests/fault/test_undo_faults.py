"""Undo when programs are killed and disks are full: every change is recorded, and an undo is complete or has no
effect."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider import PatchPart, Tool, ToolError, ToolPart
from outrider.engine.undo import UNDO_FOLDER
from outrider.events import ErrorEvent
from tests.fault.processes import ROOT
from tests.fault.test_store_disk import small_disk
from tests.fault.undo_worker import call, engine, furnish

SOAK = bool(os.environ.get("OUTRIDER_SOAK"))
Record = Callable[[str, object], None]


def state(workspace: Path) -> dict[str, bytes]:
    return {
        path.relative_to(workspace).as_posix(): path.read_bytes() for path in workspace.rglob("*") if path.is_file()
    }


def killed(folder: Path, what: str, session_id: str, fault: str) -> bool:
    command = [sys.executable, "-m", "tests.fault.undo_worker", str(folder), what, session_id]
    environment = os.environ | {"OUTRIDER_FAULT": fault, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == -signal.SIGKILL


async def new_session(folder: Path) -> str:
    furnish(folder / "workspace")
    async with engine(folder) as held:
        return await held.create(workspace=folder / "workspace")


POINTS = [(point, visit) for point in ("FP-before-effect", "FP-before-patch", "FP-after-patch") for visit in (1, 2)]


@pytest.mark.parametrize(("point", "visit"), [*POINTS, ("FP-after-effect-before-result", 2), ("FP-after-result", 2)])
async def test_sf_003_what_a_killed_engine_had_changed_can_be_undone(tmp_path: Path, point: str, visit: int):
    session_id = await new_session(tmp_path)
    workspace = tmp_path / "workspace"
    before = state(workspace)
    assert killed(tmp_path, "turn", session_id, f"{point}@{visit}")
    after = state(workspace)
    async with engine(tmp_path) as held:
        await held.open(session_id)
        changes = held.file_changes(session_id)
        seen = await changes.preview()
        assert set(seen.changed) | set(seen.doubtful) == {
            path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
        }
        assert "written.txt" not in seen.doubtful  # what it was to hold was known before it was written
        patched = [
            part for m in (await held.store.load(session_id)).messages for part in m.get_parts_by_type(PatchPart)
        ]
        assert len(patched) == len({part.hash for part in patched})
        await changes.undo(doubtful=True)
        assert state(workspace) == before
        await changes.redo(doubtful=True)
        assert state(workspace) == after


@pytest.mark.soak
async def test_sf_012_what_an_engine_killed_at_any_moment_had_changed_can_be_undone(
    tmp_path: Path, record_property: Record
):
    rounds, cut, longest = 100 if SOAK else 5, 0, 0.5
    for number in range(rounds):
        folder = tmp_path / str(number)
        session_id = await new_session(folder)
        before = state(folder / "workspace")
        delay = random.uniform(0, longest)
        if killed_after(folder, session_id, delay):
            cut += 1
        else:
            longest = delay / 2  # the turn ended before: on a fast machine it takes less
        async with engine(folder) as held:
            await held.open(session_id)
            await held.abort(session_id)  # what it had not received yet, or was asking, it would continue with
            await held.file_changes(session_id).undo(doubtful=True)
        assert state(folder / "workspace") == before
    record_property("figures", f"undo after kill -9 at random moments: {rounds} rounds, {cut} cut, all undone exactly")
    assert cut


def killed_after(folder: Path, session_id: str, seconds: float) -> bool:
    command = [sys.executable, "-m", "tests.fault.undo_worker", str(folder), "turn", session_id]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(seconds)
        child.kill()
        return child.wait() == -signal.SIGKILL


@pytest.mark.parametrize("fault", [*(f"FP-mid-undo@{visit}" for visit in range(1, 9)), "FP-after-undo@1"])
async def test_sf_003_an_undo_that_was_killed_is_repeated_and_leaves_no_files(tmp_path: Path, fault: str):
    session_id = await new_session(tmp_path)
    workspace = tmp_path / "workspace"
    before = state(workspace)
    async with engine(tmp_path) as held:
        assert (await held.prompt(session_id, "go")).output == "done"
    after = state(workspace)
    assert killed(tmp_path, "undo", session_id, fault)
    async with engine(tmp_path) as held:
        await held.open(session_id)
        changes = held.file_changes(session_id)
        assert (await changes.undo()).off == ("there is nothing to undo" if fault == "FP-after-undo@1" else "")
        assert state(workspace) == before
        notes = [m for m in (await held.store.load(session_id)).messages if "has undone" in m.get_text_content()]
        assert len(notes) == 1
        await changes.redo()
        assert state(workspace) == after


@pytest.mark.parametrize("mode", ["agent", "background"])
async def test_sf_042_without_space_for_an_undo_a_call_is_refused_or_the_user_is_warned(tmp_path: Path, mode: str):
    """Where undo is promised, the call is refused; where the user approved it, it runs, and reports that it cannot be
    undone. A command may be what makes space."""
    workspace = tmp_path / "workspace"
    furnish(workspace)
    (workspace / "large.bin").write_bytes(os.urandom(1_500_000))
    (tmp_path / "data").mkdir()
    with small_disk(tmp_path / "data" / UNDO_FOLDER, 2) as disk:
        script = [[call("write", file_path="large.bin.new", content="x"), call("tool")], "done"]
        writes = Tool(lambda: str((workspace / "by_tool.txt").write_text("w")), name="tool")
        async with engine(tmp_path, script, tools=[writes]) as held:
            (disk / "ballast").write_bytes(b"x" * 1_300_000)
            warned: list[ErrorEvent] = []
            held.bus.subscribe(ErrorEvent, warned.append)
            session_id = await held.create(workspace=workspace, mode=mode)
            assert (await held.prompt(session_id, "go")).output == "done"
            calls = [p for m in (await held.store.load(session_id)).messages for p in m.get_parts_by_type(ToolPart)]
            ran = (workspace / "by_tool.txt").exists()
            if mode == "background":
                assert not ran
                assert isinstance(calls[-1].state, ToolError)
                assert "could not be undone" in calls[-1].state.error
                assert not warned
            else:
                assert ran
                assert any("runs without an undo" in event.message for event in warned)
