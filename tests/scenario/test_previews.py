"""A question shows the true change; what cannot work, and wrong arguments, never become a question."""

import asyncio
from pathlib import Path

import pytest

from outrider import Engine, EventBus, Tool, ToolCompleted, ToolContext, ToolError, ToolFailure, ToolPart, ToolResult
from outrider.engine.session_tools import ToolEnvironment
from outrider.events import ToolApprovalRequestedEvent
from outrider.presentation.approvals import requested_approval_view
from outrider.presentation.diffs import diff_rows
from outrider.processes.sandbox.sandbox import NoSandbox
from tests.scenario.scripted_runs import agent, call, scripted

TEXT = "".join(f"line {number}\n" for number in range(1, 21))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "a.txt").write_text(TEXT)
    return folder


class Asking:
    def __init__(self, tmp_path: Path, script, tools=()) -> None:
        bus = EventBus()
        around = ToolEnvironment(sandbox=NoSandbox("", ""), data=tmp_path / "data", home=tmp_path, bus=bus)
        self.engine = Engine([agent()], [scripted([*script, "done"])], tools, bus=bus, surroundings=around)
        self.asked: list[ToolApprovalRequestedEvent] = []
        bus.subscribe(ToolApprovalRequestedEvent, self._reply)

    async def _reply(self, event: ToolApprovalRequestedEvent) -> None:
        self.asked.append(event)
        await self.engine.answer(event.approval_id, allow=True)

    async def work(self, workspace: Path) -> list[ToolPart]:
        async with self.engine:
            session = await self.engine.create(workspace=workspace)
            await asyncio.wait_for(self.engine.prompt(session, "go"), 30)
            loaded = await self.engine.store.load(session)
        return [part for message in loaded.messages for part in message.get_parts_by_type(ToolPart)]


def shown(event: ToolApprovalRequestedEvent) -> list[str]:
    return [row.text for row in diff_rows(requested_approval_view(event).changes)]


async def test_an_edit_is_shown_with_the_lines_around_it(workspace, tmp_path):
    held = Asking(tmp_path, [[call("edit", file_path="a.txt", old_string="line 10\n", new_string="ten\n")]])
    await held.work(workspace)
    (event,) = held.asked
    assert shown(event) == [
        "a.txt", "@@ -7 +7 @@", " line 7", " line 8", " line 9", "-line 10", "+ten", " line 11", " line 12", " line 13",
    ]  # fmt: skip


async def test_a_whole_file_is_shown_as_what_changes_in_it(workspace, tmp_path):
    new = TEXT.replace("line 3\n", "three\n")
    reads, writes = call("read", file_path="a.txt"), call("write", file_path="a.txt", content=new)
    held = Asking(tmp_path, [[reads], [writes]])
    await held.work(workspace)
    (event,) = held.asked
    assert [row for row in shown(event) if row[0] in "+-"] == ["-line 3", "+three"]
    assert (workspace / "a.txt").read_text() == new


async def test_a_patch_is_shown_with_its_place(workspace, tmp_path):
    patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n-line 20\n+twenty\n*** End Patch"
    held = Asking(tmp_path, [[call("apply_patch", patch=patch)]])
    await held.work(workspace)
    assert "@@ -17 +17 @@" in shown(held.asked[0])


@pytest.mark.parametrize(
    ("made", "reason", "message"),
    [
        (call("edit", file_path="a.txt", old_string="not there", new_string="x"), "failed", "not"),
        (call("edit", file_path="missing.txt", old_string="a", new_string="b"), "failed", "missing.txt"),
        (call("write", file_path="a.txt", content="x"), "failed", "Read it first"),
        (call("edit", file_path="a.txt", old_string="a"), "invalid_input", "`new_string` is missing"),
        (call("shell", command="touch x", timeout="soon"), "invalid_input", "timeout"),
        (call("web_fetch", url="https://example.org", lines=3), "invalid_input", "lines"),
        (call("read"), "invalid_input", "file"),
        (call("shell", command=""), "invalid_input", "no command"),
        (call("guess", number="many"), "invalid_input", "number"),
    ],
)
async def test_a_call_that_cannot_work_is_not_asked_about(made, reason, message, workspace, tmp_path):
    def guess(number: int) -> int:
        return number

    held = Asking(tmp_path, [[made]], [Tool(guess, policy="ask")])
    (part,) = await held.work(workspace)
    assert isinstance(part.state, ToolError)
    assert (part.state.reason, message in part.state.error) == (reason, True)
    assert not held.asked


async def test_an_edit_that_builds_on_another_one_of_the_same_answer_is_asked_about(workspace, tmp_path):
    first = call("edit", file_path="a.txt", old_string="line 1\n", new_string="one\n")
    second = call("edit", file_path="a.txt", old_string="one\n", new_string="uno\n")
    held = Asking(tmp_path, [[first, second]])
    parts = await held.work(workspace)
    assert len(held.asked) == 2
    assert [event.position for event in sorted(held.asked, key=lambda event: event.position)] == [0, 1]
    assert isinstance(parts[0].state, ToolCompleted)


async def test_a_tool_of_ones_own_can_show_what_it_would_change(workspace, tmp_path):
    ran: list[bool] = []

    def publish(name: str, context: ToolContext) -> ToolResult:
        if name == "bad":
            raise ToolFailure("there is no such page")
        if not context.preview:
            ran.append(True)
        return ToolResult("done", metadata={"diff": f"--- /dev/null\n+++ {name}\n@@ -0,0 +1 @@\n+page"})

    script = [[call("publish", name="good")], [call("publish", name="bad")]]
    held = Asking(tmp_path, script, [Tool(publish, policy="ask", previews=True)])
    parts = await held.work(workspace)
    (event,) = held.asked
    assert shown(event) == ["good (new file)", "@@ -0 +1 @@", "+page"]
    assert ran == [True]
    assert isinstance(parts[1].state, ToolError)
    assert parts[1].state.error == "there is no such page"


async def test_a_preview_that_raises_does_not_prevent_the_question(workspace, tmp_path):
    def odd(context: ToolContext) -> str:
        if context.preview:
            raise RuntimeError("boom")
        return "fine"

    held = Asking(tmp_path, [[call("odd")]], [Tool(odd, policy="ask", previews=True)])
    (part,) = await held.work(workspace)
    assert len(held.asked) == 1
    assert isinstance(part.state, ToolCompleted)


async def test_a_file_that_may_not_be_opened_yet_is_asked_about_by_its_arguments(workspace, tmp_path):
    (workspace / "AGENTS.md").write_text("old\n")
    held = Asking(tmp_path, [[call("edit", file_path="AGENTS.md", old_string="old", new_string="new")]])
    await held.work(workspace)
    (event,) = held.asked
    assert event.preview == ""
    assert shown(event) == ["AGENTS.md", "-old", "+new"]
