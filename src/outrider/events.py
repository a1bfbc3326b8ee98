"""Public module of the event stream: every event class, the bus, and the listeners of the package."""

from typing import TYPE_CHECKING

from outrider._lazy import lazy_names
from outrider.event_bus import EventBus, get_event_bus
from outrider.types.events import (
    EVENT_TYPES,
    AgentCalledEvent,
    AgentReturnedEvent,
    BudgetExceededEvent,
    CacheMissEvent,
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
    ModelProgressEvent,
    ModelSilentEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    ProcessExitedEvent,
    ProcessOutputEvent,
    ProcessStartedEvent,
    RequestChangedEvent,
    RetryScheduledEvent,
    SessionUpdatedEvent,
    StateChangedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
    TurnCompletedEvent,
    TurnStartedEvent,
    event_from_dict,
)

if TYPE_CHECKING:
    from outrider.tracing.console import EventLogger
    from outrider.tracing.event_log import AgentEvent, EventLog
    from outrider.tracing.trace import Span, Trace


__all__ = [
    "EVENT_TYPES",
    "AgentCalledEvent",
    "AgentEvent",
    "AgentReturnedEvent",
    "BudgetExceededEvent",
    "CacheMissEvent",
    "ContextCompactionEvent",
    "DeltasDroppedEvent",
    "ErrorEvent",
    "Event",
    "EventBus",
    "EventLog",
    "EventLogger",
    "FilesRestoredEvent",
    "LLMRequestEvent",
    "LLMResponseEvent",
    "LoopCompletedEvent",
    "LoopStartedEvent",
    "MessageAddedEvent",
    "ModelProgressEvent",
    "ModelSilentEvent",
    "PartDeltaEvent",
    "PartUpdatedEvent",
    "ProcessExitedEvent",
    "ProcessOutputEvent",
    "ProcessStartedEvent",
    "RequestChangedEvent",
    "RetryScheduledEvent",
    "SessionUpdatedEvent",
    "Span",
    "StateChangedEvent",
    "ToolApprovalRequestedEvent",
    "ToolApprovalResultEvent",
    "ToolExecutionCompletedEvent",
    "ToolExecutionStartedEvent",
    "ToolInputDeltaEvent",
    "ToolOutputEvent",
    "Trace",
    "TurnCompletedEvent",
    "TurnStartedEvent",
    "event_from_dict",
    "get_event_bus",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "outrider.tracing.event_log": "AgentEvent EventLog",
        "outrider.tracing.console": "EventLogger",
        "outrider.tracing.trace": "Span Trace",
    },
)
