"""Processes in the background of a session: looking after them is never asked about, giving them input is."""

from pathlib import Path
from typing import Any

import pytest

from outrider import ToolCompleted, ToolPart
from outrider.events import ToolApprovalRequestedEvent
from tests.scenario.scripted_runs import call
from tests.scenario.test_undo import engine


def answers(request: Any) -> Any:
    """The process has not ended when it is killed, but has read its line: it waits for its input in vain."""
    process = {"process_id": "cat"}
    steps: list[Any] = [
        [call("shell", "cat", command="read line; echo $line > heard.txt; echo over; cat", background=True)],
        [call("process", action="list"), call("process", action="read", **process)],
        [call("process", action="write", input="a line\n", **process)],
        [call("process", action="wait", timeout=2, **process)],
        [call("process", action="kill", **process)],
        "done",
    ]
    return steps[sum(message.role == "assistant" for message in request.prompt)]


@pytest.mark.slow
async def test_a_process_is_inspected_without_approval_and_given_input_only_with_approval(tmp_path: Path):
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    async with engine(answers, tmp_path) as held:
        asked: list[tuple[str, Any]] = []
        held.bus.subscribe(
            ToolApprovalRequestedEvent, lambda event: asked.append((event.tool_name, event.tool_input.get("action")))
        )
        session_id = await held.create(workspace=workspace)
        assert (await held.prompt(session_id, "go")).output == "done"
        messages = (await held.store.load(session_id)).messages
        calls = [part for message in messages for part in message.get_parts_by_type(ToolPart)]
        assert [part.state.status for part in calls] == ["completed"] * len(calls)
        assert asked == [("shell", None), ("process", "write")]
        assert isinstance(calls[1].state, ToolCompleted)
        assert "echo $line > heard.txt" in calls[1].state.output
        assert (workspace / "heard.txt").read_text() == "a line\n"
        assert (await held.file_changes(session_id).preview(doubtful=True)).changed == ("heard.txt",)
