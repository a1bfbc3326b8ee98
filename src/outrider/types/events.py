"""Everything that can be heard on the bus. An event says what happened; it never asks for anything."""

from typing import Any, ClassVar

import msgspec

from outrider.types.codec import load_part, plain
from outrider.types.ids import now_ms
from outrider.types.usage import CacheTokens, Tokens
from outrider.types.validate import convert, is_object


class Event(msgspec.Struct, kw_only=True, frozen=True, tag_field="type", tag=True):
    """Base class. A subclass states its stored name with `tag`; without one its class name is used.

    `droppable` events are deltas: a slow listener may miss them, since the full value follows."""

    droppable: ClassVar[bool] = False
    timestamp: int = msgspec.field(default_factory=now_ms)
    session_id: str = ""
    agent_name: str = ""
    call_id: str = ""
    parent_call_id: str = ""

    @property
    def event_type(self) -> str:
        return str(self.__struct_config__.tag)

    def to_dict(self) -> dict[str, Any]:
        return plain(self)


class LoopStartedEvent(Event, frozen=True, tag="LoopStartedEvent"):
    user_message: str = ""


class LoopCompletedEvent(Event, frozen=True, tag="LoopCompletedEvent"):
    termination_reason: str = ""
    total_turns: int = 0
    duration_ms: int = 0
    output: str = ""


class TurnStartedEvent(Event, frozen=True, tag="TurnStartedEvent"):
    turn_number: int
    max_turns: int | None = None


class TurnCompletedEvent(Event, frozen=True, tag="TurnCompletedEvent"):
    turn_number: int
    tool_calls_count: int = 0


class StateChangedEvent(Event, frozen=True, tag="StateChangedEvent"):
    old_state: str
    new_state: str


class LLMRequestEvent(Event, frozen=True, tag="LLMRequestEvent"):
    message_count: int
    has_tools: bool = False
    model: str = ""
    provider: str = ""


class LLMResponseEvent(Event, frozen=True, tag="LLMResponseEvent"):
    """Counts do not overlap, as in `Tokens`: input without what a cache gave or took, output without reasoning.
    `cost` is the exact decimal as text; None when no price is known."""

    stop_reason: str | None = None
    has_tool_use: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    duration_ms: int = 0
    reasoning_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    first_token_ms: int | None = None
    cost: str | None = None
    model: str = ""
    provider: str = ""

    @property
    def tokens(self) -> Tokens:
        cache = CacheTokens(self.cache_read_tokens, self.cache_write_tokens)
        return Tokens(self.input_tokens, self.output_tokens, self.reasoning_tokens, cache)


class ToolExecutionStartedEvent(Event, frozen=True, tag="ToolExecutionStartedEvent"):
    tool_name: str
    tool_input: dict[str, Any] = {}


class ToolExecutionCompletedEvent(Event, frozen=True, tag="ToolExecutionCompletedEvent"):
    """`reason` says why a call ended in error, in the words of its state."""

    tool_name: str
    success: bool = True
    duration_ms: int = 0
    output_preview: str = ""
    reason: str = ""


class ToolApprovalRequestedEvent(Event, frozen=True, tag="ToolApprovalRequestedEvent"):
    """`offers` are the rules that a yes for longer would keep; it is offered only if the question `can_last`. `server`
    is the address of another one, where the call would run."""

    tool_name: str
    description: str = ""
    approval_id: str = ""
    tool_input: dict[str, Any] = {}
    offers: tuple[str, ...] = ()
    can_last: bool = False
    server: str = ""


class ToolApprovalResultEvent(Event, frozen=True, tag="ToolApprovalResultEvent"):
    tool_name: str
    approved: bool
    approval_id: str = ""
    scope: str = "once"
    answered_by: str = ""


class MessageAddedEvent(Event, frozen=True, tag="MessageAddedEvent"):
    """`seq` is the session's number of the change; None for an answer that begins, which is kept a moment later."""

    role: str
    part_count: int = 0
    message_id: str = ""
    seq: int | None = None


class ContextCompactionEvent(Event, frozen=True, tag="ContextCompactionEvent"):
    tokens_before: int
    tokens_after: int
    messages_removed: int = 0


class PartUpdatedEvent(Event, frozen=True, tag="PartUpdatedEvent"):
    """A part's full value: made, changed or ended. `seq` is the session's number of the change."""

    part: Any
    seq: int | None = None

    def __post_init__(self) -> None:
        if is_object(self.part):
            msgspec.structs.force_setattr(self, "part", load_part(self.part))


class PartDeltaEvent(Event, frozen=True, tag="PartDeltaEvent"):
    """A piece of text or reasoning as it arrives; `field` says which."""

    droppable: ClassVar[bool] = True
    message_id: str
    part_id: str
    delta: str
    field: str = "text"


class ToolInputDeltaEvent(Event, frozen=True, tag="ToolInputDeltaEvent"):
    """A piece of a call's input while the model writes it."""

    droppable: ClassVar[bool] = True
    message_id: str
    part_id: str
    delta: str
    tool_name: str = ""


class ToolOutputEvent(Event, frozen=True, tag="ToolOutputEvent"):
    """Partial output of a running call."""

    droppable: ClassVar[bool] = True
    tool_name: str
    output: str
    stream: str = "stdout"


class RetryScheduledEvent(Event, frozen=True, tag="RetryScheduledEvent"):
    attempt: int
    delay_ms: int
    error: str
    max_attempts: int | None = None


class BudgetExceededEvent(Event, frozen=True, tag="BudgetExceededEvent"):
    limit: str
    maximum: str
    reached: str = ""


class AgentCalledEvent(Event, frozen=True, tag="AgentCalledEvent"):
    """`agent_name` calls `callee`; `call_id` joins it to the return."""

    callee: str
    message: str = ""
    child_session_id: str = ""


class AgentReturnedEvent(Event, frozen=True, tag="AgentReturnedEvent"):
    callee: str
    output: str = ""
    success: bool = True
    duration_ms: int = 0
    child_session_id: str = ""


class SessionUpdatedEvent(Event, frozen=True, tag="SessionUpdatedEvent"):
    """What changed about a session as a whole: title, mode, agent, usage."""

    changes: dict[str, Any] = {}
    seq: int | None = None


class ProcessStartedEvent(Event, frozen=True, tag="ProcessStartedEvent"):
    process_id: str
    command: str
    pid: int | None = None


class ProcessOutputEvent(Event, frozen=True, tag="ProcessOutputEvent"):
    droppable: ClassVar[bool] = True
    process_id: str
    output: str
    stream: str = "stdout"


class ProcessExitedEvent(Event, frozen=True, tag="ProcessExitedEvent"):
    process_id: str
    exit_code: int | None = None
    signal: str | None = None


class FilesRestoredEvent(Event, frozen=True, tag="FilesRestoredEvent"):
    """Changes of files were undone or redone; `left_alone` are those that somebody else has changed since, or may
    have. `message_id` is where the transcript says so."""

    direction: str
    files: tuple[str, ...] = ()
    left_alone: tuple[str, ...] = ()
    message_id: str = ""


class DeltasDroppedEvent(Event, frozen=True, tag="DeltasDroppedEvent"):
    """This listener was too slow and missed `count` deltas; full values follow."""

    count: int


class ErrorEvent(Event, frozen=True, tag="ErrorEvent"):
    """A failure that ended something; `error_type` is the class name of the exception."""

    error_type: str
    message: str


EVENT_TYPES: dict[str, type[Event]] = {str(cls.__struct_config__.tag): cls for cls in Event.__subclasses__()}


def event_from_dict(value: dict[str, Any]) -> Event:
    """An event from plain data; an unknown type raises ValueError."""
    cls = EVENT_TYPES.get(value.get("type", ""))
    if cls is None:
        raise ValueError(f"unknown event type {value.get('type')!r}")
    return convert(value, cls)
