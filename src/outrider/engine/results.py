"""What a run returns: `RunResult`, its stream of events, the stream for synchronous code, and a background run."""

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from copy import copy
from decimal import Decimal
from functools import cached_property, partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypedDict, TypeVar, assert_never, cast

import msgspec

from outrider._lazy import warn_of_old_name
from outrider._sync import describe_exception, describe_value
from outrider.agents.output_type import OutputType
from outrider.agents.turn_state import TerminationReason, TurnEnd
from outrider.errors import LimitReachedError, OutputMismatch, OutputUnavailableError, OutriderError
from outrider.sessions.session import Session
from outrider.types.agents import AgentMessage, Limits, Mode
from outrider.types.events import (
    ActivityEvent,
    AgentCalledEvent,
    AgentReturnedEvent,
    BudgetExceededEvent,
    CallProgressEvent,
    ContextCompactionEvent,
    DeltasDroppedEvent,
    ErrorEvent,
    Event,
    FilesRestoredEvent,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    RetryScheduledEvent,
    SessionUpdatedEvent,
    StandardEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    is_standard_event,
)
from outrider.types.parts import (
    FilePart,
    Part,
    ReasoningPart,
    RecordPart,
    TextPart,
    Tokens,
    ToolPart,
    Usage,
    is_standard_part,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from outrider.tracing.event_log import EventLog
    from outrider.tracing.trace import Trace

    Out = TypeVarWithDefault("Out", default=Any)
else:
    Out = TypeVar("Out")


class RunResult(Generic[Out]):
    """How a run or a turn ended, and what it produced.

    - `output`: the value of the output type, or the text if none was requested.
    - `text`: the entry agent's last text, also if a value was requested.
    - `termination_reason`, `reason`: why it ended.
    - `limit`: which limit was reached.
    - `error`: what failed.
    - `messages`: the calls and returns between agents.
    - `session`: the entry agent's transcript.
    - `usage`, `cost`: the total of all agents.
    """

    def __init__(
        self,
        end: TurnEnd | None = None,
        *,
        session: Session,
        usage: Usage | None = None,
        messages: Sequence[AgentMessage] = (),
        event_log: "Callable[[], EventLog] | EventLog | None" = None,
        output_type: OutputType | None = None,
        value: Any = msgspec.UNSET,
        output: Any = None,
        termination_reason: TerminationReason = "completed",
    ) -> None:
        """Without `end` the arguments are those of version 0.1: `output` and `termination_reason` (deprecated)."""
        if end is None:
            warn_of_old_name("RunResult(output=…, termination_reason=…)", "RunResult(TurnEnd(…))")
            end = TurnEnd(termination_reason, output if isinstance(output, str) else "")
            value = msgspec.UNSET if isinstance(output, str) else output
        self.text = end.output
        self.termination_reason: TerminationReason = end.reason
        self.error = end.error
        self.session = session
        self.usage = usage or Usage()
        self.messages = list(messages)
        self._event_log = event_log
        self._output_type = output_type
        self._type_name = _type_name(output_type)
        self._value = value

    @property
    def output(self) -> Out:
        """The value of the output type. Raises OutputUnavailableError if the run ended without one."""
        if self._value is msgspec.UNSET and not self._type_name:
            return cast("Out", self.text)
        if self._value is msgspec.UNSET:
            cause = f" ({self.error.message})" if self.error else ""
            raise OutputUnavailableError(
                f"the run ended with the reason {self.reason!r}{cause} before there was a value of "
                f"{self._type_name}; `result.text` has the text so far",
                reason=self.reason,
                result=self,
            )
        return self._value

    @property
    def is_typed(self) -> bool:
        """Whether a value of another type than `str` was requested."""
        return bool(self._type_name)

    @property
    def reason(self) -> TerminationReason:
        """Why the run ended; the same value as `termination_reason`."""
        return self.termination_reason

    @property
    def limit(self) -> str | None:
        """The name of the limit that ended the run, such as "turns" or "cost"; None for another end."""
        return self.error.limit if isinstance(self.error, LimitReachedError) else None

    @property
    def cost(self) -> Decimal | None:
        """The cost of all agents in US dollars, None if a price is unknown."""
        return self.usage.total_cost

    @cached_property
    def event_log(self) -> "EventLog":
        """The records of what the agents did."""
        from outrider.tracing.event_log import EventLog  # lazy, as below: front ends do not read them

        log = EventLog() if self._event_log is None else self._event_log
        return log if isinstance(log, EventLog) else log()

    @cached_property
    def trace(self) -> "Trace":
        """The tree of spans, built from the event log on first use."""
        from outrider.tracing.trace import Trace

        return Trace(self.event_log)

    def format_trace(self) -> str:
        """Returns the trace as an indented text."""
        return self.trace.format_tree()

    def __getstate__(self) -> dict[str, Any]:
        """Returns what can be pickled: the event log and the session as JSON values."""
        state = {**self.__dict__, "_event_log": self.event_log.to_json(), "session": self.session.to_dict()}
        for name in ("event_log", "trace"):
            state.pop(name, None)
        state["_output_type"] = None  # it refers to functions of the program, which may not be picklable
        if self.error is not None:
            state["error"] = copy(self.error)
            state["error"].details = {
                name: value
                for name, value in self.error.details.items()
                if value is not self and _can_be_pickled(value)  # providers of the program may attach any value
            }
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.session = Session.from_dict(state["session"])
        self._event_log = partial(_read_event_log, state["_event_log"])

    def __repr__(self) -> str:
        has_value = self._value is not msgspec.UNSET
        value_text = f"output={describe_value(self._value)}" if has_value else f"text={self.text!r}"
        limit = f", limit={self.limit!r}" if self.limit else ""
        error = f", error={describe_exception(self.error)!r}" if self.error else ""
        return f"RunResult({value_text}, termination_reason={self.termination_reason!r}{limit}{error})"


def result_of_type(result: RunResult[Any], output_type: OutputType | None) -> RunResult[Any]:
    """Returns the result for an input that requested another output type than the turn had: an input that steered a
    running turn, that started no turn, or whose turn was aborted. Its text is never returned in place of a value."""
    if output_type is result._output_type:  # pyright: ignore[reportPrivateUsage]  programs do not need this field
        return result
    value: Any = msgspec.UNSET
    if output_type is not None and result.reason == "completed" and not output_type.validators:
        with suppress(OutputMismatch):
            value = output_type.parse_answer(result.text)
    return RunResult(
        TurnEnd(result.reason, result.text, result.error),
        session=result.session,
        usage=result.usage,
        messages=result.messages,
        event_log=lambda: result.event_log,
        output_type=output_type,
        value=value,
    )


def _type_name(output_type: OutputType | None) -> str:
    """Returns the name of the requested type, "" for text."""
    return "" if output_type is None or output_type.is_text else output_type.name


def _can_be_pickled(value: object) -> bool:
    import pickle  # lazy: few programs move results between processes

    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001  the functions of any class are called
        return False
    return True


Out_co = TypeVar("Out_co", covariant=True)


class RunPlacement(Protocol):
    """The position of a background run in its queue; `outrider.QueuePlacement` implements it."""

    @property
    def queue(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def after(self) -> float: ...
    @property
    def after_run(self) -> str: ...


class RunTerms(Protocol):
    """What a background run changes in the settings of its worker; `outrider.JobOverrides` implements it."""

    @property
    def model(self) -> str: ...
    @property
    def effort(self) -> str: ...
    @property
    def allow(self) -> tuple[str, ...]: ...
    @property
    def ask(self) -> tuple[str, ...]: ...
    @property
    def deny(self) -> tuple[str, ...]: ...


class SubmitKeywords(TypedDict, total=False):
    """The keyword arguments of `Engine.submit`; `place` is a `QueuePlacement` and `terms` a `JobOverrides`."""

    owner: str
    metadata: dict[str, Any]
    workspace: str
    agent: str
    mode: Mode
    limits: Limits | None
    place: RunPlacement
    run_id: str | None
    worktree: bool
    webhook: str
    terms: RunTerms


class SubmittedOutcome(Protocol):
    """How a background run ended."""

    @property
    def reason(self) -> str: ...
    @property
    def output(self) -> str: ...
    @property
    def error(self) -> str: ...
    @property
    def steps(self) -> int: ...
    @property
    def tokens(self) -> Tokens: ...
    @property
    def cost(self) -> Decimal | None: ...
    @property
    def seconds(self) -> float: ...


class SubmittedReport(Protocol):
    """The report of a background run."""

    @property
    def summary(self) -> str: ...
    @property
    def outcome(self) -> SubmittedOutcome: ...
    @property
    def changes(self) -> Any: ...


class SubmittedState(Protocol):
    """The state of a background run."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def attempts(self) -> int: ...
    @property
    def outcome(self) -> SubmittedOutcome | None: ...
    @property
    def is_over(self) -> bool: ...


class SubmittedRun(Protocol[Out_co]):
    """A background run; `outrider.RunHandle` implements it."""

    id: str

    async def show(self) -> SubmittedState: ...
    async def result(self) -> SubmittedReport: ...
    async def output(self) -> Out_co: ...
    async def cancel(self) -> None: ...
    def events(self, *, after: int = 0, called: bool = False) -> AsyncGenerator[Any, None]: ...


class RunSubmitter(Protocol):
    """Accepts background runs; `outrider.Background` implements it."""

    async def submit(self, prompt: str, *, output_type: Any = None, **order: Any) -> SubmittedRun[Any]: ...


def _read_event_log(stored: bytes) -> "EventLog":
    from outrider.tracing.event_log import EventLog

    return EventLog.from_json(stored)


StreamKind = Literal[
    "token",
    "reasoning",
    "partial",
    "tool_call",
    "tool_result",
    "agent_call",
    "agent_return",
    "retry",
    "finish",
    "error",
]
_DELEGATION_TOOLS = ("call_agent", "finish")


class StreamEvent(msgspec.Struct, frozen=True):
    """One event of a stream. The `type` determines the fields of `data`:

    - `token`, `reasoning`: text.
    - `partial`: value, the incomplete value of a run with an output type.
    - `tool_call`: call_id, tool, input.
    - `tool_result`: call_id, tool, output, is_error.
    - `agent_call`: call_id, agent_name, message.
    - `agent_return`: call_id, agent_name, output.
    - `retry`: attempt, delay_ms, error, withdrawn, model. With withdrawn, the text, reasoning and calls of this agent
      since its last step are invalid, because the answer was interrupted; none of these calls has run. With model
      (PROVIDER/MODEL), another model continues.
    - `finish`: output; also value for a run with an output type, and reason and limit if the run ended early.
    - `error`: type, message.

    The last event is one `finish` or `error` of the entry agent.
    """

    type: StreamKind
    agent_name: str
    data: dict[str, Any]


_UnstreamedEvent = (  # only listeners of the bus receive these events
    ActivityEvent
    | CallProgressEvent
    | LoopCompletedEvent
    | LLMResponseEvent
    | MessageAddedEvent
    | PartUpdatedEvent
    | ContextCompactionEvent
    | BudgetExceededEvent
    | SessionUpdatedEvent
    | FilesRestoredEvent
    | DeltasDroppedEvent
    | ToolApprovalRequestedEvent
    | ToolApprovalResultEvent
)

# Text and reasoning are streamed as deltas. There is no event type for files; the session of the result contains them.
_UnstreamedPart = TextPart | ReasoningPart | FilePart | RecordPart


class StreamTranslator:
    """Translates bus events into stream events. Part events have no agent name, so the agent of each session is
    cached. With an output type, the text of the entry agent is parsed while it arrives."""

    def __init__(self, output: OutputType | None = None) -> None:
        self._agents: dict[str, str] = {}
        from outrider.presentation.turn_updates import CallReporter  # lazy: most runs have no stream

        self._calls = CallReporter()
        self._failed: dict[str, ErrorEvent] = {}
        self._output = output
        self._text = ""
        self._parse_at = 0
        self.partial: Any = None

    def translate_event(self, event: Event) -> Iterator[StreamEvent]:
        """Yields the stream events for one bus event; most types of events have none."""
        if event.agent_name:
            self._agents[event.session_id] = event.agent_name
        if is_standard_event(event):
            yield from self._standard_events(event, self._agents.get(event.session_id, ""))

    def _standard_events(self, event: StandardEvent, agent: str) -> Iterator[StreamEvent]:
        match event:
            case PartDeltaEvent():
                yield StreamEvent("reasoning" if event.field == "reasoning" else "token", agent, {"text": event.delta})
                yield from self._translate_partial(event, agent)
            case PartUpdatedEvent(part=part) if is_standard_part(part):
                yield from self._translate_part(part, agent)
            case AgentCalledEvent():
                data = {"call_id": event.call_id, "agent_name": event.callee, "message": event.message}
                yield StreamEvent("agent_call", agent, data)
            case AgentReturnedEvent():
                data = {"call_id": event.call_id, "agent_name": event.callee, "output": event.output}
                yield StreamEvent("agent_return", agent, data)
            case LLMRequestEvent() | RetryScheduledEvent():
                yield from self._translate_request(event, agent)
            case ErrorEvent():
                self._failed[event.session_id] = event
            case LoopCompletedEvent() if event.parent_call_id:  # the stream itself reports the end of the entry agent
                yield self._translate_end(event, agent)
            case _:
                _ignored: _UnstreamedEvent = event

    def _translate_request(self, event: LLMRequestEvent | RetryScheduledEvent, agent: str) -> Iterator[StreamEvent]:
        """Discards the text and the value of the previous answer, which was withdrawn, rejected, or not the last one.
        Yields an event for a retry."""
        if not event.parent_call_id:
            self._text, self._parse_at, self.partial = "", 0, None
        if isinstance(event, RetryScheduledEvent):
            data: dict[str, Any] = {"attempt": event.attempt, "delay_ms": event.delay_ms, "error": event.error}
            yield StreamEvent("retry", agent, data | {"withdrawn": bool(event.withdrawn), "model": event.model or None})

    def _translate_end(self, event: LoopCompletedEvent, agent: str) -> StreamEvent:
        error = self._failed.get(event.session_id)
        if error is not None and event.termination_reason == "error":
            return StreamEvent("error", agent, {"type": error.error_type, "message": error.message})
        return StreamEvent("finish", agent, {"output": event.output})

    def _translate_part(self, part: Part, agent: str) -> Iterator[StreamEvent]:
        match part:
            case ToolPart():
                if part.tool not in _DELEGATION_TOOLS:
                    yield from self._translate_call(part, agent)
            case _:
                _ignored: _UnstreamedPart = part

    def _translate_call(self, part: ToolPart, agent: str) -> Iterator[StreamEvent]:
        from outrider.presentation.turn_updates import CallEnded, CallStarted

        call = {"call_id": part.call_id, "tool": part.tool}
        for update in self._calls.call_updates(part):
            match update:
                case CallStarted():
                    yield StreamEvent("tool_call", agent, {**call, "input": part.state.input})
                case CallEnded(result=result):
                    ended = {"output": result.content, "is_error": result.is_error}
                    yield StreamEvent("tool_result", agent, {**call, **ended})
                case _:
                    assert_never(update)

    def _translate_partial(self, event: PartDeltaEvent, agent: str) -> Iterator[StreamEvent]:
        if self._output is None or event.field != "text" or event.parent_call_id:
            return
        self._text += event.delta
        if len(self._text) < self._parse_at:
            return
        self._parse_at = len(self._text) * 51 // 50 + 4  # each attempt reads the whole text
        value = self._output.parse_partial(self._text)
        if value is not None and value != self.partial:
            self.partial = value
            yield StreamEvent("partial", agent, {"value": value})


def final_event(agent: str, result: "RunResult[Any] | None", error: OutriderError | None) -> StreamEvent:
    """Returns the last event of a stream."""
    if error is not None or result is None:
        message = error.message if error else "the run ended without a result"
        return StreamEvent("error", agent, {"type": type(error or OutriderError("")).__name__, "message": message})
    data: dict[str, Any] = {"output": result.text}
    if result.reason != "completed":
        data |= {"reason": result.reason, "limit": result.limit}
    elif result.is_typed:
        data["value"] = result.output
    return StreamEvent("finish", agent, data)


class StreamState(Generic[Out]):
    """What a stream and its generator share. The generator's frame has no reference to the stream, so that the stream
    is collected, and the run is cancelled, when the program leaves the loop."""

    def __init__(self, translator: StreamTranslator) -> None:
        self.translator = translator
        self.result: RunResult[Out] | None = None


class RunStream(Generic[Out], AsyncIterator[StreamEvent]):
    """The events of a run, from its start to one `finish` or `error`. `result` is set after the last event; `partial`
    is the incomplete value of a run with an output type. Closing the stream, leaving its `async with` block or deleting
    it cancels the run."""

    def __init__(self, events: AsyncGenerator[StreamEvent, None], state: StreamState[Out]) -> None:
        self._events = events
        self._state = state

    @property
    def result(self) -> RunResult[Out]:
        """The result of the run. Raises OutriderError before the last event."""
        if self._state.result is None:
            raise OutriderError("this stream has no result yet; read its events to the end first")
        return self._state.result

    @property
    def partial(self) -> Out | None:
        """The value in the text of the current answer so far, and at the end the output; None before there is one."""
        return self._state.translator.partial

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        return await self._events.__anext__()

    async def aclose(self) -> None:
        """Cancels the run, if it is active."""
        await self._events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class SyncRunStream(Generic[Out], Iterator[StreamEvent]):
    """`RunStream` for synchronous code: an event loop in another thread executes the run. `close`, leaving the `with`
    block or deleting the stream cancels it."""

    def __init__(self, open_stream: "Callable[[], RunStream[Out]]") -> None:
        self._worker = _StreamThread(open_stream)
        self._is_started = False
        self._cancel = weakref.finalize(self, self._worker.cancel)

    @property
    def result(self) -> RunResult[Out]:
        """The result of the run. Raises OutriderError before the last event."""
        stream = self._worker.stream
        if stream is None:
            raise OutriderError("this stream has no result yet; read its events to the end first")
        return stream.result

    @property
    def partial(self) -> Out | None:
        """The value in the text of the current answer so far, and at the end the output; None before there is one."""
        return self._worker.stream.partial if self._worker.stream else None

    def __next__(self) -> StreamEvent:
        if not self._cancel.alive:
            raise StopIteration
        if not self._is_started:
            self._is_started = True
            self._worker.start()
        event = self._worker.received.get()
        if isinstance(event, StreamEvent):
            return event
        self._cancel.detach()
        self._worker.thread.join()
        if event is not None:
            raise event
        raise StopIteration

    def close(self) -> None:
        """Cancels the run, if it is active, and waits for its end."""
        if self._cancel() is not None and self._is_started:
            self._worker.thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _StreamThread(Generic[Out]):
    """The thread of a synchronous stream. It has no reference to the stream, so that the stream can be deleted."""

    def __init__(self, open_stream: "Callable[[], RunStream[Out]]") -> None:
        self._open_stream = open_stream
        self._task: Future[Callable[[], object]] = Future()  # set once the run can be cancelled
        self.received: SimpleQueue[StreamEvent | BaseException | None] = SimpleQueue()
        self.stream: RunStream[Out] | None = None
        self.thread = Thread(target=copy_context().run, args=(self._run_loop,), name="outrider-stream", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def cancel(self) -> bool:
        self._task.add_done_callback(_cancel_task)
        return True

    def _run_loop(self) -> None:
        try:
            asyncio.run(self._pass_events())
        except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
            self.received.put(error)
        else:
            self.received.put(None)

    async def _pass_events(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._task.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        self.stream = self._open_stream()
        async with self.stream as events:
            async for event in events:
                self.received.put(event)


def _cancel_task(task: "Future[Callable[[], object]]") -> None:
    with suppress(RuntimeError):  # the loop is closed: the run has already ended
        task.result()()
