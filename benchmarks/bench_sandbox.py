"""Overhead of the sandbox: the same command with and without it, alternating in one run."""

import asyncio
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
from outrider import Agent, Engine, EventBus, Limits, Provider, ToolCompleted, ToolPart
from outrider.engine.session_tools import ToolEnvironment
from outrider.processes.launch import LaunchRequest
from outrider.processes.sandbox import init_args as rights
from outrider.processes.sandbox.defaults import default_policy
from outrider.processes.sandbox.detect import find_sandbox
from outrider.processes.sandbox.landlock import LandlockSandbox
from outrider.processes.sandbox.sandbox import Sandbox, SandboxPolicy
from outrider.providers.scripted import call

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
        found = [figure for sandbox in sandboxes if sandbox.confines for figure in figures(sandbox, plain, policy)]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # a sandbox has its own /tmp
        return [*found, *(engine_figures(Path(folder), sandboxes[0]) if sandboxes[0].overlays else ())]


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


COMMANDS = {"a change of one file": "echo line >> f0.txt", "ls": "ls", "git status": "git status --short"}
SMALL, LARGE, REPEATS = 100, 100_000, 9


def engine_figures(folder: Path, sandbox: Sandbox) -> list[Figure]:
    """The same commands through the engine in a small and in a large repository. git itself reads every file."""
    took = {size: run_commands(folder / str(size), sandbox, size) for size in (SMALL, LARGE)}
    figures: list[Figure] = []
    for name in COMMANDS:
        small, large = took[SMALL][name], took[LARGE][name]
        target = None if name == "git status" else 2.0
        figures.append(
            Figure(
                f"{name}, {LARGE:,} files beside {SMALL}",
                large,
                "ms",
                large / small,
                f"<= {target:g}x" if target else "",
                large <= target * small if target else None,
            )
        )
    return figures


def run_commands(root: Path, sandbox: Sandbox, size: int) -> dict[str, float]:
    """Returns milliseconds per command: the median of the calls of one session, without the first."""
    workspace = root / "workspace"
    for number in range(size):
        path = workspace / (f"f{number}.txt" if number < 20 else f"d{number // 1000}/e{number // 50}/f{number}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("line\n")
    git = ["git", "-C", str(workspace), "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    return asyncio.run(time_commands(root, workspace, sandbox))


async def time_commands(root: Path, workspace: Path, sandbox: Sandbox) -> dict[str, float]:
    bus = EventBus()
    around = ToolEnvironment(sandbox=sandbox, data=root / "data", home=root, bus=bus)
    calls = [command for command in COMMANDS.values() for _ in range(REPEATS + 1)]
    script = [*([call("shell", command=f"{command} # {number}")] for number, command in enumerate(calls)), "done"]
    agent = Agent("agent", "You work.", "model-1", "scripted")
    provider = Provider("scripted", "scripted", options={"script": script})
    engine = Engine(
        [agent], [provider], bus=bus, surroundings=around, approval="edits", limits=Limits(turns=len(calls) + 1)
    )
    async with engine:
        session = await engine.create(workspace=workspace)
        await engine.prompt(session, "go")
        loaded = await engine.store.load(session)
    parts = [part for message in loaded.messages for part in message.get_parts_by_type(ToolPart)]
    times = [part.state.time.end - part.state.time.start for part in parts if isinstance(part.state, ToolCompleted)]
    if len(times) != len(calls):
        raise RuntimeError("a command failed")
    rounds = {name: times[at * (REPEATS + 1) : (at + 1) * (REPEATS + 1)][1:] for at, name in enumerate(COMMANDS)}
    return {name: median(each) for name, each in rounds.items()}
