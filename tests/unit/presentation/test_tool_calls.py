"""What is shown of a tool call, in every state."""

import pytest

from outrider.presentation.tool_calls import (
    call_changes,
    call_input,
    call_kind,
    call_outcome,
    call_title,
    call_todos,
    final_answer,
    subject_line,
)
from outrider.types.parts import ToolPart
from outrider.types.tool_state import EndedTime, TodoItem, ToolCompleted, ToolError, ToolPending


def completed(tool: str = "edit", **metadata: object) -> ToolPart:
    return ToolPart("c1", tool, ToolCompleted({}, "ok", metadata=metadata, time=EndedTime(1000, 3500)))


@pytest.mark.parametrize(
    ("tool", "arguments", "subject"),
    [
        ("read", {"file_path": "a.py", "offset": 3}, "a.py"),
        ("shell", {"command": "ls -la", "description": "List files"}, "List files"),
        ("grep", {"pattern": "x+", "path": "src"}, "x+ in src"),
        ("call_agent", {"agent_name": "bob", "message": "hello\nthere"}, "bob: hello there"),
        ("apply_patch", {"patch": "*** Update File: a.py\n-x\n+y\n*** Add File: b.py\n+z"}, "a.py, b.py"),
        ("todo", {"todos": [1, 2]}, "2 items"),
        ("own_tool", {"size": 3, "names": ["a", "b"]}, "size=3, names=[2]"),
        ("own_tool", {}, ""),
    ],
)
def test_the_subject_distinguishes_a_call(tool: str, arguments: dict[str, object], subject: str):
    assert subject_line(tool, arguments) == subject


def test_the_title_of_a_command_is_the_command():
    assert call_title("shell", {"command": "make  test\n", "description": "Run tests"}) == "make test"
    assert call_title("read", {"file_path": "a.py"}) == "read a.py"
    assert len(call_title("shell", {"command": "x" * 5000})) == 200


def test_an_unknown_tool_has_a_kind_too():
    assert [call_kind(ToolPart(call_id="c", tool=tool)) for tool in ("shell", "edit", "mine")] == [
        "execute",
        "edit",
        "other",
    ]


def test_input_that_is_being_written_is_read_as_far_as_it_goes():
    part = ToolPart("c1", "shell", ToolPending({}, "", "streaming"))
    assert call_input(part, '{"command": "ls -') == {"command": "ls -"}
    assert call_input(part, '{"comm') == {}


def test_changes_are_planned_until_the_call_has_ended():
    pending = ToolPart(
        "c1", "edit", ToolPending({"file_path": "a.py", "old_string": "x", "new_string": "y"}, "", "ready")
    )
    done = completed(diff="--- a.py\n+++ a.py\n@@ -7 +7 @@\n-x\n+y\n")
    assert [line.number for line in call_changes(pending)[0].hunks[0].lines] == [None, None]
    assert [line.number for line in call_changes(done)[0].hunks[0].lines] == [7, 7]
    assert call_changes(completed(diff=17)) == []


def test_the_outcome_has_counts_exit_code_and_time():
    outcome = call_outcome(completed(added=3, removed=1, exit_code=2))
    assert (outcome.lines_added, outcome.lines_removed, outcome.exit_code, outcome.milliseconds) == (3, 1, 2, 2500)
    failed = ToolPart("c1", "shell", ToolError({}, "no", reason="denied", time=EndedTime(1, 2)))
    assert (call_outcome(failed).error_reason, call_outcome(failed).error) == ("denied", "no")


def test_a_task_list_survives_odd_entries():
    todos = call_todos(completed("todo", todos=[{"content": "a", "status": "completed"}, {"content": "b"}, 17]))
    assert todos == (TodoItem("a", "completed"), TodoItem("b"), TodoItem("17"))
    (odd,) = call_todos(completed("todo", todos=[{"content": "a", "status": "paused"}])) or ()
    assert odd == TodoItem("a")
    assert call_todos(completed()) is None


def test_finish_is_an_answer():
    part = ToolPart("c1", "finish", ToolPending({}, "", "streaming"))
    assert final_answer(part, '{"message": "all do') == "all do"
    assert final_answer(completed("shell")) is None
