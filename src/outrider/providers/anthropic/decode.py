"""Reads an answer of the Messages API: events as they arrive, or a whole message, into deltas."""

from collections.abc import Iterable, Iterator

from outrider.errors import MalformedAnswerError, NetworkError
from outrider.providers.anthropic.block import Block
from outrider.providers.anthropic.envelope import error_in_answer
from outrider.providers.anthropic.events import (
    BlockDelta,
    BlockStart,
    BlockStop,
    CitationPiece,
    Event,
    Failure,
    InputPiece,
    MessageDelta,
    MessageStart,
    MessageStop,
    OddDelta,
    Piece,
    SignaturePiece,
    TextPiece,
    ThinkingPiece,
    WireUsage,
    read_event,
    read_whole,
)
from outrider.types.ids import new_id
from outrider.types.stream import AnswerStart, Delta, Finish, FinishReason, UsageReport
from outrider.types.usage import CacheTokens, Tokens

_FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_use",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


class AnthropicDecoder:
    """Reads one answer; what follows its end is not looked at."""

    def __init__(self) -> None:
        self._done = False
        self._open: dict[int, Block] = {}  # by the index that the API gives
        self._count = 0
        self._call_ids: set[str] = set()
        self._usage = WireUsage()
        self._stop_reason: str | None = None
        self.closable = False

    def feed(self, event: str, data: bytes) -> Iterable[Delta]:
        if self._done:
            return ()
        message = read_event(event, data)
        if type(message) is BlockDelta:
            return self._piece(message.index, message.delta)
        return tuple(self._seldom(message))

    def whole(self, body: bytes) -> Iterable[Delta]:
        message = read_whole(body)
        if message.error is not None or message.type == "error":
            raise error_in_answer(message.error)
        if message.content is None and message.stop_reason is None:
            raise MalformedAnswerError("the answer is JSON but no message: it has neither content nor a stop reason")
        yield AnswerStart(message.id or "", message.model or "")
        for index, fields in enumerate(message.content or ()):
            yield from self._start(index, fields)
            yield from self._stop(index)
        yield from self._count_tokens(message.usage)
        self._stop_reason = message.stop_reason or ""
        yield from self._finish()

    def close(self) -> Iterable[Delta]:
        """An answer whose stop reason is known is whole, even if message_stop did not arrive any more."""
        if self._done:
            return ()
        if self._stop_reason is None:
            raise NetworkError("the answer broke off: the stream ended before the model did")
        return tuple(self._finish())

    def _seldom(self, event: Event) -> Iterator[Delta]:
        match event:
            case BlockStart(index, fields) if fields.get("type"):  # else its pieces tell what it is
                yield from self._start(index, fields)
            case BlockStop(index):
                yield from self._stop(index)
            case MessageStart(message):
                yield AnswerStart(message.id or "", message.model or "")
                yield from self._count_tokens(message.usage)
            case MessageDelta(ending, usage):
                self._stop_reason = ending.stop_reason or self._stop_reason
                self.closable = self._stop_reason is not None
                yield from self._count_tokens(usage)
            case MessageStop():
                yield from self._finish()
            case Failure(said=said):
                raise error_in_answer(said)
            case OddDelta(index, fields):
                yield from self._add_odd(index, fields)
            case _:  # a ping, or an event from a newer API
                pass

    def _piece(self, index: int, piece: Piece) -> Iterable[Delta]:
        block = self._open.get(index)
        if block is None or not block.takes(piece):
            return tuple(self._piece_of_its_own(index, piece))
        return block.add(piece)

    def _piece_of_its_own(self, index: int, piece: Piece) -> Iterator[Delta]:
        """A piece of a block that was never started, or that is of another kind."""
        yield from self._start(index, {"type": _kind_for(piece)})
        yield from self._open[index].add(piece)

    def _start(self, index: int, fields: dict[str, object]) -> Iterator[Delta]:
        previous = self._open.get(index)
        if previous is not None:
            if previous.untouched and previous.fields == fields:
                return
            yield from self._stop(index)
        block = Block(self._count, fields)
        self._count += 1
        self._open[index] = block
        yield from block.start(self._call_id(fields) if block.kind == "tool" else "")

    def _add_odd(self, index: int, fields: dict[str, object]) -> Iterator[Delta]:
        kind = str(fields.get("type", "")).removesuffix("_delta")
        if index not in self._open:
            yield from self._start(index, {"type": kind})
        self._open[index].add_fields(fields)

    def _stop(self, index: int) -> Iterator[Delta]:
        block = self._open.pop(index, None)
        if block is not None:
            yield from block.end()

    def _finish(self) -> Iterator[Delta]:
        for index in list(self._open):
            yield from self._stop(index)
        self._done = True
        raw = self._stop_reason or ""
        reason = _FINISH.get(raw, "other")
        if reason == "stop" and self._call_ids:
            reason = "tool_use"  # calls wait for results, whatever the stop reason says
        yield Finish(reason, raw, paused=raw == "pause_turn")

    def _call_id(self, fields: dict[str, object]) -> str:
        """The call's id, made unique: results are paired by it."""
        given = fields.get("id")
        call_id = given if isinstance(given, str) and given else f"toolu_{new_id().replace('-', '')}"
        if call_id in self._call_ids:
            call_id = f"{call_id}_{self._count}"
        self._call_ids.add(call_id)
        return call_id

    def _count_tokens(self, news: WireUsage | None) -> Iterator[Delta]:
        """A later report replaces what it names; the counts are cumulative."""
        if news is None:
            return
        for name in WireUsage.__struct_fields__:
            value = getattr(news, name)
            if value is not None:
                setattr(self._usage, name, value)
        yield UsageReport(disjoint(self._usage))


def disjoint(usage: WireUsage) -> Tokens:
    """The API counts thinking inside the output; here they stand apart."""
    details = usage.output_tokens_details
    thinking = (details.thinking_tokens if details else None) or 0
    return Tokens(
        input=usage.input_tokens or 0,
        output=max((usage.output_tokens or 0) - thinking, 0),
        reasoning=thinking,
        cache=CacheTokens(usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0),
    )


def _kind_for(piece: Piece) -> str:
    match piece:
        case TextPiece() | CitationPiece():
            return "text"
        case ThinkingPiece() | SignaturePiece():
            return "thinking"
        case InputPiece():
            return "tool_use"
