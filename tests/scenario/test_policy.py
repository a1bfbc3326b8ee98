"""Calls under the policy of an engine: how long an approval lasts, what is denied, and what is redacted."""

from pathlib import Path

import pytest

from outrider import Engine, EventBus, Tool, ToolCompleted, ToolError, ToolPart
from outrider.engine.approvals import lasting_approvals
from outrider.engine.session_tools import ToolEnvironment
from outrider.events import Event, ToolApprovalRequestedEvent
from outrider.permissions.redaction.redactor import HIDDEN_SECRET
from outrider.processes.sandbox.detect import find_sandbox
from outrider.processes.sandbox.sandbox import NoSandbox, Sandbox
from tests.scenario.scripted_runs import agent, call, scripted

SECRET = "ghp_" + "a1B2" * 9


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "notes.txt").write_text("remember the milk\n")
    return folder


class Asked:
    """Approves every question with the given scope, and records them."""

    def __init__(self, engine: Engine, scope: str) -> None:
        self.questions: list[ToolApprovalRequestedEvent] = []
        self._engine, self._scope = engine, scope
        engine.bus.subscribe_all(self.receive)

    async def receive(self, event: Event) -> None:
        if isinstance(event, ToolApprovalRequestedEvent):
            self.questions.append(event)
            await self._engine.answer(event.approval_id, allow=True, scope=self._scope)  # type: ignore[arg-type]


def engine(script, tmp_path: Path, sandbox: Sandbox | None = None, tools=(), **options) -> Engine:
    bus = EventBus()
    around = ToolEnvironment(sandbox=sandbox or NoSandbox("none", ""), data=tmp_path / "data", home=tmp_path, bus=bus)
    return Engine([agent()], [scripted(script)], tools, bus=bus, surroundings=around, **options)


async def calls_of(held: Engine, workspace: Path, *, prompts: int = 1, **fields) -> list[ToolPart]:
    session = await held.create(workspace=workspace, **fields)
    for _ in range(prompts):
        await held.prompt(session, "go")
    loaded = await held.store.load(session)
    return [part for message in loaded.messages for part in message.get_parts_by_type(ToolPart)]


@pytest.mark.parametrize("mode", ["plan", "background"])
async def test_in_unattended_mode_no_command_runs_without_a_sandbox(mode, workspace: Path, tmp_path: Path):
    async with engine([[call("shell", command="ls")], "done"], tmp_path) as held:
        (part,) = await calls_of(held, workspace, mode=mode)
    assert isinstance(part.state, ToolError)
    assert "inside a sandbox only" in part.state.error


@pytest.mark.parametrize(("scope", "questions"), [("once", 2), ("session", 1), ("always", 1)])
async def test_a_yes_for_longer_is_not_asked_for_again(scope: str, questions: int, workspace: Path, tmp_path: Path):
    script = [[call("shell", command="touch new.txt")], [call("shell", command="touch new.txt")], "done"]
    async with engine(script, tmp_path) as held:
        asked = Asked(held, scope)
        parts = await calls_of(held, workspace)
    assert len(asked.questions) == questions
    assert all(isinstance(part.state, ToolCompleted) for part in parts)
    assert asked.questions[0].offers == ("shell(touch new.txt)",)


async def test_a_revoked_approval_is_asked_for_again(workspace: Path, tmp_path: Path):
    script = [[call("shell", command="touch new.txt")], "done", [call("shell", command="touch new.txt")], "done"]
    async with engine(script, tmp_path) as held:
        asked = Asked(held, "always")
        session = await held.create(workspace=workspace)
        await held.prompt(session, "go")
        (answer,) = await lasting_approvals(held.store)
        await held.approval_queue.revoke(answer.id)
        await held.prompt(session, "again")
    assert len(asked.questions) == 2


async def test_what_cannot_be_named_by_a_rule_is_asked_for_each_time(workspace: Path, tmp_path: Path):
    script = [[call("write", file_path=".env", content="x")], [call("write", file_path=".env", content="x")], "done"]
    async with engine(script, tmp_path) as held:
        asked = Asked(held, "always")
        await calls_of(held, workspace)
    assert [(question.offers, question.can_last) for question in asked.questions] == [((), False)] * 2


async def test_a_tool_gets_what_the_model_wrote_and_nothing_else_reads_it(workspace: Path, tmp_path: Path):
    given: list[str] = []

    @Tool
    def login(key: str) -> str:
        """Log in."""
        given.append(key)
        return f"logged in with {key}"

    async with engine([[call("login", key=SECRET)], f"I used {SECRET}"], tmp_path, tools=[login]) as held:
        received: list[Event] = []
        held.bus.subscribe_all(received.append)
        session = await held.create(workspace=workspace)
        end = await held.prompt(session, "go")
        loaded = await held.store.load(session)
    assert given == [SECRET]
    assert end.output == f"I used {HIDDEN_SECRET}"
    assert SECRET not in str([event.to_dict() for event in received])
    assert SECRET not in str([message.to_dict() for message in loaded.messages])


async def test_a_call_that_holds_a_hidden_secret_is_not_run_in_its_place(workspace: Path, tmp_path: Path):
    script = [[call("write", file_path="config", content=f"KEY={HIDDEN_SECRET}")], "done"]
    async with engine(script, tmp_path) as held:
        asked = Asked(held, "once")
        (part,) = await calls_of(held, workspace)
    assert isinstance(part.state, ToolError)
    assert "not the secret itself" in part.state.error
    assert asked.questions == []
    assert not (workspace / "config").exists()


async def test_what_a_command_plants_in_background_mode_is_left_out_and_reported(workspace: Path, tmp_path: Path):
    sandbox = find_sandbox(tmp_path / "scratch")
    if not sandbox.confines:
        pytest.skip("no sandbox works here")
    command = "echo '{}' > .mcp.json; echo hi > ordinary.txt"
    async with engine([[call("shell", command=command)], "done"], tmp_path, sandbox) as held:
        (part,) = await calls_of(held, workspace, mode="background")
    assert isinstance(part.state, ToolCompleted), part.state
    assert "these changes were not applied: .mcp.json (created)" in part.state.output
    assert sorted(path.name for path in workspace.iterdir()) == ["notes.txt", "ordinary.txt"]


async def test_what_a_process_plants_in_the_background_is_moved_away(workspace: Path, tmp_path: Path):
    sandbox = find_sandbox(tmp_path / "scratch")
    if not sandbox.confines:
        pytest.skip("no sandbox works here")
    command = "echo '{}' > .mcp.json; echo hi > ordinary.txt"
    async with engine([[call("shell", command=command, background=True)], "done"], tmp_path, sandbox) as held:
        (part,) = await calls_of(held, workspace, mode="background")
    assert isinstance(part.state, ToolCompleted), part.state
    assert sorted(path.name for path in workspace.iterdir()) == ["notes.txt", "ordinary.txt"]


async def test_processes_can_be_looked_after_unasked(workspace: Path, tmp_path: Path):
    async with engine([[call("process", action="list")], "done"], tmp_path, attended=False) as held:
        (part,) = await calls_of(held, workspace)
    assert isinstance(part.state, ToolCompleted)


async def test_user_input_reaches_the_model_and_no_secret_of_it_is_stored(workspace: Path, tmp_path: Path):
    asked: list[str] = []

    def answer(request):
        asked.extend(str(message.to_api_format()) for message in request.prompt)
        return "done"

    async with engine(answer, tmp_path) as held:
        session = await held.create(workspace=workspace)
        await held.prompt(session, f"use {SECRET}")
        loaded = await held.store.load(session)
    assert any(f"use {SECRET}" in question for question in asked)
    assert SECRET not in str([message.to_dict() for message in loaded.messages])
    assert SECRET not in loaded.session.title
