"""Overhead of the sandbox: the same command with and without it, alternating in one run."""

import asyncio
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.figure import Figure
from outrider import Agent, Engine, EventBus, Limits, Provider, ToolCompleted, ToolPart
from outrider.engine.session_tools import ToolEnvironment
from outrider.processes.sandbox.bubblewrap import SCOPES_SINCE, landlock_version
from outrider.processes.sandbox.detect import LandlockSandbox, find_sandbox
from outrider.processes.sandbox.sandbox import Sandbox, SandboxPolicy, default_policy
from outrider.processes.supervisor import ProcessSupervisor
from outrider.providers.scripted import call

ROUNDS = 40
MOST = 20.0  # milliseconds


def bench() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        workspace, scratch = Path(folder, "workspace"), Path(folder, "scratch")
        for made in (workspace / ".git" / "hooks", workspace / ".vscode", scratch):
            made.mkdir(parents=True)
        policy = default_policy(workspace, writable=True, home=Path.home())
        sandboxes: list[Sandbox] = [find_sandbox(scratch)]
        if landlock_version() >= SCOPES_SINCE:
            sandboxes.append(LandlockSandbox(scratch))
        found = [
            figure
            for sandbox in sandboxes
            if sandbox.confines
            for figure in asyncio.run(added_figures(sandbox, workspace, policy))
        ]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # a sandbox has its own /tmp
        return [*found, *(engine_figures(Path(folder), sandboxes[0]) if sandboxes[0].overlays else ())]


async def added_figures(sandbox: Sandbox, workspace: Path, policy: SandboxPolicy) -> list[Figure]:
    """Commands of two supervisors alternate, as the engine starts them. The overhead includes `wrap`, which reads the
    file system for every command."""
    bare, confined = ProcessSupervisor(), ProcessSupervisor(wrap=lambda launch: sandbox.wrap(launch, policy))
    took: dict[ProcessSupervisor, list[float]] = {bare: [], confined: []}
    own: dict[ProcessSupervisor, float] = {bare: 0.0, confined: 0.0}
    for number in range(ROUNDS + 1):
        for supervisor, times in took.items():
            clock, processor = time.perf_counter(), time.process_time()
            result = await supervisor.run_command(f"call-{number}", ("/bin/true",), workdir=workspace)
            if result.exit_code:
                raise RuntimeError(f"the command failed: {result.text}")
            if number:  # the first one starts the guard
                times.append((time.perf_counter() - clock) * 1e3)
                own[supervisor] += (time.process_time() - processor) * 1e3
    processors = {supervisor: own[supervisor] + await close(supervisor) for supervisor in took}
    added = median(took[confined]) - median(took[bare])
    busy = (processors[confined] - processors[bare]) / ROUNDS
    return [
        Figure(f"a command in {sandbox.name}: added", added, "ms", None, f"<= {MOST:g} ms", added <= MOST),
        Figure(f"a command in {sandbox.name}: processor time added", busy, "ms"),
    ]


async def close(supervisor: ProcessSupervisor) -> float:
    """Closes a supervisor; returns the CPU milliseconds of its processes, which the system reports at their end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    await supervisor.close()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


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
