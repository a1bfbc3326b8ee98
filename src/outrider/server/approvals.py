"""Approvals as clients receive them: the stored record or the event, and in `view` what a front end shows of it."""

import msgspec

from outrider.engine.archive import Approval
from outrider.presentation.approvals import ApprovalDetails, approval_view, event_approval_view
from outrider.types.events import Event, ToolApprovalRequestedEvent


class ApprovalWithView(Approval, frozen=True, kw_only=True):
    """An approval with its title, reason, rules, choices and changed files."""

    view: ApprovalDetails


class ApprovalRequestWithView(ToolApprovalRequestedEvent, frozen=True, kw_only=True, tag="ToolApprovalRequestedEvent"):
    """The event with the same tag and fields, for clients that do not read the stored approval."""

    view: ApprovalDetails


def add_approval_view(approval: Approval, *, agent: str = "") -> ApprovalWithView:
    """`agent` is named if the call is not one of the session that the client follows."""
    view = approval_view(approval, agent=agent).details
    return ApprovalWithView(**msgspec.structs.asdict(approval), view=view)


def add_event_view(event: Event) -> Event:
    """Returns the event; one that requests an approval with the view of it."""
    if not isinstance(event, ToolApprovalRequestedEvent):
        return event
    view = event_approval_view(event, agent=event.agent_name).details
    return ApprovalRequestWithView(**msgspec.structs.asdict(event), view=view)
