"""The built-in tools in an engine: modes, questions and the sandbox decide what becomes of a call."""

import asyncio
from pathlib import Path

import pytest

from outrider import Engine, EventBus, Rules, ToolCompleted, ToolError, ToolPart
from outrider.engine.session_tools import ToolEnvironment
from outrider.events import ToolApprovalRequestedEvent
from outrider.processes.sandbox.detect import find_sandbox
from tests.scenario.scripted_runs import agent, call, scripted


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "notes.txt").write_text("remember the milk\n")
    (folder / ".env").write_text("TOKEN=secret\n")
    return folder


def engine(script, tmp_path: Path, **options) -> Engine:
    bus = EventBus()
    around = ToolEnvironment(
        sandbox=find_sandbox(tmp_path / "scratch"),
        data=tmp_path / "data",
        home=tmp_path,
        bus=bus,
    )
    return Engine([agent()], [scripted(script)], bus=bus, surroundings=around, **options)


async def worked(held: Engine, workspace: Path, **fields) -> list[ToolPart]:
    session = await held.create(workspace=workspace, **fields)
    await held.prompt(session, "go")
    loaded = await held.store.load(session)
    return [part for message in loaded.messages for part in message.get_parts_by_type(ToolPart)]


async def test_reading_in_the_workspace_runs_unasked_in_plan_and_agent_mode(workspace, tmp_path):
    for mode in ("plan", "agent"):
        script = [[call("read", file_path="notes.txt"), call("grep", pattern="milk")], "done"]
        async with engine(script, tmp_path, attended=False) as held:
            read, found = await worked(held, workspace, mode=mode)
        assert isinstance(read.state, ToolCompleted)
        assert "remember the milk" in read.state.output
        assert isinstance(found.state, ToolCompleted)


async def test_a_protected_file_is_not_read_unasked(workspace, tmp_path):
    async with engine([[call("read", file_path=".env")], "done"], tmp_path, attended=False) as held:
        (part,) = await worked(held, workspace)
    assert isinstance(part.state, ToolError)
    assert "secret" not in part.state.error


async def test_writing_is_asked_about_in_agent_mode_and_runs_once_it_is_approved(workspace, tmp_path):
    async with engine([[call("write", file_path="new.txt", content="x")], "done"], tmp_path) as held:
        asked: list[ToolApprovalRequestedEvent] = []
        held.bus.subscribe(ToolApprovalRequestedEvent, asked.append)
        working = asyncio.ensure_future(worked(held, workspace))
        while not asked:
            await asyncio.sleep(0.005)
        assert not (workspace / "new.txt").exists()
        await held.answer(asked[0].approval_id, allow=True)
        (part,) = await working
    assert isinstance(part.state, ToolCompleted)
    assert (workspace / "new.txt").read_text() == "x"


async def test_a_link_that_changes_after_the_question_is_not_written(workspace, tmp_path):
    (workspace / "inside").mkdir()
    (workspace / "link").symlink_to("inside")
    async with engine([[call("write", file_path="link/new.txt", content="x")], "done"], tmp_path) as held:
        asked: list[ToolApprovalRequestedEvent] = []
        held.bus.subscribe(ToolApprovalRequestedEvent, asked.append)
        working = asyncio.ensure_future(worked(held, workspace))
        while not asked:
            await asyncio.sleep(0.005)
        (workspace / "link").unlink()
        (workspace / "link").symlink_to(tmp_path)
        await held.answer(asked[0].approval_id, allow=True)
        (part,) = await working
    assert isinstance(part.state, ToolError)
    assert "resolves to another file" in part.state.error
    assert not (tmp_path / "new.txt").exists()


async def test_a_rule_allows_what_it_names_and_a_denial_wins(workspace, tmp_path):
    script = [[call("write", file_path="a.txt", content="x"), call("write", file_path="b.txt", content="x")], "done"]
    rules = Rules(allow=("write(*)",), deny=("write(b.txt)",))
    async with engine(script, tmp_path, attended=False, rules=rules) as held:
        first, second = await worked(held, workspace)
    assert isinstance(first.state, ToolCompleted)
    assert isinstance(second.state, ToolError)
    assert second.state.reason == "denied"


async def test_plan_mode_runs_commands_inside_the_sandbox_and_discards_what_they_change(workspace, tmp_path):
    script = [[call("shell", command="cat notes.txt"), call("shell", command="touch made.txt")], "a plan"]
    async with engine(script, tmp_path, attended=False) as held:
        read, touched = await worked(held, workspace, mode="plan")
    assert isinstance(read.state, ToolCompleted)
    assert "remember the milk" in read.state.output
    assert isinstance(touched.state, ToolCompleted)
    assert "this mode discards what a command changes: made.txt (created)" in touched.state.output
    assert not (workspace / "made.txt").exists()


async def test_background_mode_asks_no_question_and_confines_what_it_runs(workspace, tmp_path):
    script = [[call("shell", command=f"echo hi > made.txt; echo out > {tmp_path}/outside.txt")], "done"]
    async with engine(script, tmp_path) as held:
        if not find_sandbox(tmp_path / "scratch").confines:
            pytest.skip("no sandbox works here")
        await worked(held, workspace, mode="background")
    assert (workspace / "made.txt").read_text() == "hi\n"
    assert not (tmp_path / "outside.txt").exists()


async def test_what_was_approved_is_what_is_opened_and_nothing_else(workspace, tmp_path):
    (tmp_path / "outside.txt").write_text("far away")
    (tmp_path / "other.txt").write_text("not this")
    script = [[call("read", file_path=str(tmp_path / "outside.txt"))], [call("read", file_path="../other.txt")], "done"]
    async with engine(script, tmp_path) as held:
        asked: list[ToolApprovalRequestedEvent] = []
        held.bus.subscribe(ToolApprovalRequestedEvent, asked.append)
        working = asyncio.ensure_future(worked(held, workspace))
        for number, allow in ((1, True), (2, False)):
            while len(asked) < number:
                await asyncio.sleep(0.005)
            await held.answer(asked[-1].approval_id, allow=allow)
        first, second = await working
    assert isinstance(first.state, ToolCompleted)
    assert "far away" in first.state.output
    assert isinstance(second.state, ToolError)
    assert second.state.reason == "rejected"
