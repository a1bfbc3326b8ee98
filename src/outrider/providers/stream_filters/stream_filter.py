"""The stream filter contract, and the filter that splits text parts with a scanner."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any, ClassVar, Literal, Protocol, TypeVar, assert_never

import msgspec

from outrider.errors import ProviderError
from outrider.types.deltas import (
    AnswerStart,
    Delta,
    Finish,
    InputDelta,
    PartEnd,
    PartStart,
    ReasoningDelta,
    RemoteEvent,
    Retry,
    TextDelta,
    UsageReport,
)
from outrider.types.ids import new_id


class StreamFilter(Protocol):
    """Rewrites the deltas of one answer; buffers only text that it cannot classify yet."""

    def feed(self, delta: Delta) -> Iterable[Delta]: ...

    def close(self) -> Iterable[Delta]:
        """Returns the deltas for buffered text, at the end of the answer or after a failure."""
        ...


def apply_filter(stream_filter: StreamFilter, deltas: Iterable[Delta]) -> list[Delta]:
    return [given for delta in deltas for given in stream_filter.feed(delta)]


async def filter_stream(
    deltas: AsyncGenerator[Delta, None], stream_filter: StreamFilter
) -> AsyncGenerator[Delta, None]:
    """Filters a stream of deltas; closing the generator closes the source."""
    try:
        async for delta in deltas:
            for given in stream_filter.feed(delta):
                yield given
    except ProviderError:
        for given in stream_filter.close():  # emit buffered text before the error
            yield given
        raise
    finally:
        close = getattr(deltas, "aclose", None)  # plain iterators have no aclose
        if close is not None:
            await close()
    for given in stream_filter.close():
        yield given


Numbered = TypeVar("Numbered", bound=PartStart | TextDelta | ReasoningDelta | InputDelta | PartEnd)

_DELTAS = {"text": TextDelta, "reasoning": ReasoningDelta, "tool": InputDelta}


class PartChunk(msgspec.Struct, frozen=True):
    """Text of a part. Consecutive chunks of one kind form one part, until a PartBoundary."""

    kind: Literal["text", "reasoning", "tool"]
    text: str = ""
    tool: str = ""


class PartBoundary(msgspec.Struct, frozen=True):
    """Ends the open part; the next chunk starts a new one."""


class ReclassifyText(msgspec.Struct, frozen=True):
    """Reports that all text of the scanner so far was reasoning: `text`."""

    text: str


class TextScanner(Protocol):
    """Splits one text part into chunks of several parts; the result does not depend on how the input is divided."""

    def feed(self, text: str) -> Iterable[PartChunk | PartBoundary | ReclassifyText]: ...

    def close(self) -> Iterable[PartChunk | PartBoundary | ReclassifyText]: ...


class TextSplitFilter:
    """Runs a scanner over each text part and renumbers all parts, since one input part may become several."""

    def __init__(self, create_scanner: Callable[[], TextScanner]) -> None:
        self._create_scanner = create_scanner
        self._texts: dict[int, _TextPartSplitter] = {}
        self._others: dict[int, int] = {}
        self._count = 0
        self._calls = 0

    def feed(self, delta: Delta) -> Iterable[Delta]:
        return self._HANDLERS[type(delta)](self, delta)

    def _start_part(self, start: PartStart) -> Iterable[Delta]:
        if start.kind != "text":
            return (_with_index(start, self._index_of(start.index)),)
        self._texts[start.index] = _TextPartSplitter(self._create_scanner(), self)
        return ()

    def _read_text(self, delta: TextDelta) -> Iterable[Delta]:
        text = self._texts.get(delta.index)
        return self._renumber_chunk(delta) if text is None else text.feed(delta.text)

    def _renumber_chunk(self, delta: TextDelta | ReasoningDelta | InputDelta) -> Iterable[Delta]:
        return (_with_index(delta, self._others[delta.index]),)

    def _end_part(self, end: PartEnd) -> Iterable[Delta]:
        text = self._texts.pop(end.index, None)
        return (_with_index(end, self._others[end.index]),) if text is None else text.end_part(end)

    def _read_finish(self, finish: Finish) -> Iterable[Delta]:
        is_call = finish.reason == "stop" and self._calls
        return (*self.close(), Finish("tool_use", finish.raw) if is_call else finish)

    def _pass_through(self, delta: AnswerStart | UsageReport | RemoteEvent) -> Iterable[Delta]:
        return (delta,)

    def _start_again(self, retry: Retry) -> Iterable[Delta]:
        """Drops the state of a failed attempt; buffered text of it was not shown."""
        self._texts, self._others, self._count, self._calls = {}, {}, 0, 0
        return (retry,)

    def close(self) -> Iterator[Delta]:
        for text in self._texts.values():
            yield from text.close()

    def next_index(self, *, call: bool = False) -> int:
        self._calls += call
        self._count += 1
        return self._count - 1

    def _index_of(self, index: int) -> int:
        """Returns the new index of a non-text part; a text part that restarts as another kind keeps its index."""
        recast = self._texts.pop(index, None)
        if recast is not None and recast.first_index is not None:
            self._others[index] = recast.first_index
        if index not in self._others:
            self._others[index] = self.next_index()
        return self._others[index]

    # A dispatch table is faster than `match`, and this runs for every delta. A test checks that it has all types.
    _HANDLERS: ClassVar[dict[type[Delta], Callable[[Any, Any], Iterable[Delta]]]] = {
        PartStart: _start_part,
        TextDelta: _read_text,
        ReasoningDelta: _renumber_chunk,
        InputDelta: _renumber_chunk,
        PartEnd: _end_part,
        Finish: _read_finish,
        AnswerStart: _pass_through,
        Retry: _start_again,
        UsageReport: _pass_through,
        RemoteEvent: _pass_through,
    }


def _with_index(delta: Numbered, index: int) -> Numbered:
    return delta if delta.index == index else msgspec.structs.replace(delta, index=index)


class _TextPartSplitter:
    """Turns one input text part into the output parts that its scanner finds."""

    def __init__(self, scanner: TextScanner, split_filter: TextSplitFilter) -> None:
        self._scanner = scanner
        self._split_filter = split_filter
        self._open: PartStart | None = None
        self.first_index: int | None = None

    def feed(self, text: str) -> list[Delta]:
        return [delta for chunk in self._scanner.feed(text) for delta in self._emit(chunk)]

    def close(self) -> Iterator[Delta]:
        for chunk in self._scanner.close():
            yield from self._emit(chunk)

    def end_part(self, end: PartEnd) -> Iterator[Delta]:
        """Ends the input part. Its private state is attached to the last output text part."""
        yield from self.close()
        if end.state and (self._open is None or self._open.kind != "text"):
            yield from self._emit(PartChunk("text"))
        if self._open is not None:
            yield msgspec.structs.replace(end, index=self._open.index)

    def _emit(self, chunk: PartChunk | PartBoundary | ReclassifyText) -> Iterable[Delta]:
        match chunk:
            case PartChunk():
                return self._emit_chunk(chunk)
            case PartBoundary():
                return self._close_part()
            case ReclassifyText(text):
                return self._reclassify_text(text)
            case _:
                assert_never(chunk)

    def _emit_chunk(self, chunk: PartChunk) -> Iterable[Delta]:
        start = self._open
        if start is not None and start.kind == chunk.kind:
            return (_DELTAS[chunk.kind](start.index, chunk.text),) if chunk.text else ()
        ended = self._close_part()
        start = self._open_part(chunk)
        deltas = (_DELTAS[chunk.kind](start.index, chunk.text),) if chunk.text else ()
        return (*ended, start, *deltas)

    def _open_part(self, chunk: PartChunk) -> PartStart:
        is_call = chunk.kind == "tool"
        index = self._split_filter.next_index(call=is_call)
        self.first_index = index if self.first_index is None else self.first_index
        call_id = f"call_{new_id()}" if is_call else ""
        self._open = PartStart(index, chunk.kind, call_id, chunk.tool)
        return self._open

    def _reclassify_text(self, text: str) -> Iterable[Delta]:
        """Restarts the first output part as reasoning, under the same index."""
        self._open = None
        if self.first_index is None:
            return ()
        return (
            PartStart(self.first_index, "reasoning"),
            ReasoningDelta(self.first_index, text),
            PartEnd(self.first_index),
        )

    def _close_part(self) -> Iterable[Delta]:
        ended, self._open = self._open, None
        return () if ended is None else (PartEnd(ended.index),)
