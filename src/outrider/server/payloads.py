"""What clients receive with messages, approvals and events: the values that the presentation layer computes from them.

Views of parts and messages are sent to clients that ask for them, such as the page: they are computed for each change
of a part, and other clients render parts themselves."""

from typing import Any

import msgspec

from outrider.engine.archive import (
    Approval,
    ApprovalChange,
    DamagedChange,
    MessageChange,
    PartChange,
    SessionTranscript,
)
from outrider.engine.plans import ProposedPlan
from outrider.models.context_ledger import ContextReport
from outrider.presentation.approvals import (
    PLAN_DETAILS,
    ApprovalDetails,
    GrantView,
    PlanDetails,
    approval_view,
    grant_view,
    requested_approval_view,
)
from outrider.presentation.item_views import ItemView, MessageView, message_view, part_view
from outrider.presentation.items import (
    RETRY_NOW,
    Notice,
    damage_notice,
    damage_notices,
    event_notice,
    has_other_display,
    is_unfinished,
    progress_text,
    retry_countdown,
    state_label,
)
from outrider.presentation.treemap import TreemapBox, treemap_boxes
from outrider.types.events import (
    ErrorEvent,
    Event,
    LoopCompletedEvent,
    ModelProgressEvent,
    PartUpdatedEvent,
    RetryScheduledEvent,
    StateChangedEvent,
    ToolApprovalRequestedEvent,
)


class ApprovalWithView(Approval, frozen=True, kw_only=True):
    """An approval; `view` has its title, reason, rules, choices, input and diff."""

    view: ApprovalDetails


class LastingAnswer(Approval, frozen=True, kw_only=True):
    """An approval that lasts longer than one call; `view` has its texts."""

    view: GrantView


class PlanWithView(ProposedPlan, frozen=True, kw_only=True):
    """A plan; `view` has its title, question and choices."""

    view: PlanDetails = PLAN_DETAILS


class TranscriptWithViews(SessionTranscript, frozen=True, kw_only=True):
    """A page of messages. With `views`, `part_views` and `message_views` say what to show, by id; the view of a part
    that is not shown is null. `notices` name stored rows of the page that cannot be decoded."""

    part_views: dict[str, ItemView | None] = msgspec.field(default_factory=dict[str, ItemView | None])
    message_views: dict[str, MessageView] = msgspec.field(default_factory=dict[str, MessageView])
    notices: tuple[Notice, ...] = ()


class PartChangeWithView(PartChange, frozen=True, kw_only=True, tag="part"):
    view: ItemView | None


class MessageChangeWithView(MessageChange, frozen=True, kw_only=True, tag="message"):
    view: MessageView


class DamagedChangeWithNotice(DamagedChange, frozen=True, kw_only=True, tag="damaged"):
    notice: Notice


class ContextReportWithMap(ContextReport, frozen=True, kw_only=True):
    """A report; `map` has a rectangle for each source of the last recorded request."""

    map: tuple[TreemapBox, ...]


def add_approval_view(approval: Approval, *, agent: str = "") -> ApprovalWithView:
    """Returns the approval with its view. `agent` is the agent of the call, if the client follows another session."""
    view = approval_view(approval, agent=agent).details
    return ApprovalWithView(**msgspec.structs.asdict(approval), view=view)


def add_lasting_view(approval: Approval) -> LastingAnswer:
    return LastingAnswer(**msgspec.structs.asdict(approval), view=grant_view(approval))


def add_transcript_views(transcript: SessionTranscript) -> TranscriptWithViews:
    return TranscriptWithViews(
        **msgspec.structs.asdict(transcript),
        part_views={part.id: part_view(part) for message in transcript.messages for part in message.parts},
        message_views={message.id: message_view(message) for message in transcript.messages},
        notices=tuple(damage_notices(transcript)),
    )


def add_context_map(report: ContextReport) -> ContextReportWithMap:
    last_step = next((step for step in reversed(report.steps) if step.recorded), None)
    boxes = treemap_boxes(last_step.sources) if last_step is not None else ()
    return ContextReportWithMap(report.session_id, report.steps, report.totals, map=boxes)


def change_payload(change: Any, *, views: bool) -> Any:
    """Returns a stored change with the view of an approval that is open and, with `views`, those of messages and
    parts."""
    match change:
        case ApprovalChange() if change.approval.answer == "open":
            return ApprovalChange(change.seq, add_approval_view(change.approval))
        case PartChange() if views:
            return PartChangeWithView(change.seq, change.part, change.draft, view=part_view(change.part))
        case MessageChange() if views:
            return MessageChangeWithView(change.seq, change.message, view=message_view(change.message))
        case DamagedChange():
            notice = damage_notice(change.row.kind, change.row.error)
            return DamagedChangeWithNotice(change.seq, change.row, notice=notice)
        case _:
            return change


def event_payload(event: Event, *, views: bool = False) -> Event | dict[str, Any]:
    """Returns the event with what a front end shows for it: a notice, the view of a requested approval, the name of a
    state or of an ending before the work is done, what a model does before its answer, the countdown to a retry
    (`{left}` is the rest of the wait) and, with `views`, the view of a part.
    `shown_elsewhere` marks a notice that repeats a message, a part or an approval."""
    extra_fields: dict[str, Any] = {}
    if (notice := event_notice(event)) is not None:
        extra_fields["notice"] = notice
        if has_other_display(event) or isinstance(event, ErrorEvent):  # the message that ended has the error
            extra_fields["shown_elsewhere"] = True
    match event:
        case ToolApprovalRequestedEvent():
            extra_fields["view"] = requested_approval_view(event, agent=event.agent_name).details
        case RetryScheduledEvent():
            extra_fields["countdown"] = "" if event.model else retry_countdown(event)
            extra_fields["label"] = RETRY_NOW
        case LoopCompletedEvent() if is_unfinished(event.termination_reason):
            extra_fields["label"] = event.termination_reason.replace("_", " ")
        case StateChangedEvent():
            extra_fields["label"] = state_label(event.new_state)
        case ModelProgressEvent():
            extra_fields["label"] = progress_text(event)
        case PartUpdatedEvent() if views:
            extra_fields["view"] = part_view(event.part)
        case _:
            pass  # the notice, if there is one, says it all
    return {**event.to_dict(), **extra_fields} if extra_fields else event
