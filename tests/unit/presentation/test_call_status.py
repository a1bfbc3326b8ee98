"""The status of a call has the same text, facts and tone in every front end."""

from typing import get_args

import pytest

from outrider.cli.commands.jobs_follow import JobTextPrinter
from outrider.presentation.item_views import item_view
from outrider.presentation.items import ToolCallItem
from outrider.presentation.share_page import render_item
from outrider.presentation.tool_calls import call_status, status_text
from outrider.sessions.records import PartChange
from outrider.tui.rendering.tool_calls import call_lines, todo_lines
from outrider.tui.theme import DARK
from outrider.types.parts import ToolPart
from outrider.types.tool_state import EndedTime, TodoItem, TodoStatus, ToolCompleted, ToolError, ToolPending, ToolState


@pytest.mark.parametrize(
    ("state", "text", "tone"),
    [
        (ToolPending(phase="streaming"), "generating", "quiet"),
        (ToolPending(phase="awaiting_approval"), "generated · needs approval", "quiet"),
        (ToolPending().start(1), "calling", "accent"),
        (ToolCompleted({}, "x", EndedTime(0, 90)), "done", "good"),
        (ToolCompleted({}, "x", EndedTime(0, 900), metadata={"exit_code": 3}), "done · exit code 3 · 900ms", "warn"),
        (ToolError({}, "no", EndedTime(0, 700)), "errored · 700ms", "bad"),
        (ToolError({}, "no", EndedTime(0, 90), reason="invalid_input"), "errored · invalid input", "bad"),
        (ToolError({}, "no", EndedTime(0, 90), reason="denied"), "canceled · denied", "warn"),
        (ToolError({}, "no", EndedTime(0, 90), reason="canceled"), "canceled", "warn"),
    ],
)
def test_every_front_end_shows_the_same_status_of_a_call(
    state: ToolState, text: str, tone: str, capsys: pytest.CaptureFixture[str]
):
    part = ToolPart("c", "shell", state)
    facts = call_status(part)
    assert (status_text(facts), facts[0].text, facts[0].tone) == (text, part.display_status, tone)
    assert item_view(ToolCallItem(part)).status_text == text
    assert call_lines(ToolCallItem(part), 100, DARK)[0].plain.endswith(text)
    assert text in render_item(ToolCallItem(part))
    if part.ended:
        JobTextPrinter().print_change(PartChange(1, part, draft=False))
        assert text.removeprefix("done").removeprefix(" · ") in capsys.readouterr().out


def test_the_entries_of_a_task_list_have_the_same_marks_in_the_terminal_and_on_a_shared_page():
    todos = [TodoItem(status, status) for status in get_args(TodoStatus)]
    stored = [{"content": todo.content, "status": todo.status} for todo in todos]
    call = ToolPart("c", "todo", ToolCompleted({}, "x", EndedTime(0, 90), metadata={"todos": stored}))
    page = render_item(ToolCallItem(call))
    lines = [line.plain for line in todo_lines(todos, 80, DARK)]
    assert len(lines) == len(todos)
    for line in lines:
        assert f">{line}</li>" in page
