"""Approvals and events as clients receive them: with what a front end shows, and readable as before."""

from typing import Any

import msgspec

from outrider.models.context_ledger import ContextReport, SourceShare, StepContext
from outrider.server.event_stream import change_frame, live_frame
from outrider.server.payloads import add_approval_view, add_context_map, event_payload
from outrider.sessions.records import Approval, ApprovalChange, DamagedChange, DamagedRow, MessageChange, PartChange
from outrider.types.events import (
    BudgetExceededEvent,
    ErrorEvent,
    Event,
    LoopCompletedEvent,
    LoopStartedEvent,
    ModelProgressEvent,
    PartUpdatedEvent,
    RetryScheduledEvent,
    StateChangedEvent,
    ToolApprovalRequestedEvent,
    event_from_dict,
)
from outrider.types.messages import Message
from outrider.types.parts import StepStartPart, ToolPart
from outrider.types.tool_state import EndedTime, ToolCompleted

EDIT = {"file_path": "a.py", "old_string": "old", "new_string": "new"}


ERROR = ErrorEvent(session_id="s", error_type="ProviderError", message="busy")


def data(body: bytes) -> Any:
    return msgspec.json.decode(body.partition(b"data: ")[2])


def approval(**fields: Any) -> Approval:
    return Approval(session_id="s", call_id="c", tool="edit", input=EDIT, description="it changes a file", **fields)


def ids(view: Any) -> list[str]:
    return [choice["id"] for choice in view["choices"]]


def test_an_open_approval_comes_with_its_choices_and_changes():
    change = data(change_frame(ApprovalChange(3, approval(offers=("edit(a.py)",)))).body)
    view = change["approval"]["view"]
    assert (change["type"], change["seq"], change["approval"]["tool"]) == ("approval", 3, "edit")
    assert (view["title"], view["reason"], view["rule_text"]) == ("edit a.py", "it changes a file", "edit(a.py)")
    assert ids(view) == ["once", "session", "project", "always", "no", "no-because"]
    assert [(row["kind"], row["text"]) for row in view["diff"]] == [
        ("file", "a.py"),
        ("removed", "-old"),
        ("added", "+new"),
    ]
    assert view["input"] == "", "the diff shows all arguments"


def test_what_no_diff_shows_of_a_call_is_in_the_input_of_its_approval():
    everywhere = msgspec.structs.replace(approval(), input={**EDIT, "replace_all": True})
    assert '"replace_all": true' in add_approval_view(everywhere).view.input
    shell = msgspec.structs.replace(
        approval(), tool="shell", input={"command": "a\nb", "description": "x", "timeout": 3}
    )
    assert add_approval_view(shell).view.input == 'a\nb\n{\n  "timeout": 3\n}'


def test_what_no_rule_describes_can_only_be_allowed_once():
    view = msgspec.to_builtins(add_approval_view(approval(), agent="helper").view)
    assert (ids(view), view["agent"]) == (["once", "no", "no-because"], "helper")
    by_content = msgspec.to_builtins(add_approval_view(approval(contents=("hash",))).view)
    assert "project" in ids(by_content)


def test_an_answered_approval_is_sent_without_choices():
    answered = approval().answered_with("allowed", scope="project", by="page", words="", at=1)
    assert "view" not in data(change_frame(ApprovalChange(4, answered)).body)["approval"]


def test_events_come_with_their_notice_and_are_read_as_before():
    asked = ToolApprovalRequestedEvent(
        session_id="s",
        tool_name="edit",
        tool_input=EDIT,
        approval_id="a",
        can_last=True,
        agent_name="helper",
        timestamp=1,
    )
    events = [LoopStartedEvent(session_id="s"), BudgetExceededEvent(session_id="s", limit="steps", maximum="3"), asked]
    started, budget, request = data(live_frame(events).body)
    assert "notice" not in started
    assert (budget["notice"]["level"], budget["notice"]["topic"]) == ("warning", "limit")
    assert (request["view"]["agent"], "project" in ids(request["view"])) == ("helper", True)
    assert event_from_dict(request) == asked


def test_views_of_parts_and_messages_are_sent_to_clients_that_ask_for_them():
    part = ToolPart("c", "shell", ToolCompleted({"command": "make"}, "ok", EndedTime(0, 10)), message_id="m")
    change, message = PartChange(1, part), MessageChange(2, Message("assistant", []))
    assert "view" not in data(change_frame(change).body)
    shown = data(change_frame(change, views=True).body)
    assert (shown["type"], shown["part"]["tool"], shown["view"]["subject"]) == ("part", "shell", "make")
    assert data(change_frame(PartChange(1, StepStartPart()), views=True).body)["view"] is None
    assert data(change_frame(message, views=True).body)["view"] == {}
    event = PartUpdatedEvent(session_id="s", part=part)
    [live], [plain] = data(live_frame([event], views=True).body), data(live_frame([event]).body)
    assert live.pop("view")["status"] == "done"
    assert live == plain


def test_a_damaged_row_comes_with_a_notice():
    change = data(change_frame(DamagedChange(5, DamagedRow("part", "p", "m", "no JSON", b"x"))).body)
    assert (change["type"], change["row"]["id"]) == ("damaged", "p")
    assert change["notice"]["text"] == "a damaged part is skipped: no JSON"


def test_an_event_has_what_a_front_end_shows_unless_something_else_shows_it():
    class DeployedEvent(Event, frozen=True):
        pass

    changed = StateChangedEvent(session_id="s", old_state="calling_model", new_state="running_tools")
    deployed, state, error = data(live_frame([DeployedEvent(session_id="s"), changed, ERROR]).body)
    assert (deployed["notice"]["text"], "shown_elsewhere" in deployed) == ("DeployedEvent", False)
    assert (state["label"], "notice" in state) == ("working", False)
    assert error["shown_elsewhere"] is True


def test_a_retry_is_sent_with_a_countdown_that_the_page_fills_in():
    payload = event_payload(RetryScheduledEvent(attempt=1, delay_ms=2_500, error="no {left}", max_attempts=3))
    assert isinstance(payload, dict)
    assert payload["countdown"] == "retrying in {left}: attempt 1 of 3 failed: no {left}"
    assert payload["notice"].text == "retrying in 2.5s: attempt 1 of 3 failed: no {left}"
    assert payload["label"] == "sending the request again"


def test_the_progress_of_a_model_is_sent_as_text():
    payload = event_payload(ModelProgressEvent(stage="reading", done=34, total=100))
    assert isinstance(payload, dict)
    assert (payload["label"], "notice" in payload) == ("reading the prompt 34 %", False)


def test_only_an_end_before_the_work_is_done_has_a_label():
    limit, done = (event_payload(LoopCompletedEvent(termination_reason=end)) for end in ("empty_answers", "completed"))
    assert isinstance(limit, dict)
    assert limit["label"] == "empty answers"
    assert isinstance(done, LoopCompletedEvent)


def test_the_map_of_a_context_shows_the_last_recorded_request():
    sources = (SourceShare("system", "", 30, 9), SourceShare("file", "a", 10, 3))
    steps = (
        StepContext(step=1, message_id="m", sources=sources),
        StepContext(step=2, message_id="n", recorded=False),
    )
    report = add_context_map(ContextReport("s", steps, sources))
    assert [(box.left, box.width, box.text) for box in report.map] == [
        (0, 75, "system · 9 tokens"),
        (75, 25, "file: a · 3 tokens"),
    ]
    assert add_context_map(ContextReport("s", (), ())).map == ()
