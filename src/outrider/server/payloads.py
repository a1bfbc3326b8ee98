"""What clients receive with approvals and events: the values that the presentation layer computes from them."""

from typing import Any

import msgspec

from outrider.engine.archive import Approval
from outrider.presentation.approvals import ApprovalDetails, approval_view, requested_approval_view
from outrider.presentation.items import event_notice
from outrider.types.events import Event, ToolApprovalRequestedEvent


class ApprovalWithView(Approval, frozen=True, kw_only=True):
    """An approval; `view` has its title, reason, rules, choices and changed files."""

    view: ApprovalDetails


def add_approval_view(approval: Approval, *, agent: str = "") -> ApprovalWithView:
    """`agent` is named if the call is not one of the session that the client follows."""
    view = approval_view(approval, agent=agent).details
    return ApprovalWithView(**msgspec.structs.asdict(approval), view=view)


def event_payload(event: Event) -> Event | dict[str, Any]:
    """Returns the event with the sentence that a front end shows for it, if there is one, and with the view of an
    approval that it requests."""
    notice = event_notice(event)
    if notice is None:
        return event
    added: dict[str, Any] = {"notice": notice}
    if isinstance(event, ToolApprovalRequestedEvent):
        added["view"] = requested_approval_view(event, agent=event.agent_name).details
    return {**event.to_dict(), **added}
