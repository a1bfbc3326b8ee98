"""Hostile commands against the copy-on-write sandbox, with nobody to ask: nothing outside changes, and files that steer
tools stay as they are."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import ToolCompleted, ToolPart
from tests.scenario.stories import call
from tests.scenario.test_outcomes import Harness, sandbox, shell, workspace

__all__ = ["sandbox", "workspace"]  # fixtures


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that is visible to commands, on the same file system as the workspace."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        yield Path(folder)


def texts(parts: list[ToolPart]) -> str:
    return "\n".join(getattr(part.state, "output", "") or getattr(part.state, "error", "") for part in parts)


async def test_a_link_in_the_private_tmp_does_not_lead_the_sandbox_setup_outside(tmp_path, sandbox, outside):
    with tempfile.TemporaryDirectory(dir="/tmp") as top:
        folder = Path(top, "deeper", "workspace")
        folder.mkdir(parents=True)
        plant = f"mv {top} {top}.moved; ln -s /oldroot{outside} {top}; echo kept > /tmp/kept"
        harness = Harness(shell(plant, "cat /tmp/kept; echo 1 > made.txt", "ls"), tmp_path, sandbox)
        async with harness.engine:
            parts = await harness.work(folder, approval="auto")
        assert (folder / "made.txt").exists()
    assert [type(part.state) for part in parts] == [ToolCompleted] * 3
    assert "kept" in parts[1].state.output
    assert list(outside.iterdir()) == []


async def test_a_link_in_the_cache_layer_does_not_lead_the_sandbox_setup_outside(workspace, tmp_path, sandbox, outside):
    plant = f"ln -s /oldroot{outside} __pycache__; ln -s ../elsewhere .pytest_cache"
    script = [*shell(plant), *shell("cat */.env .*/.env; echo 1 > made.txt")]
    harness = Harness(script, tmp_path, sandbox)
    async with harness.engine:
        session = await harness.engine.create(workspace=workspace, approval="auto")
        await harness.engine.prompt(session, "go")
        for name in ("__pycache__", ".pytest_cache"):
            (workspace / name).mkdir()
            (workspace / name / ".env").write_text("KEY=secret-of-the-user\n")
        await harness.engine.prompt(session, "go")
        parts = await harness.calls(session)
    assert "secret-of-the-user" not in texts(parts)
    assert (workspace / "made.txt").exists()
    assert list(outside.iterdir()) == []
