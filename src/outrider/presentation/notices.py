"""Sentences about events that are no message: retries, limits, errors, compactions, ends of turns.

`event_notice` matches every event class, so the type checker reports a new event that no front end would show.
"""

from typing import Literal, assert_never, cast

import msgspec

from outrider.presentation.formats import clean_line, format_milliseconds, format_tokens
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    BudgetExceededEvent,
    ContextCompactionEvent,
    DeltasDroppedEvent,
    ErrorEvent,
    Event,
    FilesRestoredEvent,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    ProcessExitedEvent,
    ProcessOutputEvent,
    ProcessStartedEvent,
    RetryScheduledEvent,
    SessionUpdatedEvent,
    StandardEvent,
    StateChangedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
    TurnCompletedEvent,
    TurnStartedEvent,
    is_standard_event,
)
from outrider.types.messages import Message
from outrider.types.parts import CompactionPart

NoticeLevel = Literal["detail", "info", "success", "warning", "error"]
NoticeTopic = Literal["retry", "limit", "error", "compaction", "agent", "end", "approval", "files", "command", "custom"]

ABORTED = "aborted"
"""The error type of a message whose turn was aborted by a person."""


class Notice(msgspec.Struct, frozen=True):
    """A sentence of the program itself. `body` is Markdown that can be expanded; `detail` notices may be hidden."""

    level: NoticeLevel
    topic: NoticeTopic
    text: str
    body: str = ""


def event_notice(event: Event) -> Notice | None:
    """Returns what to show for an event that no message or part shows; None if there is nothing to add.

    An event class of the user's own, which is unknown here, gives a `detail` notice with its name.
    """
    if not is_standard_event(event):
        return Notice("detail", "custom", clean_line(event.event_type, 100))
    return _standard_notice(cast("StandardEvent", event))


def _standard_notice(event: StandardEvent) -> Notice | None:
    match event:
        case RetryScheduledEvent():
            return retry_notice(event)
        case BudgetExceededEvent():
            text = f"stopped: the limit of {event.maximum} {event.limit} is reached"
            return Notice("warning", "limit", clean_line(text))
        case ContextCompactionEvent():
            return Notice("info", "compaction", compaction_text(event.tokens_before, event.tokens_after))
        case ErrorEvent():
            return Notice("error", "error", clean_line(f"{event.error_type}: {event.message}", 2000))
        case AgentCalledEvent():
            text = f"{event.agent_name} calls {event.callee}: {event.message}"
            return Notice("info", "agent", clean_line(text))
        case AgentReturnedEvent():
            text = f"{event.callee} {'returned' if event.success else 'failed'}"
            return Notice("detail" if event.success else "warning", "agent", clean_line(text))
        case LoopCompletedEvent():
            return _end_notice(event)
        case ToolApprovalRequestedEvent():
            location = f" at {event.server}" if event.server else ""
            reason = event.description.removeprefix(f"at {event.server}: ")
            text = f"{event.tool_name} waits for approval{location}: {reason}"
            return Notice("warning", "approval", clean_line(text))
        case FilesRestoredEvent():
            return Notice("info", "files", "files were restored")
        case (
            LoopStartedEvent()
            | TurnStartedEvent()
            | TurnCompletedEvent()
            | StateChangedEvent()
            | LLMRequestEvent()
            | LLMResponseEvent()
            | SessionUpdatedEvent()
        ):
            return None  # shown as activity, usage or title
        case (
            MessageAddedEvent()
            | PartUpdatedEvent()
            | PartDeltaEvent()
            | ToolInputDeltaEvent()
            | ToolOutputEvent()
            | ToolExecutionStartedEvent()
            | ToolExecutionCompletedEvent()
            | ToolApprovalResultEvent()
            | ProcessStartedEvent()
            | ProcessOutputEvent()
            | ProcessExitedEvent()
            | DeltasDroppedEvent()
        ):
            return None  # shown by the message, the call or the process that it belongs to
        case _:
            assert_never(event)


def retry_notice(event: RetryScheduledEvent) -> Notice:
    limit = f" of {event.max_attempts}" if event.max_attempts else ""
    text = f"attempt {event.attempt}{limit} failed: {event.error}; retrying in {format_milliseconds(event.delay_ms)}"
    return Notice("warning", "retry", clean_line(text))


def compaction_text(before: int | None, after: int | None) -> str:
    sizes = f" ({format_tokens(before)} → {format_tokens(after)} tokens)" if before and after else ""
    return f"earlier messages were summarised{sizes}"


def compaction_notice(part: CompactionPart) -> Notice:
    return Notice("info", "compaction", compaction_text(part.tokens_before, part.tokens_after), part.summary)


def message_error_notice(message: Message) -> Notice | None:
    """The notice for an answer that ended with an error or was aborted; None for one that did not."""
    error = message.error
    if error is None:
        return None
    if error.type == ABORTED:
        return Notice("warning", "end", "interrupted")
    return Notice("error", "error", clean_line(f"{error.type}: {error.message}", 2000))


def _end_notice(event: LoopCompletedEvent) -> Notice | None:
    match event.termination_reason:
        case "length":
            return Notice("warning", "end", "the answer was cut off: the model's output limit is reached")
        case "repetition" | "empty_answers":
            return Notice(
                "warning", "end", f"stopped: {clean_line(event.output or 'the model returned empty answers')}"
            )
        case "refusal":
            return Notice("warning", "end", "the model refused to answer")
        case _:
            return None
