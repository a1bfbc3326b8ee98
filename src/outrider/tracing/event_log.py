"""The record of what agents did: bounded, safe to fill from several threads, and kept as JSON."""

import threading
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from outrider.bus import EventBus
from outrider.tracing.agent_event import AgentEvent, EventKind, bounded
from outrider.tracing.format import record_line
from outrider.tracing.recorder import Recorder
from outrider.types.events import Event

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
