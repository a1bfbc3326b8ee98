"""Hides secrets in what is told on a bus, also those that arrive in pieces."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from outrider.permissions.redaction.redactor import HIDDEN, LONGEST_HELD, Redactor
from outrider.types.events import (
    Event,
    PartDeltaEvent,
    PartUpdatedEvent,
    ProcessExitedEvent,
    ProcessOutputEvent,
    ToolExecutionCompletedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
)

Piece = PartDeltaEvent | ToolInputDeltaEvent | ToolOutputEvent | ProcessOutputEvent
_MOST_STREAMS = 4_096
_CONTEXT = 64  # characters that were told already and may be the words before a secret


class _Stream(Struct):
    """What of one stream was told last, as it was, and what is held back."""

    last: Piece
    told: str = ""
    held: str = ""


class RedactingEventFilter:
    """Give it to a bus. A piece that may begin a secret is held back until the next piece, or the end, shows that it
    does not; so the pieces of a text, put together, are the text with its secrets hidden."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._streams: OrderedDict[tuple[str, str], _Stream] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> Sequence[Event]:
        return _way(event.__class__)(self, event)

    def piece(self, event: Piece) -> Sequence[Event]:
        place, text = (event.session_id, _place(event)), _text(event)
        with self._lock:
            stream = self._streams.get(place)
            if stream is None:
                stream = self._begin(place, event)
            stream.last = event
            said = self._next(stream, text)
        if said == text:
            return (event,)
        return (_with_text(event, said),) if said else ()

    def part(self, event: PartUpdatedEvent) -> Sequence[Event]:
        held = self._rest(event.session_id, getattr(event.part, "id", ""))
        return (*held, event if self._redactor.is_clean(event.part) else self._redactor.value(event))

    def call(self, event: ToolExecutionCompletedEvent) -> Sequence[Event]:
        held = self._rest(event.session_id, f"{event.call_id} stdout", f"{event.call_id} stderr")
        return (*held, self._redactor.value(event))

    def process(self, event: ProcessExitedEvent) -> Sequence[Event]:
        place = f"{event.process_id} process"
        held = self._rest(event.session_id, f"{place} stdout", f"{place} stderr")
        return (*held, self._redactor.value(event))

    def whole(self, event: Event) -> Sequence[Event]:
        return (self._redactor.value(event),)

    def _begin(self, place: tuple[str, str], event: Piece) -> _Stream:
        if len(self._streams) >= _MOST_STREAMS:
            self._streams.popitem(last=False)
        stream = self._streams[place] = _Stream(event)
        return stream

    def _next(self, stream: _Stream, text: str) -> str:
        whole = stream.told + stream.held + text
        is_plain = self._redactor.is_plain if stream.told else self._redactor.is_plain_beginning
        if is_plain(whole):
            said, stream.told, stream.held = stream.held + text, whole[-_CONTEXT:], ""
            return said
        until = max(len(stream.told), self._redactor.open_at(whole))
        if len(whole) - until > LONGEST_HELD:
            until = len(whole)
        said = self._said(stream.told, whole[:until])
        stream.told, stream.held = whole[:until][-_CONTEXT:], whole[until:]
        return said

    def _rest(self, session_id: str, *places: str) -> list[Event]:
        """The streams have ended: what was held back is what it is."""
        if not self._streams:
            return []
        with self._lock:
            ended = [self._streams.pop((session_id, place), None) for place in places]
        return [
            _with_text(stream.last, self._said(stream.told, stream.told + stream.held))
            for stream in ended
            if stream is not None and stream.held
        ]

    def _said(self, told: str, text: str) -> str:
        """The text after what was told already, hidden where a secret reaches into it."""
        pieces, at = list[str](), len(told)
        for start, end in self._redactor.spans(text):
            if end > at:
                pieces += (text[at : max(at, start)], HIDDEN)
                at = end
        return "".join((*pieces, text[at:]))


_WAYS: dict[type[Event], Callable[[RedactingEventFilter, Any], Sequence[Event]]] = {
    PartDeltaEvent: RedactingEventFilter.piece,
    ToolInputDeltaEvent: RedactingEventFilter.piece,
    ToolOutputEvent: RedactingEventFilter.piece,
    ProcessOutputEvent: RedactingEventFilter.piece,
    PartUpdatedEvent: RedactingEventFilter.part,
    ToolExecutionCompletedEvent: RedactingEventFilter.call,
    ProcessExitedEvent: RedactingEventFilter.process,
}
FILTERED_EVENTS = tuple(_WAYS)  # what a teller has to hear though nobody else does: pieces, and what ends them


@cache
def _way(kind: type[Event]) -> Callable[[RedactingEventFilter, Any], Sequence[Event]]:
    """Found once for each class: to ask an event for seven classes takes longer than to look for secrets in it."""
    return next((_WAYS[base] for base in kind.__mro__ if base in _WAYS), RedactingEventFilter.whole)


def _place(event: Piece) -> str:
    match event:
        case PartDeltaEvent() | ToolInputDeltaEvent():
            return event.part_id
        case ToolOutputEvent():
            return f"{event.call_id} {event.stream}"
        case ProcessOutputEvent():
            return f"{event.process_id} process {event.stream}"


def _text(event: Piece) -> str:
    return event.delta if isinstance(event, PartDeltaEvent | ToolInputDeltaEvent) else event.output


def _with_text(event: Piece, text: str) -> Piece:
    if isinstance(event, PartDeltaEvent | ToolInputDeltaEvent):
        return replace(event, delta=text)
    return replace(event, output=text)
