"""Overhead of the sandbox: the same command with and without it, alternating in one run."""

import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.figure import Figure
from outrider.processes.launch import LaunchRequest
from outrider.processes.sandbox import init_args as rights
from outrider.processes.sandbox.defaults import default_policy
from outrider.processes.sandbox.detect import find_sandbox
from outrider.processes.sandbox.landlock import LandlockSandbox
from outrider.processes.sandbox.sandbox import Sandbox, SandboxPolicy

ROUNDS = 40
MOST = 30.0  # milliseconds


def bench() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        workspace, scratch = Path(folder, "workspace"), Path(folder, "scratch")
        for made in (workspace / ".git" / "hooks", workspace / ".vscode", scratch):
            made.mkdir(parents=True)
        policy = default_policy(workspace, writable=True, home=Path.home())
        plain = LaunchRequest(("/bin/true",), {"PATH": os.defpath}, workspace)
        sandboxes: list[Sandbox] = [find_sandbox(scratch)]
        if rights.landlock_version() >= rights.SCOPES_SINCE:
            sandboxes.append(LandlockSandbox(scratch))
        return [figure for sandbox in sandboxes if sandbox.confines for figure in figures(sandbox, plain, policy)]


class Cost(NamedTuple):
    """Milliseconds of wall time and of CPU time."""

    clock: float
    processor: float


def figures(sandbox: Sandbox, plain: LaunchRequest, policy: SandboxPolicy) -> list[Figure]:
    """The overhead includes `wrap`, which reads the file system for every command."""
    bare: list[Cost] = []
    confined: list[Cost] = []
    for _ in range(ROUNDS):
        bare.append(cost(lambda: plain))
        confined.append(cost(lambda: sandbox.wrap(plain, policy)))
    added = median(each.clock for each in confined) - median(each.clock for each in bare)
    busy = median(each.processor for each in confined) - median(each.processor for each in bare)
    return [
        Figure(f"a command in {sandbox.name}: added", added, "ms", None, f"<= {MOST:g} ms", added <= MOST),
        Figure(f"a command in {sandbox.name}: processor time added", busy, "ms"),
    ]


def cost(prepare: Callable[[], LaunchRequest]) -> Cost:
    clock, processor = time.perf_counter(), processor_seconds()
    launch = prepare()
    subprocess.run(launch.argv, env=dict(launch.environment), cwd=launch.workdir, stdin=subprocess.DEVNULL, check=True)
    return Cost((time.perf_counter() - clock) * 1e3, (processor_seconds() - processor) * 1e3)


def processor_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
