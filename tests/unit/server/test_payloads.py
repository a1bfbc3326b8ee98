"""Approvals and events as clients receive them: with what a front end shows, and readable as before."""

from typing import Any

import msgspec

from outrider.server.event_stream import change_frame, live_frame
from outrider.server.payloads import add_approval_view
from outrider.sessions.records import Approval, ApprovalChange
from outrider.types.events import (
    BudgetExceededEvent,
    LoopStartedEvent,
    ToolApprovalRequestedEvent,
    event_from_dict,
)

EDIT = {"file_path": "a.py", "old_string": "old", "new_string": "new"}


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
    (file,) = view["changes"]
    assert (file["old_path"], file["new_path"]) == ("a.py", "a.py")
    assert [(line["kind"], line["text"]) for line in file["hunks"][0]["lines"]] == [
        ("removed", "old"),
        ("added", "new"),
    ]


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
