"""Event log: a bounded, thread-safe list of records of what agents did, with JSON export and import."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from outrider.event_bus import EventBus, check_bus
from outrider.tracing.records import AgentEvent, EventKind, bounded_copy, bounded_values, record_line
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


class EventRecorder:
    """Converts events to records. `open` has the records of operations that have started and not ended."""

    def __init__(self) -> None:
        self.open: dict[tuple[str, str, str], AgentEvent] = {}
        self._notes: dict[tuple[str, str], dict[str, Any]] = {}
        self._makers: dict[type[Event], Callable[[Any], AgentEvent | None]] = {
            LoopStartedEvent: self._loop_started,
            LoopCompletedEvent: self._loop_completed,
            LLMRequestEvent: _request_record,
            LLMResponseEvent: self._llm_response,
            ToolExecutionStartedEvent: self._tool_started,
            ToolExecutionCompletedEvent: self._tool_completed,
            ToolApprovalRequestedEvent: self._approval_requested,
            ToolApprovalResultEvent: self._approval_result,
            RetryScheduledEvent: self._retry_scheduled,
            AgentCalledEvent: _agent_call_record,
            AgentReturnedEvent: _agent_return_record,
            ErrorEvent: _error_record,
        }

    @property
    def event_classes(self) -> tuple[type[Event], ...]:
        return tuple(self._makers)

    def make_record(self, event: Event) -> AgentEvent | None:
        """Returns the record of this event; None if it has none, or if the operation has not ended."""
        maker = self._makers.get(type(event)) or self._maker_for_base_class(event)
        return maker(event) if maker else None

    def _maker_for_base_class(self, event: Event) -> Callable[[Any], AgentEvent | None] | None:
        return next((self._makers[cls] for cls in type(event).__mro__ if cls in self._makers), None)

    def restore_open(self, opening: list[AgentEvent]) -> None:
        """Restores the open records of a stored log."""
        self.open = {_record_key(record, record.type): record for record in opening}

    def _loop_started(self, event: LoopStartedEvent) -> None:
        self._open_record(_make_record("finish", event, {"message": event.user_message}))

    def _loop_completed(self, event: LoopCompletedEvent) -> AgentEvent:
        self._notes.pop(_retry_key(event), None)
        failed = any(word in event.termination_reason.lower() for word in FAILURES)
        data = {
            "termination_reason": event.termination_reason,
            "total_turns": event.total_turns,
            "duration_ms": event.duration_ms,
            "output": event.output,
        }
        return self._close_record(_make_record("error" if failed else "finish", event, data), "finish")

    def _llm_response(self, event: LLMResponseEvent) -> AgentEvent:
        data: dict[str, Any] = {name: getattr(event, name) for name in _LLM_NUMBERS}
        data |= {"stop_reason": event.stop_reason, "has_tool_use": event.has_tool_use, "cost": event.cost}
        data |= {"model": event.model, "provider": event.provider, "first_token_ms": event.first_token_ms}
        data |= self._notes.pop(_retry_key(event), {})
        if event.cache_miss:
            data["cache_miss"] = event.cache_miss
        return _make_record("llm_response", event, data)

    def _retry_scheduled(self, event: RetryScheduledEvent) -> None:
        notes = self._pending_data(_retry_key(event))
        notes["retries"] = event.attempt
        notes["retry_wait_ms"] = notes.get("retry_wait_ms", 0) + event.delay_ms
        notes["retry_error"] = event.error[:500]

    def _tool_started(self, event: ToolExecutionStartedEvent) -> None:
        self._open_record(_make_record("tool_exec", event, {"tool_name": event.tool_name, "input": event.tool_input}))

    def _tool_completed(self, event: ToolExecutionCompletedEvent) -> AgentEvent:
        data: dict[str, Any] = {
            "tool_name": event.tool_name,
            "success": event.success,
            "duration_ms": event.duration_ms,
            "output": event.output_preview,
        }
        if event.reason:
            data["reason"] = event.reason
        if event.origins:
            data["origins"] = list(event.origins)
        data |= self._notes.pop((event.session_id, event.call_id), {})
        return self._close_record(_make_record("tool_exec", event, data), "tool_exec")

    def _approval_requested(self, event: ToolApprovalRequestedEvent) -> None:
        self._pending_data((event.session_id, event.call_id))["asked"] = event.timestamp

    def _approval_result(self, event: ToolApprovalResultEvent) -> None:
        notes = self._pending_data((event.session_id, event.call_id))
        waited = event.timestamp - notes.pop("asked", event.timestamp)
        notes |= {"approved": event.approved, "approval_ms": max(0, waited)}

    def _open_record(self, record: AgentEvent) -> None:
        record.data.update(started=record.timestamp, open=True)
        _make_room(self.open)
        self.open[_record_key(record, record.type)] = record

    def _close_record(self, record: AgentEvent, opened_as: EventKind) -> AgentEvent:
        opening = self.open.pop(_record_key(record, opened_as), None)
        if opening is not None:
            for name, value in opening.data.items():
                record.data.setdefault(name, value)
            record.data.pop("open", None)
        return record

    def _pending_data(self, key: tuple[str, str]) -> dict[str, Any]:
        """Returns data that is added to the record of a later event, such as retries of a request."""
        _make_room(self._notes)
        return self._notes.setdefault(key, {})


def _make_room(waiting: dict[Any, Any]) -> None:
    """Drops the oldest entry, since operations that never end would fill memory."""
    if len(waiting) >= OPEN_LIMIT:
        del waiting[next(iter(waiting))]


def _record_key(record: AgentEvent, opened_as: EventKind) -> tuple[str, str, str]:
    return opened_as, record.session_id or record.agent_name, record.call_id


def _retry_key(event: Event) -> tuple[str, str]:
    return event.session_id or event.agent_name, "retries"


def _make_record(kind: EventKind, event: Event, data: dict[str, Any]) -> AgentEvent:
    return AgentEvent(
        kind,
        event.agent_name,
        event.timestamp,
        event.call_id,
        event.parent_call_id,
        event.session_id,
        bounded_values(data),
    )


def _request_record(event: LLMRequestEvent) -> AgentEvent:
    data = {"message_count": event.message_count, "has_tools": event.has_tools}
    return _make_record("llm_call", event, data | {"model": event.model, "provider": event.provider})


def _agent_call_record(event: AgentCalledEvent) -> AgentEvent:
    data = {"callee": event.callee, "message": event.message, "child_session_id": event.child_session_id}
    return _make_record("agent_call", event, data)


def _agent_return_record(event: AgentReturnedEvent) -> AgentEvent:
    data = {"callee": event.callee, "output": event.output, "success": event.success}
    data |= {"duration_ms": event.duration_ms, "child_session_id": event.child_session_id}
    return _make_record("agent_return", event, data)


def _error_record(event: ErrorEvent) -> AgentEvent:
    return _make_record("error", event, {"error_type": event.error_type, "message": event.message})


__all__ = ["AgentEvent", "DroppedRecords", "EventLog"]

MAXIMUM = 100_000


class DroppedRecords(msgspec.Struct, frozen=True):
    """Number, types and time range of the oldest records, which a full log has dropped."""

    count: int = 0
    by_type: dict[str, int] = {}
    first_timestamp: int | None = None
    last_timestamp: int | None = None

    def plus(self, event: AgentEvent) -> "DroppedRecords":
        return DroppedRecords(
            self.count + 1,
            self.by_type | {event.type: self.by_type.get(event.type, 0) + 1},
            event.timestamp if self.first_timestamp is None else self.first_timestamp,
            event.timestamp,
        )


class _StoredEventLog(msgspec.Struct, frozen=True):
    events: list[AgentEvent]
    unfinished: list[AgentEvent] = []
    dropped: DroppedRecords = DroppedRecords()
    maximum: int = MAXIMUM


class EventLog:
    """Records of what agents did. It has the newest `maximum` records; `dropped` describes the others."""

    def __init__(self, maximum: int = MAXIMUM) -> None:
        if maximum < 1:
            raise ValueError(f"an event log keeps at least one record, not {maximum}")
        self.maximum = maximum
        self.dropped = DroppedRecords()
        self._events: deque[AgentEvent] = deque()
        self._recorder = EventRecorder()
        self._lock = threading.Lock()

    def attach(self, bus: EventBus) -> Callable[[], None]:
        """Records the events of a bus from now on. Returns a function that detaches."""
        check_bus(bus, "EventLog.attach()")
        return bus.subscribe(self._recorder.event_classes, self._handle_event)

    def _handle_event(self, event: Event) -> None:
        """Records an event and returns None, because a bus awaits a value that a handler returns."""
        self.record(event)

    def record(self, event: Event | AgentEvent) -> AgentEvent | None:
        """Adds an event, or a record that a program has made. Returns None if the event has no record (yet)."""
        with self._lock:
            record = self._recorder.make_record(event) if isinstance(event, Event) else _bounded_copy(event)
            if record is not None:
                self._append(record)
        return record

    @property
    def events(self) -> list[AgentEvent]:
        """A copy of the recorded events, oldest first."""
        return self.snapshot()[0]

    @property
    def unfinished(self) -> list[AgentEvent]:
        """Records of operations that have started and not ended, with `open` in their data."""
        return self.snapshot()[1]

    def snapshot(self) -> tuple[list[AgentEvent], list[AgentEvent]]:
        """Returns `events` and `unfinished`, read under one lock."""
        with self._lock:
            return list(self._events), list(self._recorder.open.values())

    def filter(self, agent_name: str | None = None, event_type: EventKind | None = None) -> list[AgentEvent]:
        """Returns the events of one agent, of one type, or both."""
        return [
            event
            for event in self.events
            if agent_name in (None, event.agent_name) and event_type in (None, event.type)
        ]

    def format(self) -> str:
        """Returns one line per record, with the time since the first."""
        events = self.events
        start = min((event.timestamp for event in events), default=0)
        lines = [record_line(event, start) for event in events]
        if self.dropped.count:
            lines.insert(0, f"({self.dropped.count:,} older records were dropped)")
        return "\n".join(lines)

    def clear(self) -> None:
        """Removes all recorded events."""
        with self._lock:
            self._events.clear()
            self._recorder = EventRecorder()
            self.dropped = DroppedRecords()

    def to_json(self) -> bytes:
        """Returns the log as JSON, including events that have started and not ended."""
        with self._lock:
            unfinished = list(self._recorder.open.values())
            return msgspec.json.encode(_StoredEventLog(list(self._events), unfinished, self.dropped, self.maximum))

    @classmethod
    def from_json(cls, data: bytes | str) -> "EventLog":
        """Reads a stored log. Recording can continue, also of calls that were open. Raises ValueError."""
        try:
            stored = msgspec.json.decode(data, type=_StoredEventLog)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a stored event log: {error}") from error
        log = cls(max(stored.maximum, 1))
        log.dropped = stored.dropped
        log._recorder.restore_open(stored.unfinished)
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


def _bounded_copy(event: AgentEvent) -> AgentEvent:
    return msgspec.structs.replace(event, data=bounded_copy(event.data))
