"""The program as process 1 of a container: it reaps orphans, takes signals and gives its exit code."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault.processes import ROOT

CONFIG = """
model = "demo/demo"
[providers.demo]
kind = "scripted"
options = {{ script = [{{ tool = "shell", input = {{ command = "{command}" }} }}, "done"] }}
"""
AS_PROCESS_ONE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")

pytestmark = pytest.mark.skipif(
    not shutil.which("unshare")
    or subprocess.run([*AS_PROCESS_ONE, "true"], check=False, capture_output=True).returncode,
    reason="needs a process namespace",
)


async def start(folder: Path, command: str) -> asyncio.subprocess.Process:
    (folder / "home").mkdir()
    (folder / "workspace").mkdir()
    (folder / "home" / "config.toml").write_text(CONFIG.format(command=command))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "HOME": str(folder)}
    return await asyncio.create_subprocess_exec(
        *(*AS_PROCESS_ONE, sys.executable, "-m", "outrider", "run", "--allow", "shell", "go"),
        env=environment | {"OUTRIDER_HOME": str(folder / "home")},
        cwd=folder / "workspace",
    )


async def test_process_one_reaps_orphans(tmp_path: Path):
    program = await start(tmp_path, "touch started; until [ -e go ]; do sleep 0.05; done")
    async with asyncio.timeout(60):
        while not (tmp_path / "workspace" / "started").exists():
            await asyncio.sleep(0.02)
    first = states_below(program.pid)
    await asyncio.sleep(1)
    later = states_below(program.pid)
    (tmp_path / "workspace" / "go").touch()
    assert await asyncio.wait_for(program.wait(), 60) == 0
    assert len(first) >= 3
    # Such as those of the sandbox's trial. A child of the command may be one for a moment.
    assert [pid for pid in first.keys() & later.keys() if first[pid] == later[pid] == "Z"] == []


def states_below(pid: int) -> dict[int, str]:
    """The state of each descendant: one letter of ps."""
    rows = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
    processes = [
        (int(number), int(parent), state) for number, parent, state in map(str.split, rows.stdout.splitlines())
    ]
    found: dict[int, str] = {}
    newest = {pid}
    while newest:  # a child may have a smaller number than its parent
        below = {number: state[0] for number, parent, state in processes if parent in newest}
        newest = set(below)
        found |= below
    return found


async def test_process_one_forwards_signals_and_gives_the_exit_code(tmp_path: Path):
    program = await start(tmp_path, "touch started; sleep 300")
    async with asyncio.timeout(60):
        while not (tmp_path / "workspace" / "started").exists():
            await asyncio.sleep(0.02)
        (first,) = (int(pid) for pid in Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split())
        os.kill(first, signal.SIGTERM)
        assert await program.wait() == 128 + signal.SIGTERM
