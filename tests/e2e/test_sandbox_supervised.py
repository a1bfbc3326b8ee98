"""The supervisor runs confined commands: they are asked to end politely, and nothing of them stays."""

import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from outrider.permissions.paths.protected import find_protected_files
from outrider.processes.launch import LaunchRequest
from outrider.processes.sandbox.defaults import ProtectedState, default_policy, describe_planted
from outrider.processes.sandbox.detect import find_sandbox
from outrider.processes.supervisor import ProcessSupervisor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes exist on Linux only")


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[ProcessSupervisor]:
    sandbox = find_sandbox(tmp_path)
    if sandbox.name != "bubblewrap":
        pytest.skip(f"bubblewrap does not work here: {sandbox.gaps}")
    policy = default_policy(tmp_path, writable=True, home=tmp_path)
    async with ProcessSupervisor(wrap=partial(sandbox.wrap, policy=policy)) as supervisor:
        yield supervisor


async def test_a_confined_command_gives_its_output_and_exit_code(supervisor: ProcessSupervisor, tmp_path: Path):
    outcome = await supervisor.run_command("a", "pwd; echo $$; exit 3", workdir=tmp_path)
    assert outcome.text.splitlines() == [str(tmp_path), "2"]
    assert outcome.ending is not None
    assert outcome.ending.exit_code == 3


async def test_a_confined_command_is_asked_to_end_before_it_is_made_to(supervisor: ProcessSupervisor, tmp_path: Path):
    script = "trap 'echo goodbye > last; exit 0' TERM; touch ready; while :; do sleep 0.05; done"
    outcome = await supervisor.run_command("b", script, workdir=tmp_path, limit=3)
    assert outcome.ending is not None
    assert outcome.ending.cause == "timeout"
    assert (tmp_path / "ready").exists()
    assert (tmp_path / "last").read_text() == "goodbye\n"


async def test_a_confined_command_that_does_not_listen_is_ended(supervisor: ProcessSupervisor, tmp_path: Path):
    script = "trap '' TERM; (setsid sleep 300 &) ; while :; do sleep 0.05; done"
    outcome = await supervisor.run_command("c", script, workdir=tmp_path, limit=0.4)
    assert outcome.ending is not None
    assert outcome.ending.cause == "timeout"


async def test_what_a_command_plants_is_moved_away_and_told(tmp_path: Path):
    sandbox = find_sandbox(tmp_path)
    if not sandbox.confines:
        pytest.skip(f"nothing confines commands here: {sandbox.gaps}")
    workspace, kept = tmp_path / "workspace", tmp_path / "kept"
    workspace.mkdir()
    policy = default_policy(workspace, writable=True, home=tmp_path / "home", own_files=[kept])

    def wrap(launch: LaunchRequest) -> LaunchRequest:
        before = ProtectedState(lambda: find_protected_files(workspace))

        def afterwards() -> str:
            return describe_planted(before.quarantine_planted(kept), kept)

        return replace(sandbox.wrap(launch, policy), cleanup=afterwards)

    async with ProcessSupervisor(wrap=wrap) as supervisor:
        outcome = await supervisor.run_command("a", "echo '{}' > .mcp.json; echo hi > ordinary.txt", workdir=workspace)
    assert [path.name for path in workspace.iterdir()] == ["ordinary.txt"]
    assert "moved away" in outcome.note
    assert ".mcp.json" in outcome.note
