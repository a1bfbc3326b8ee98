"""The record of what agents did: bounded, safe to fill from several threads, and kept as JSON."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from outrider.event_bus import EventBus
from outrider.tracing.event_record import AgentEvent, EventKind, bounded, record_line
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    ErrorEvent,
    Event,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    RetryScheduledEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
)

OPEN_LIMIT = 10_000
FAILURES = ("error", "fail", "crash")
_LLM_NUMBERS = (
    "input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "duration_ms",
)


class Recorder:
    """Turns events into records. What has begun and not ended waits in `open`, as the record its end will become."""

    def __init__(self) -> None:
        self.open: dict[tuple[str, str, str], AgentEvent] = {}
        self._notes: dict[tuple[str, str], dict[str, Any]] = {}
        self._makers: dict[type[Event], Callable[[Any], AgentEvent | None]] = {
            LoopStartedEvent: self._loop_started,
            LoopCompletedEvent: self._loop_completed,
            LLMRequestEvent: _llm_request,
            LLMResponseEvent: self._llm_response,
            ToolExecutionStartedEvent: self._tool_started,
            ToolExecutionCompletedEvent: self._tool_completed,
            ToolApprovalRequestedEvent: self._approval_requested,
            ToolApprovalResultEvent: self._approval_result,
            RetryScheduledEvent: self._retry,
            AgentCalledEvent: _agent_called,
            AgentReturnedEvent: _agent_returned,
            ErrorEvent: _error,
        }

    @property
    def heard(self) -> tuple[type[Event], ...]:
        return tuple(self._makers)

    def make(self, event: Event) -> AgentEvent | None:
        """The record of this event; None where it has none, or none yet."""
        maker = self._makers.get(type(event)) or self._maker_of_parent(event)
        return maker(event) if maker else None

    def _maker_of_parent(self, event: Event) -> Callable[[Any], AgentEvent | None] | None:
        return next((self._makers[cls] for cls in type(event).__mro__ if cls in self._makers), None)

    def resume(self, begun: list[AgentEvent]) -> None:
        """Take up what was open when a log was written."""
        self.open = {_key(record, record.type): record for record in begun}

    def _loop_started(self, event: LoopStartedEvent) -> None:
        self._begin(_record("finish", event, {"message": event.user_message}))

    def _loop_completed(self, event: LoopCompletedEvent) -> AgentEvent:
        self._notes.pop(_retries(event), None)
        failed = any(word in event.termination_reason.lower() for word in FAILURES)
        data = {
            "termination_reason": event.termination_reason,
            "total_turns": event.total_turns,
            "duration_ms": event.duration_ms,
            "output": event.output,
        }
        return self._end(_record("error" if failed else "finish", event, data), "finish")

    def _llm_response(self, event: LLMResponseEvent) -> AgentEvent:
        data: dict[str, Any] = {name: getattr(event, name) for name in _LLM_NUMBERS}
        data |= {"stop_reason": event.stop_reason, "has_tool_use": event.has_tool_use, "cost": event.cost}
        data |= {"model": event.model, "provider": event.provider, "first_token_ms": event.first_token_ms}
        data |= self._notes.pop(_retries(event), {})
        return _record("llm_response", event, data)

    def _retry(self, event: RetryScheduledEvent) -> None:
        notes = self._note(_retries(event))
        notes["retries"] = event.attempt
        notes["retry_wait_ms"] = notes.get("retry_wait_ms", 0) + event.delay_ms
        notes["retry_error"] = event.error[:500]

    def _tool_started(self, event: ToolExecutionStartedEvent) -> None:
        self._begin(_record("tool_exec", event, {"tool_name": event.tool_name, "input": event.tool_input}))

    def _tool_completed(self, event: ToolExecutionCompletedEvent) -> AgentEvent:
        data: dict[str, Any] = {
            "tool_name": event.tool_name,
            "success": event.success,
            "duration_ms": event.duration_ms,
            "output": event.output_preview,
        }
        if event.reason:
            data["reason"] = event.reason
        data |= self._notes.pop((event.session_id, event.call_id), {})
        return self._end(_record("tool_exec", event, data), "tool_exec")

    def _approval_requested(self, event: ToolApprovalRequestedEvent) -> None:
        self._note((event.session_id, event.call_id))["asked"] = event.timestamp

    def _approval_result(self, event: ToolApprovalResultEvent) -> None:
        notes = self._note((event.session_id, event.call_id))
        waited = event.timestamp - notes.pop("asked", event.timestamp)
        notes |= {"approved": event.approved, "approval_ms": max(0, waited)}

    def _begin(self, record: AgentEvent) -> None:
        record.data.update(started=record.timestamp, open=True)
        _make_room(self.open)
        self.open[_key(record, record.type)] = record

    def _end(self, record: AgentEvent, opened_as: EventKind) -> AgentEvent:
        begun = self.open.pop(_key(record, opened_as), None)
        if begun is not None:
            for name, value in begun.data.items():
                record.data.setdefault(name, value)
            record.data.pop("open", None)
        return record

    def _note(self, key: tuple[str, str]) -> dict[str, Any]:
        """Notes wait for the record that they belong to."""
        _make_room(self._notes)
        return self._notes.setdefault(key, {})


def _make_room(waiting: dict[Any, Any]) -> None:
    """What never ends must not pile up: the oldest gives way."""
    if len(waiting) >= OPEN_LIMIT:
        del waiting[next(iter(waiting))]


def _key(record: AgentEvent, opened_as: EventKind) -> tuple[str, str, str]:
    return opened_as, record.session_id or record.agent_name, record.call_id


def _retries(event: Event) -> tuple[str, str]:
    return event.session_id or event.agent_name, "retries"


def _record(kind: EventKind, event: Event, data: dict[str, Any]) -> AgentEvent:
    return AgentEvent(
        kind,
        event.agent_name,
        event.timestamp,
        event.call_id,
        event.parent_call_id,
        event.session_id,
        {name: bounded(value, 1) for name, value in data.items()},
    )


def _llm_request(event: LLMRequestEvent) -> AgentEvent:
    data = {"message_count": event.message_count, "has_tools": event.has_tools}
    return _record("llm_call", event, data | {"model": event.model, "provider": event.provider})


def _agent_called(event: AgentCalledEvent) -> AgentEvent:
    data = {"callee": event.callee, "message": event.message, "child_session_id": event.child_session_id}
    return _record("agent_call", event, data)


def _agent_returned(event: AgentReturnedEvent) -> AgentEvent:
    data = {"callee": event.callee, "output": event.output, "success": event.success}
    data |= {"duration_ms": event.duration_ms, "child_session_id": event.child_session_id}
    return _record("agent_return", event, data)


def _error(event: ErrorEvent) -> AgentEvent:
    return _record("error", event, {"error_type": event.error_type, "message": event.message})


__all__ = ["AgentEvent", "Dropped", "EventLog"]

MAXIMUM = 100_000


class Dropped(msgspec.Struct, frozen=True):
    """What a full log had to let go of: the oldest records, counted by type, and the time they cover."""

    count: int = 0
    by_type: dict[str, int] = {}
    first_timestamp: int | None = None
    last_timestamp: int | None = None

    def plus(self, event: AgentEvent) -> "Dropped":
        return Dropped(
            self.count + 1,
            self.by_type | {event.type: self.by_type.get(event.type, 0) + 1},
            event.timestamp if self.first_timestamp is None else self.first_timestamp,
            event.timestamp,
        )


class _Stored(msgspec.Struct, frozen=True):
    events: list[AgentEvent]
    unfinished: list[AgentEvent] = []
    dropped: Dropped = Dropped()
    maximum: int = MAXIMUM


class EventLog:
    """Keeps the newest `maximum` records; `dropped` says what is gone."""

    def __init__(self, maximum: int = MAXIMUM) -> None:
        if maximum < 1:
            raise ValueError(f"an event log keeps at least one record, not {maximum}")
        self.maximum = maximum
        self.dropped = Dropped()
        self._events: deque[AgentEvent] = deque()
        self._recorder = Recorder()
        self._lock = threading.Lock()

    def attach(self, bus: EventBus) -> Callable[[], None]:
        """Record what the bus says from now on. Returns what ends that."""
        ends = [bus.subscribe(cls, self._hear) for cls in self._recorder.heard]

        def detach() -> None:
            for end in ends:
                end()

        return detach

    def _hear(self, event: Event) -> None:
        """What a listener gives back, a bus would look at."""
        self.record(event)

    def record(self, event: Event | AgentEvent) -> AgentEvent | None:
        """Add an event of the bus, or a record made by hand. None where the event has no record, or none yet."""
        with self._lock:
            record = self._recorder.make(event) if isinstance(event, Event) else _copy(event)
            if record is not None:
                self._append(record)
        return record

    @property
    def events(self) -> list[AgentEvent]:
        return self.snapshot()[0]

    @property
    def unfinished(self) -> list[AgentEvent]:
        """What has begun and not ended: each as the record that its end will become, with `open` in its data."""
        return self.snapshot()[1]

    def snapshot(self) -> tuple[list[AgentEvent], list[AgentEvent]]:
        """`events` and `unfinished` of one moment."""
        with self._lock:
            return list(self._events), list(self._recorder.open.values())

    def filter(self, agent_name: str | None = None, event_type: EventKind | None = None) -> list[AgentEvent]:
        return [
            event
            for event in self.events
            if agent_name in (None, event.agent_name) and event_type in (None, event.type)
        ]

    def format(self) -> str:
        """One line per record, with the time since the first."""
        events = self.events
        start = min((event.timestamp for event in events), default=0)
        lines = [record_line(event, start) for event in events]
        if self.dropped.count:
            lines.insert(0, f"({self.dropped.count:,} older records were dropped)")
        return "\n".join(lines)

    def clear(self) -> None:
        with self._lock:
            self._events.clear()
            self._recorder = Recorder()
            self.dropped = Dropped()

    def to_json(self) -> bytes:
        with self._lock:
            unfinished = list(self._recorder.open.values())
            return msgspec.json.encode(_Stored(list(self._events), unfinished, self.dropped, self.maximum))

    @classmethod
    def from_json(cls, data: bytes | str) -> "EventLog":
        """A log as it was written; recording can go on, also of calls that were open. Raises ValueError."""
        try:
            stored = msgspec.json.decode(data, type=_Stored)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a stored event log: {error}") from error
        log = cls(max(stored.maximum, 1))
        log.dropped = stored.dropped
        log._recorder.resume(stored.unfinished)
        for event in stored.events:
            log._append(event)
        return log

    def _append(self, event: AgentEvent) -> None:
        self._events.append(event)
        if len(self._events) > self.maximum:
            self.dropped = self.dropped.plus(self._events.popleft())

    def __iter__(self) -> Iterator[AgentEvent]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        return f"EventLog({len(self)} records, {self.dropped.count} dropped)"


def _copy(event: AgentEvent) -> AgentEvent:
    return msgspec.structs.replace(event, data=bounded(event.data))
