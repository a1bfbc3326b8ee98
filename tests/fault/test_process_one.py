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
    states = [line.split() for line in list_below(program.pid)]
    (tmp_path / "workspace" / "go").touch()
    assert await asyncio.wait_for(program.wait(), 60) == 0
    assert len(states) >= 3
    assert [line for line in states if line[0].startswith("Z")] == []  # such as those of the sandbox's trial


def list_below(pid: int) -> list[str]:
    """State and name of all descendants."""
    rows = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,stat=,comm="], capture_output=True, text=True, check=True)
    parents = {pid}
    found: list[str] = []
    for number, parent, *rest in (line.split(maxsplit=3) for line in rows.stdout.splitlines()):
        if int(parent) in parents:
            parents.add(int(number))
            found.append(" ".join(rest))
    return found


async def test_process_one_forwards_signals_and_gives_the_exit_code(tmp_path: Path):
    program = await start(tmp_path, "touch started; sleep 300")
    async with asyncio.timeout(60):
        while not (tmp_path / "workspace" / "started").exists():
            await asyncio.sleep(0.02)
        (first,) = (int(pid) for pid in Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split())
        os.kill(first, signal.SIGTERM)
        assert await program.wait() == 128 + signal.SIGTERM
