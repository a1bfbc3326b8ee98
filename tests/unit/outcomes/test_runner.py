"""The command runner, with a sandbox that starts nothing and a function in place of the command."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.outcomes.runner import CommandPlan, SandboxedCommands
from outrider.processes.launch import LaunchRequest, LaunchWrapper
from outrider.processes.output import CapturedOutput
from outrider.processes.sandbox.sandbox import Network, SandboxPolicy
from outrider.processes.supervisor import CommandResult, ExitStatus
from outrider.tools.edit_transaction import WorkspaceLock
from outrider.tools.tool import Progress, ToolContext, ToolResult
from outrider.types.modes import ApprovalLevel, Mode
from outrider.types.outcomes import CommandOutcome, OutcomeAnswer


class RecordingSandbox:
    """A sandbox that starts nothing. `policies` are those of the commands that it wrapped."""

    name, confines, accepted, limitations = "recording", True, False, ()

    def __init__(self, *, overlays: bool) -> None:
        self.overlays, self.protects_files = overlays, True
        self.policies: list[SandboxPolicy] = []

    def wrap(self, launch: LaunchRequest, policy: SandboxPolicy) -> LaunchRequest:
        self.policies.append(policy)
        return launch


class Bench:
    """A workspace, and a runner whose commands are calls of `command` with the folder that they may write to."""

    def __init__(self, root: Path, *, overlays: bool = True, network: Network = "off") -> None:
        self.workspace, self.data = root / "workspace", root / "data"
        self.workspace.mkdir()
        self.sandbox = RecordingSandbox(overlays=overlays)
        self.level: ApprovalLevel = "edits"
        self.questions: list[CommandOutcome] = []
        self.progress: list[Progress] = []
        self.recording: Callable[[], Any] = lambda: asyncio.sleep(0)
        self.asking: Callable[[], Any] = lambda: asyncio.sleep(0)

        def policy(*, writable: bool) -> SandboxPolicy:
            return SandboxPolicy(workspace=self.workspace, writable=writable, network=network)

        @asynccontextmanager
        async def record(*_: object) -> AsyncGenerator[None]:
            await self.recording()
            yield

        @asynccontextmanager
        async def open_network(hosts: Sequence[str]) -> AsyncGenerator[Network]:
            yield "on"

        async def ask(context: ToolContext, outcome: CommandOutcome, question: str) -> OutcomeAnswer:
            self.questions.append(outcome)
            await self.asking()
            return OutcomeAnswer(allowed=True)

        self.runner = SandboxedCommands(
            workspace=self.workspace,
            data=self.data,
            sandbox=self.sandbox,
            policy=policy,
            settings=self,
            ask=ask,
            record_paths=record,
            record_all=record,
            open_network=open_network,
            lock=WorkspaceLock(self.data, self.workspace),
            find_repository=lambda: None,
        )
        self.context = ToolContext(session_id="s", call_id="c", workspace=self.workspace, report=self.progress.append)

    def mode_of(self, session_id: str) -> Mode:
        return "agent"

    def level_of(self, session_id: str) -> ApprovalLevel:
        return self.level

    async def run(self, *results: CommandResult, plan: CommandPlan | None = None) -> ToolResult:
        """Runs a command that writes a file and ends with these results, one for each run."""
        if plan is not None:
            self.runner.plan_call("c", plan)
        waiting = list(results)

        async def execute(wrap: LaunchWrapper | None) -> CommandResult:
            if wrap is not None:
                wrap(LaunchRequest(("true",), {}, self.workspace))
            overlay = self.sandbox.policies[-1].overlay if self.sandbox.policies else None
            ((overlay.upper if overlay else self.workspace) / "made.txt").write_text("x\n")
            return waiting.pop(0)

        return await self.runner.run(self.context, execute, lambda result: ToolResult(result.text))

    @property
    def labels(self) -> list[str]:
        return [f"{origin.kind}:{origin.source}" for progress in self.progress for origin in progress.origins]


def ended(text: str = "", code: int = 0, **fields: Any) -> CommandResult:
    return CommandResult("p", CapturedOutput(text), 1, ExitStatus("exited", code), **fields)


async def test_a_command_that_runs_again_names_once_what_it_left_running(tmp_path: Path):
    bench = Bench(tmp_path)
    blocked = ended("cat: /etc/x: Permission denied\ncurl: (6) Could not resolve host: docs.example.org", 6)
    result = await bench.run(blocked, ended("done", left_running=("sleep 60",)))
    assert len(bench.questions) == 1
    assert result.content.count("it left processes running") == 1


@pytest.mark.parametrize(("network", "labels"), [("on", ["web:the network"]), ("off", [])])
async def test_without_overlays_the_output_of_a_command_with_a_network_is_text_of_others(
    network: Network, labels: list[str], tmp_path: Path
):
    bench = Bench(tmp_path, overlays=False, network=network)
    await bench.run(ended("a page"))
    assert bench.labels == labels


@pytest.mark.parametrize("confinement", ["read-only", "workspace", "none"])
async def test_a_process_with_a_network_that_runs_on_prints_text_of_others(confinement: Any, tmp_path: Path):
    bench = Bench(tmp_path, network="on")
    bench.runner.plan_call("c", CommandPlan(confinement))

    async def start(wrap: LaunchWrapper | None) -> CommandResult:
        return ended("a page")

    await bench.runner.run_on(bench.context, start)
    assert bench.labels == ["web:the network"]


async def test_a_second_cancellation_does_not_abandon_a_commit(tmp_path: Path):
    bench = Bench(tmp_path)
    started, released = asyncio.Event(), asyncio.Event()

    async def record() -> None:
        started.set()
        await released.wait()

    bench.recording = record
    running = asyncio.ensure_future(bench.run(ended("done")))
    await started.wait()
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0.01)
        assert not running.done()
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (bench.workspace / "made.txt").read_text() == "x\n"
    assert not list(bench.data.rglob("upper"))


async def test_a_commit_that_waits_for_the_workspace_can_be_cancelled(tmp_path: Path):
    bench = Bench(tmp_path)
    bench.level = "ask"
    async with AsyncExitStack() as other:
        # Another process takes the workspace while the question is open.
        bench.asking = lambda: other.enter_async_context(WorkspaceLock(bench.data, bench.workspace).hold())
        running = asyncio.ensure_future(bench.run(ended("done")))
        async with asyncio.timeout(5):
            while not any("waiting for another" in progress.output for progress in bench.progress):
                await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 5)
    assert list(bench.workspace.iterdir()) == []
