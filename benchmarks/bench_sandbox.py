"""What a sandbox adds to a command: the same command with and without, in turns, in one run."""

import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.figure import Figure
from outrider.processes.launch import Launch
from outrider.processes.sandbox.detect import find_sandbox
from outrider.processes.sandbox.landlock import Landlock
from outrider.processes.sandbox.locks import rights
from outrider.processes.sandbox.places import usual_policy
from outrider.processes.sandbox.policy import Policy
from outrider.processes.sandbox.sandbox import Sandbox

ROUNDS = 40
MOST = 30.0  # milliseconds


def bench() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        workspace, scratch = Path(folder, "workspace"), Path(folder, "scratch")
        for made in (workspace / ".git" / "hooks", workspace / ".vscode", scratch):
            made.mkdir(parents=True)
        policy = usual_policy(workspace, writable=True, home=Path.home())
        plain = Launch(("/bin/true",), {"PATH": os.defpath}, workspace)
        sandboxes: list[Sandbox] = [find_sandbox(scratch)]
        if rights.version() >= rights.SCOPES_SINCE:
            sandboxes.append(Landlock(scratch))
        return [figure for sandbox in sandboxes if sandbox.confines for figure in figures(sandbox, plain, policy)]


def figures(sandbox: Sandbox, plain: Launch, policy: Policy) -> list[Figure]:
    """`wrap` is part of what is added: it looks at the file system anew for every command."""
    bare: list[float] = []
    wrapping: list[float] = []
    confined: list[float] = []
    for _ in range(ROUNDS):
        bare.append(seconds(plain))
        start = time.perf_counter()
        launch = sandbox.wrap(plain, policy)
        wrapping.append(time.perf_counter() - start)
        confined.append(wrapping[-1] + seconds(launch))
    added = (median(confined) - median(bare)) * 1e3
    return [
        Figure(f"a command in {sandbox.name}: added", added, "ms", None, f"<= {MOST:g} ms", added <= MOST),
        Figure(f"a command in {sandbox.name}: of it, preparing", median(wrapping) * 1e3, "ms"),
    ]


def seconds(launch: Launch) -> float:
    start = time.perf_counter()
    subprocess.run(launch.argv, env=dict(launch.environment), cwd=launch.workdir, stdin=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start
