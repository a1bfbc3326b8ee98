"""Event classes. An event reports what happened; it never requests anything."""

from typing import Any, ClassVar, TypeGuard, cast, get_args

import msgspec

from outrider.types.codec import load_part, to_plain_values
from outrider.types.ids import now_ms
from outrider.types.origins import DataFlow
from outrider.types.outcomes import CallEffect, CommandOutcome, RuleWidth
from outrider.types.parts import CacheTokens, Tokens
from outrider.types.validate import convert


class Event(msgspec.Struct, kw_only=True, frozen=True, tag_field="type", tag=True):
    """Base class of events. A subclass declares its stored name with `tag`; the default is its class name.

    `droppable` events are deltas: a slow listener may miss them, because the full value follows."""

    droppable: ClassVar[bool] = False
    timestamp: int = msgspec.field(default_factory=now_ms)
    session_id: str = ""
    agent_name: str = ""
    call_id: str = ""
    parent_call_id: str = ""

    @property
    def event_type(self) -> str:
        """The stored name of the event class."""
        return str(self.__struct_config__.tag)

    def to_dict(self) -> dict[str, Any]:
        """Returns the event as plain values."""
        return to_plain_values(self)


class LoopStartedEvent(Event, frozen=True, tag="LoopStartedEvent"):
    """A turn has started."""

    user_message: str = ""


class LoopCompletedEvent(Event, frozen=True, tag="LoopCompletedEvent"):
    """A turn has ended, with its reason, its number of steps and its output."""

    termination_reason: str = ""
    total_turns: int = 0
    duration_ms: int = 0
    output: str = ""


class TurnStartedEvent(Event, frozen=True, tag="TurnStartedEvent"):
    """A step of the turn, one model answer with its calls, has started."""

    turn_number: int
    max_turns: int | None = None


class TurnCompletedEvent(Event, frozen=True, tag="TurnCompletedEvent"):
    """A step of the turn, one model answer with its calls, has ended."""

    turn_number: int
    tool_calls_count: int = 0


class StateChangedEvent(Event, frozen=True, tag="StateChangedEvent"):
    """The state of a turn has changed, for example from `calling_model` to `running_tools`."""

    old_state: str
    new_state: str


class LLMRequestEvent(Event, frozen=True, tag="LLMRequestEvent"):
    """A request is sent to a model."""

    message_count: int
    has_tools: bool = False
    model: str = ""
    provider: str = ""
    vendor: str = ""


class RequestChangedEvent(Event, frozen=True, tag="RequestChangedEvent"):
    """A hook changed a request before it was sent, or it changed the previous one and did not change this one. The
    previous request had `previous_messages` messages. The first `cached_messages` of them are sent unchanged, so a
    provider can read them from its cache; the other ones are charged again."""

    messages_before: int
    messages_after: int
    previous_messages: int = 0
    cached_messages: int = 0


class LLMResponseEvent(Event, frozen=True, tag="LLMResponseEvent"):
    """A step of a model has ended. Token counts are disjoint, as in `Tokens`, and include the tokens of failed attempts
    (`withdrawn_tokens`). `cost` is an exact decimal string; None if no price is known. `cache_miss` says why the
    provider's cache was not used."""

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
    vendor: str = ""
    withdrawn_tokens: int = 0
    cache_miss: str = ""

    @property
    def tokens(self) -> Tokens:
        """The tokens of the answer as one value."""
        cache = CacheTokens(self.cache_read_tokens, self.cache_write_tokens)
        return Tokens(self.input_tokens, self.output_tokens, self.reasoning_tokens, cache)


class CacheMissEvent(Event, frozen=True, tag="CacheMissEvent"):
    """A request could not use the provider's prompt cache, or the provider did not use it. `offset` is the first byte
    that differs from the previous request. `cached` is the share of the prompt that was read from the cache,
    `achievable` the share that is equal to the previous request."""

    cause: str
    detail: str = ""
    offset: int = 0
    cached: float = 0.0
    achievable: float = 0.0
    model: str = ""


class ToolExecutionStartedEvent(Event, frozen=True, tag="ToolExecutionStartedEvent"):
    """A tool call runs; its start is stored."""

    tool_name: str
    tool_input: dict[str, Any] = {}


class ToolExecutionCompletedEvent(Event, frozen=True, tag="ToolExecutionCompletedEvent"):
    """A tool call has ended. `reason` is the reason of the error state, `origins` describe where the result comes from,
    and `exit_code` is the exit code of a command."""

    tool_name: str
    success: bool = True
    duration_ms: int = 0
    output_preview: str = ""
    reason: str = ""
    origins: tuple[str, ...] = ()
    exit_code: int | None = None


class ToolApprovalRequestedEvent(Event, frozen=True, tag="ToolApprovalRequestedEvent"):
    """A call needs approval.

    - `tool_name`, `tool_input`: the tool and its arguments.
    - `description`: why the call needs an approval.
    - `approval_id`: the id of the request.
    - `offers`: the rules that a lasting answer would store.
    - `can_last`: whether a lasting answer is possible.
    - `server`: the URL of the server on which the call would run, if it is another one.
    - `outcome`: what a command changed in the sandbox; the question is then what to do with its changes.
    - `contents`: the hashes of files that a lasting answer would approve.
    - `widths`: what a lasting answer may cover.
    - `effects`: what the call does.
    - `preview`: a unified diff of what the call would change.
    - `position`: the position of the call in the model's answer.
    - `flow`: the data that the call would send after the session has read untrusted text.
    """

    tool_name: str
    description: str = ""
    approval_id: str = ""
    tool_input: dict[str, Any] = {}
    offers: tuple[str, ...] = ()
    can_last: bool = False
    server: str = ""
    outcome: CommandOutcome | None = None
    contents: tuple[str, ...] = ()
    widths: tuple[RuleWidth, ...] = ()
    effects: tuple[CallEffect, ...] = ()
    preview: str = ""
    position: int = 0
    flow: DataFlow | None = None


class ToolApprovalResultEvent(Event, frozen=True, tag="ToolApprovalResultEvent"):
    """An approval request has its answer."""

    tool_name: str
    approved: bool
    approval_id: str = ""
    scope: str = "once"
    answered_by: str = ""


class MessageAddedEvent(Event, frozen=True, tag="MessageAddedEvent"):
    """A message was added. `seq` is the sequence number of the change; None for an answer that has just started and is
    stored a moment later."""

    role: str
    part_count: int = 0
    message_id: str = ""
    seq: int | None = None


class ContextCompactionEvent(Event, frozen=True, tag="ContextCompactionEvent"):
    """Earlier messages were replaced by a summary in the prompt."""

    tokens_before: int
    tokens_after: int
    messages_removed: int = 0


class PartUpdatedEvent(Event, frozen=True, tag="PartUpdatedEvent"):
    """The full value of a part that was added, changed or ended. `seq` is the sequence number of the change."""

    part: Any
    seq: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.part, dict):
            msgspec.structs.force_setattr(self, "part", load_part(cast("dict[str, Any]", self.part)))


class PartDeltaEvent(Event, frozen=True, tag="PartDeltaEvent"):
    """A streamed chunk of text or reasoning; `field` says which."""

    droppable: ClassVar[bool] = True
    message_id: str
    part_id: str
    delta: str
    field: str = "text"


class ToolInputDeltaEvent(Event, frozen=True, tag="ToolInputDeltaEvent"):
    """A streamed chunk of a call's input."""

    droppable: ClassVar[bool] = True
    message_id: str
    part_id: str
    delta: str
    tool_name: str = ""


class ToolOutputEvent(Event, frozen=True, tag="ToolOutputEvent"):
    """A chunk of output of a running call."""

    droppable: ClassVar[bool] = True
    tool_name: str
    output: str
    stream: str = "stdout"


class RetryScheduledEvent(Event, frozen=True, tag="RetryScheduledEvent"):
    """A model request failed and is sent again after `delay_ms`. `withdrawn` are the ids of the parts that were shown
    and are not part of the answer. With `model` (PROVIDER/MODEL) another model continues the step."""

    attempt: int
    delay_ms: int
    error: str
    max_attempts: int | None = None
    withdrawn: tuple[str, ...] = ()
    model: str = ""


class ModelSilentEvent(Event, frozen=True, tag="ModelSilentEvent"):
    """A model has sent no part of its answer for `silent_ms`. Published while the wait continues."""

    silent_ms: int
    model: str = ""


class ModelProgressEvent(Event, frozen=True, tag="ModelProgressEvent"):
    """A model in this process prepares its answer. `stage` is `loading` (the weights) or `reading` (the prompt, of
    which `done` of `total` tokens are evaluated)."""

    droppable: ClassVar[bool] = True
    stage: str
    done: int = 0
    total: int = 0


class BudgetExceededEvent(Event, frozen=True, tag="BudgetExceededEvent"):
    """A limit of the run was reached; the turn ends with the reason `limit`."""

    limit: str
    maximum: str
    reached: str = ""


class AgentCalledEvent(Event, frozen=True, tag="AgentCalledEvent"):
    """`agent_name` calls the agent `callee`; AgentReturnedEvent has the same `call_id`."""

    callee: str
    message: str = ""
    child_session_id: str = ""


class AgentReturnedEvent(Event, frozen=True, tag="AgentReturnedEvent"):
    """A called agent has returned to its caller, with its output or an error."""

    callee: str
    output: str = ""
    success: bool = True
    duration_ms: int = 0
    child_session_id: str = ""


class SessionUpdatedEvent(Event, frozen=True, tag="SessionUpdatedEvent"):
    """Fields of a session that changed: title, mode, agent, usage."""

    changes: dict[str, Any] = {}
    seq: int | None = None


class ProcessStartedEvent(Event, frozen=True, tag="ProcessStartedEvent"):
    """A background process was started."""

    process_id: str
    command: str
    pid: int | None = None


class ProcessOutputEvent(Event, frozen=True, tag="ProcessOutputEvent"):
    """A chunk of the output of a background process."""

    droppable: ClassVar[bool] = True
    process_id: str
    output: str
    stream: str = "stdout"


class ProcessExitedEvent(Event, frozen=True, tag="ProcessExitedEvent"):
    """A background process has ended, by itself or by a signal."""

    process_id: str
    exit_code: int | None = None
    signal: str | None = None


class FilesRestoredEvent(Event, frozen=True, tag="FilesRestoredEvent"):
    """File changes were undone or redone. `left_alone` are files that were not restored, because another program may
    have changed them since then. `message_id` is the note in the transcript."""

    direction: str
    files: tuple[str, ...] = ()
    left_alone: tuple[str, ...] = ()
    message_id: str = ""


class DeltasDroppedEvent(Event, frozen=True, tag="DeltasDroppedEvent"):
    """This listener was too slow and missed `count` deltas; full values follow."""

    count: int


class ErrorEvent(Event, frozen=True, tag="ErrorEvent"):
    """An error ended a turn or another operation; `error_type` is the class name of the exception."""

    error_type: str
    message: str


StandardEvent = (
    LoopStartedEvent
    | LoopCompletedEvent
    | TurnStartedEvent
    | TurnCompletedEvent
    | StateChangedEvent
    | LLMRequestEvent
    | RequestChangedEvent
    | CacheMissEvent
    | LLMResponseEvent
    | ToolExecutionStartedEvent
    | ToolExecutionCompletedEvent
    | ToolApprovalRequestedEvent
    | ToolApprovalResultEvent
    | MessageAddedEvent
    | ContextCompactionEvent
    | PartUpdatedEvent
    | PartDeltaEvent
    | ToolInputDeltaEvent
    | ToolOutputEvent
    | RetryScheduledEvent
    | ModelSilentEvent
    | ModelProgressEvent
    | BudgetExceededEvent
    | AgentCalledEvent
    | AgentReturnedEvent
    | SessionUpdatedEvent
    | ProcessStartedEvent
    | ProcessOutputEvent
    | ProcessExitedEvent
    | FilesRestoredEvent
    | DeltasDroppedEvent
    | ErrorEvent
)
"""Every event class of this package. With a `match` over it that ends with `assert_never`, the type checker reports a
new class that is not handled."""

ActivityEvent = (
    LoopStartedEvent
    | TurnStartedEvent
    | TurnCompletedEvent
    | StateChangedEvent
    | RequestChangedEvent
    | CacheMissEvent
    | ModelSilentEvent
    | ModelProgressEvent
)
"""What a turn does at the moment. A program that reads only complete values does not need these events."""

CallProgressEvent = (
    ToolInputDeltaEvent
    | ToolOutputEvent
    | ToolExecutionStartedEvent
    | ToolExecutionCompletedEvent
    | ProcessStartedEvent
    | ProcessOutputEvent
    | ProcessExitedEvent
)
"""What a call does. A program that reads only complete values does not need these events: `PartUpdatedEvent` has the
call."""

EVENT_TYPES: dict[str, type[Event]] = {str(cls.__struct_config__.tag): cls for cls in get_args(StandardEvent)}


def is_standard_event(event: Event) -> TypeGuard[StandardEvent]:
    """Returns False for an event class that a program has added."""
    return type(event) in _STANDARD or isinstance(event, _STANDARD_CLASSES)


_STANDARD_CLASSES = tuple(EVENT_TYPES.values())
_STANDARD = frozenset(_STANDARD_CLASSES)


def event_from_dict(value: dict[str, Any]) -> Event:
    """Builds an event from plain data. Raises ValueError for an unknown type."""
    cls = EVENT_TYPES.get(value.get("type", ""))
    if cls is None:
        raise ValueError(f"unknown event type {value.get('type')!r}")
    return convert(value, cls)
