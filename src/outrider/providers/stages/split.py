"""A stage that splits the text of an answer: a scanner says what the text is, this gives every piece its part."""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, Protocol, assert_never

import msgspec

from outrider.types.ids import new_id
from outrider.types.stream import (
    AnswerStart,
    Delta,
    Finish,
    Happened,
    InputDelta,
    PartEnd,
    PartStart,
    ReasoningDelta,
    Retry,
    TextDelta,
    UsageReport,
)

_DELTAS = {"text": TextDelta, "reasoning": ReasoningDelta, "tool": InputDelta}


class Piece(msgspec.Struct, frozen=True):
    """A piece of a part. Pieces of the same kind belong to one part, until an End."""

    kind: Literal["text", "reasoning", "tool"]
    text: str = ""
    tool: str = ""


class End(msgspec.Struct, frozen=True):
    """The part that is open is whole; the next piece begins another."""


class Recast(msgspec.Struct, frozen=True):
    """All text since the scanner began turned out to be reasoning, and is whole: `text`."""

    text: str


class Scanner(Protocol):
    """Reads one text part, in pieces of any size; the result does not depend on their sizes."""

    def feed(self, text: str) -> Iterable[Piece | End | Recast]: ...

    def close(self) -> Iterable[Piece | End | Recast]: ...


class SplitStage:
    """Numbers the parts of an answer anew, since what came in as one text part may leave as several."""

    def __init__(self, scanner: Callable[[], Scanner]) -> None:
        self._scanner = scanner
        self._texts: dict[int, _Text] = {}
        self._others: dict[int, int] = {}
        self._count = 0
        self._calls = 0

    def feed(self, delta: Delta) -> Iterable[Delta]:
        if type(delta) is TextDelta and delta.index in self._texts:  # nearly all deltas are
            return self._texts[delta.index].feed(delta.text)
        return self._feed(delta)

    def _feed(self, delta: Delta) -> Iterator[Delta]:
        match delta:
            case PartStart(index, "text"):
                self._texts[index] = _Text(self._scanner(), self)
            case PartStart(index):
                yield msgspec.structs.replace(delta, index=self._number_of(index))
            case PartEnd(index) if index in self._texts:
                yield from self._texts.pop(index).end(delta)
            case TextDelta(index) | ReasoningDelta(index) | InputDelta(index) | PartEnd(index):
                yield msgspec.structs.replace(delta, index=self._others[index])
            case Finish("stop", raw) if self._calls:
                yield from self.close()
                yield Finish("tool_use", raw)
            case Finish():
                yield from self.close()
                yield delta
            case AnswerStart() | Retry() | UsageReport() | Happened():
                yield delta
            case _:
                assert_never(delta)

    def close(self) -> Iterator[Delta]:
        for text in self._texts.values():
            yield from text.close()

    def number(self, *, call: bool = False) -> int:
        self._calls += call
        self._count += 1
        return self._count - 1

    def _number_of(self, index: int) -> int:
        """The number of a part that is passed on; one that begins anew (see `Recast`) keeps its number."""
        recast = self._texts.pop(index, None)
        if recast is not None and recast.first is not None:
            self._others[index] = recast.first
        if index not in self._others:
            self._others[index] = self.number()
        return self._others[index]


class _Text:
    """One text part that came in, and the parts that leave for it."""

    def __init__(self, scanner: Scanner, stage: SplitStage) -> None:
        self._scanner = scanner
        self._stage = stage
        self._open: PartStart | None = None
        self.first: int | None = None

    def feed(self, text: str) -> list[Delta]:
        return [delta for piece in self._scanner.feed(text) for delta in self._give(piece)]

    def close(self) -> Iterator[Delta]:
        for piece in self._scanner.close():
            yield from self._give(piece)

    def end(self, end: PartEnd) -> Iterator[Delta]:
        """What the provider keeps with the part goes to the last text that leaves for it."""
        yield from self.close()
        if end.state and (self._open is None or self._open.kind != "text"):
            yield from self._give(Piece("text"))
        if self._open is not None:
            yield msgspec.structs.replace(end, index=self._open.index)

    def _give(self, piece: Piece | End | Recast) -> Iterable[Delta]:
        match piece:
            case Piece():
                return self._say(piece)
            case End():
                return self._end_open()
            case Recast(text):
                return self._recast(text)
            case _:
                assert_never(piece)

    def _say(self, piece: Piece) -> Iterable[Delta]:
        start = self._open
        if start is not None and start.kind == piece.kind:
            return (_DELTAS[piece.kind](start.index, piece.text),) if piece.text else ()
        ended = self._end_open()
        start = self._begin(piece)
        said = (_DELTAS[piece.kind](start.index, piece.text),) if piece.text else ()
        return (*ended, start, *said)

    def _begin(self, piece: Piece) -> PartStart:
        is_call = piece.kind == "tool"
        index = self._stage.number(call=is_call)
        self.first = index if self.first is None else self.first
        call_id = f"call_{new_id()}" if is_call else ""
        self._open = PartStart(index, piece.kind, call_id, piece.tool)
        return self._open

    def _recast(self, text: str) -> Iterable[Delta]:
        """The part begins anew under its number, as reasoning."""
        self._open = None
        if self.first is None:
            return ()
        return PartStart(self.first, "reasoning"), ReasoningDelta(self.first, text), PartEnd(self.first)

    def _end_open(self) -> Iterable[Delta]:
        ended, self._open = self._open, None
        return () if ended is None else (PartEnd(ended.index),)
