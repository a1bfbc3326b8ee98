"""Redacts secrets in published events, including secrets that are split over several chunks of a stream."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from outrider.permissions.redaction.redactor import HIDDEN_SECRET, MAX_HELD_CHARS, Redactor
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

ChunkEvent = PartDeltaEvent | ToolInputDeltaEvent | ToolOutputEvent | ProcessOutputEvent
_MAX_STREAMS = 4_096
_CONTEXT = 64  # released characters that stay in the buffer, because a variable name before a secret identifies it


class _StreamState(Struct):
    """The buffer of one stream: the end of the released text, unredacted, and the text that is held back."""

    last: ChunkEvent
    released: str = ""
    held: str = ""


class RedactingEventFilter:
    """An event bus transform that redacts events.

    It holds back the end of a chunk that may be the start of a secret until the next chunk or the end of the stream
    decides it. The concatenated output chunks equal the redacted text.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._streams: OrderedDict[tuple[str, str], _StreamState] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> Sequence[Event]:
        return _find_handler(event.__class__)(self, event)

    def filter_chunk(self, event: ChunkEvent) -> Sequence[Event]:
        key, text = (event.session_id, _stream_key(event)), _chunk_text(event)
        with self._lock:
            stream = self._streams.get(key)
            if stream is None:
                stream = self._open_stream(key, event)
            stream.last = event
            output = self._release_chunk(stream, text)
        if output == text:
            return (event,)
        return (_with_text(event, output),) if output else ()

    def filter_part(self, event: PartUpdatedEvent) -> Sequence[Event]:
        held = self._flush_streams(event.session_id, getattr(event.part, "id", ""))
        return (*held, event if self._redactor.is_clean(event.part) else self._redactor.redact_value(event))

    def filter_tool_completion(self, event: ToolExecutionCompletedEvent) -> Sequence[Event]:
        held = self._flush_streams(event.session_id, f"{event.call_id} stdout", f"{event.call_id} stderr")
        return (*held, self._redactor.redact_value(event))

    def filter_process_exit(self, event: ProcessExitedEvent) -> Sequence[Event]:
        key = f"{event.process_id} process"
        held = self._flush_streams(event.session_id, f"{key} stdout", f"{key} stderr")
        return (*held, self._redactor.redact_value(event))

    def filter_event(self, event: Event) -> Sequence[Event]:
        return (self._redactor.redact_value(event),)

    def _open_stream(self, key: tuple[str, str], event: ChunkEvent) -> _StreamState:
        if len(self._streams) >= _MAX_STREAMS:
            self._streams.popitem(last=False)
        stream = self._streams[key] = _StreamState(event)
        return stream

    def _release_chunk(self, stream: _StreamState, text: str) -> str:
        buffer = stream.released + stream.held + text
        is_plain = self._redactor.is_plain if stream.released else self._redactor.is_plain_start
        if is_plain(buffer):
            output, stream.released, stream.held = stream.held + text, buffer[-_CONTEXT:], ""
            return output
        release_end = max(len(stream.released), self._redactor.find_unfinished_secret(buffer))
        if len(buffer) - release_end > MAX_HELD_CHARS:
            release_end = len(buffer)
        output = self._redact_unreleased(stream.released, buffer[:release_end])
        stream.released, stream.held = buffer[:release_end][-_CONTEXT:], buffer[release_end:]
        return output

    def _flush_streams(self, session_id: str, *keys: str) -> list[Event]:
        """Closes streams that have ended and returns their held-back text as events."""
        if not self._streams:
            return []
        with self._lock:
            ended = [self._streams.pop((session_id, key), None) for key in keys]
        return [
            _with_text(stream.last, self._redact_unreleased(stream.released, stream.released + stream.held))
            for stream in ended
            if stream is not None and stream.held
        ]

    def _redact_unreleased(self, released: str, text: str) -> str:
        """Returns the text after the released prefix with its secrets redacted, also those that start in the prefix."""
        chunks, at = list[str](), len(released)
        for start, end in self._redactor.find_spans(text):
            if end > at:
                chunks += (text[at : max(at, start)], HIDDEN_SECRET)
                at = end
        return "".join((*chunks, text[at:]))


_HANDLERS: dict[type[Event], Callable[[RedactingEventFilter, Any], Sequence[Event]]] = {
    PartDeltaEvent: RedactingEventFilter.filter_chunk,
    ToolInputDeltaEvent: RedactingEventFilter.filter_chunk,
    ToolOutputEvent: RedactingEventFilter.filter_chunk,
    ProcessOutputEvent: RedactingEventFilter.filter_chunk,
    PartUpdatedEvent: RedactingEventFilter.filter_part,
    ToolExecutionCompletedEvent: RedactingEventFilter.filter_tool_completion,
    ProcessExitedEvent: RedactingEventFilter.filter_process_exit,
}
# The filter needs these events even without another listener: chunks fill its buffers, the others flush them.
FILTERED_EVENTS = tuple(_HANDLERS)


@cache
def _find_handler(kind: type[Event]) -> Callable[[RedactingEventFilter, Any], Sequence[Event]]:
    """Cached by class, because seven isinstance checks take longer than the search for secrets."""
    return next((_HANDLERS[base] for base in kind.__mro__ if base in _HANDLERS), RedactingEventFilter.filter_event)


def _stream_key(event: ChunkEvent) -> str:
    match event:
        case PartDeltaEvent() | ToolInputDeltaEvent():
            return event.part_id
        case ToolOutputEvent():
            return f"{event.call_id} {event.stream}"
        case ProcessOutputEvent():
            return f"{event.process_id} process {event.stream}"


def _chunk_text(event: ChunkEvent) -> str:
    return event.delta if isinstance(event, PartDeltaEvent | ToolInputDeltaEvent) else event.output


def _with_text(event: ChunkEvent, text: str) -> ChunkEvent:
    if isinstance(event, PartDeltaEvent | ToolInputDeltaEvent):
        return replace(event, delta=text)
    return replace(event, output=text)
