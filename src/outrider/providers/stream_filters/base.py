"""The contract of a stage, and how an answer runs through one."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any, ClassVar, Literal, Protocol, TypeVar, assert_never

import msgspec

from outrider.errors import ProviderError
from outrider.types.deltas import (
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
from outrider.types.ids import new_id


class Stage(Protocol):
    """Reads one answer's deltas and gives what they become; holds back only what it cannot decide yet."""

    def feed(self, delta: Delta) -> Iterable[Delta]: ...

    def close(self) -> Iterable[Delta]:
        """What is still held when the answer ends, whole or not."""
        ...


def through(stage: Stage, deltas: Iterable[Delta]) -> list[Delta]:
    return [given for delta in deltas for given in stage.feed(delta)]


async def staged(deltas: AsyncGenerator[Delta, None], stage: Stage) -> AsyncGenerator[Delta, None]:
    """An answer after a stage; closing it closes the answer itself."""
    try:
        async for delta in deltas:
            for given in stage.feed(delta):
                yield given
    except ProviderError:
        for given in stage.close():  # what arrived is not lost with the connection
            yield given
        raise
    finally:
        close = getattr(deltas, "aclose", None)  # a plain iterator has nothing to close
        if close is not None:
            await close()
    for given in stage.close():
        yield given


Numbered = TypeVar("Numbered", bound=PartStart | TextDelta | ReasoningDelta | InputDelta | PartEnd)

_DELTAS = {"text": TextDelta, "reasoning": ReasoningDelta, "tool": InputDelta}


class Piece(msgspec.Struct, frozen=True):
    """A piece of a part. Pieces of the same kind belong to one part, until an End."""

    kind: Literal["text", "reasoning", "tool"]
    text: str = ""
    tool: str = ""


class End(msgspec.Struct, frozen=True):
    """The part that is open is whole; the next piece begins another."""


class Reclassify(msgspec.Struct, frozen=True):
    """All text since the scanner began turned out to be reasoning, and is whole: `text`."""

    text: str


class Scanner(Protocol):
    """Reads one text part, in pieces of any size; the result does not depend on their sizes."""

    def feed(self, text: str) -> Iterable[Piece | End | Reclassify]: ...

    def close(self) -> Iterable[Piece | End | Reclassify]: ...


class SplitStage:
    """Numbers the parts of an answer anew, since what came in as one text part may leave as several."""

    def __init__(self, scanner: Callable[[], Scanner]) -> None:
        self._scanner = scanner
        self._texts: dict[int, _Text] = {}
        self._others: dict[int, int] = {}
        self._count = 0
        self._calls = 0

    def feed(self, delta: Delta) -> Iterable[Delta]:
        return self._READERS[type(delta)](self, delta)

    def _start(self, start: PartStart) -> Iterable[Delta]:
        if start.kind != "text":
            return (_numbered(start, self._number_of(start.index)),)
        self._texts[start.index] = _Text(self._scanner(), self)
        return ()

    def _text(self, delta: TextDelta) -> Iterable[Delta]:
        text = self._texts.get(delta.index)
        return self._piece(delta) if text is None else text.feed(delta.text)

    def _piece(self, delta: TextDelta | ReasoningDelta | InputDelta) -> Iterable[Delta]:
        return (_numbered(delta, self._others[delta.index]),)

    def _end(self, end: PartEnd) -> Iterable[Delta]:
        text = self._texts.pop(end.index, None)
        return (_numbered(end, self._others[end.index]),) if text is None else text.end(end)

    def _finish(self, finish: Finish) -> Iterable[Delta]:
        is_call = finish.reason == "stop" and self._calls
        return (*self.close(), Finish("tool_use", finish.raw) if is_call else finish)

    def _pass(self, delta: AnswerStart | Retry | UsageReport | Happened) -> Iterable[Delta]:
        return (delta,)

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

    # By type, and not one after the other: this is asked of every delta. A test holds that none is missing.
    _READERS: ClassVar[dict[type[Delta], Callable[[Any, Any], Iterable[Delta]]]] = {
        PartStart: _start,
        TextDelta: _text,
        ReasoningDelta: _piece,
        InputDelta: _piece,
        PartEnd: _end,
        Finish: _finish,
        AnswerStart: _pass,
        Retry: _pass,
        UsageReport: _pass,
        Happened: _pass,
    }


def _numbered(delta: Numbered, index: int) -> Numbered:
    return delta if delta.index == index else msgspec.structs.replace(delta, index=index)


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

    def _give(self, piece: Piece | End | Reclassify) -> Iterable[Delta]:
        match piece:
            case Piece():
                return self._say(piece)
            case End():
                return self._end_open()
            case Reclassify(text):
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
