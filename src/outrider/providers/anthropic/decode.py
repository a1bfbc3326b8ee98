"""Reads an answer of the Messages API: events as they arrive, or a whole message, into deltas."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from outrider.errors import MalformedAnswerError, NetworkError
from outrider.providers.anthropic.errors import error_in_answer
from outrider.providers.anthropic.stream_events import (
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
from outrider.providers.response_json import read_tool_input
from outrider.types.deltas import (
    AnswerStart,
    Delta,
    Finish,
    FinishReason,
    InputDelta,
    PartEnd,
    PartStart,
    ReasoningDelta,
    TextDelta,
    UsageReport,
)
from outrider.types.ids import new_id
from outrider.types.usage import CacheTokens, Tokens

BlockKind = Literal["text", "thinking", "tool", "opaque"]

_KINDS: dict[object, BlockKind] = {"text": "text", "thinking": "thinking", "tool_use": "tool"}
_NOTHING: tuple[Delta, ...] = ()


class Block:
    """`opaque` blocks (redacted thinking, the provider's own tools, compaction, kinds from a newer API) have nothing
    to show; they are kept word for word, to be sent back in their place."""

    __slots__ = ("fields", "index", "kind", "pieces", "untouched")

    def __init__(self, index: int, fields: dict[str, Any]) -> None:
        self.index = index
        self.kind: BlockKind = _KINDS.get(fields.get("type"), "opaque")
        self.fields = dict(fields)
        self.pieces: list[str] = []
        self.untouched = True

    def start(self, call_id: str) -> tuple[Delta, ...]:
        """The start, with what it already carries: whole messages and some gateways put the content here."""
        match self.kind:
            case "text":
                return (PartStart(self.index, "text"), *self._text(str(self.fields.get("text") or "")))
            case "thinking":
                shown = self._thinking(str(self.fields.get("thinking") or ""))
                return (PartStart(self.index, "reasoning"), *shown)
            case "tool":
                return (PartStart(self.index, "tool", call_id, str(self.fields.get("name") or "")),)
            case "opaque":
                return (PartStart(self.index, "reasoning"),)

    def takes(self, piece: Piece) -> bool:
        match piece:
            case TextPiece() | CitationPiece():
                return self.kind == "text"
            case InputPiece():
                return self.kind in ("tool", "opaque")
            case ThinkingPiece() | SignaturePiece():
                return self.kind == "thinking"

    def add(self, piece: Piece) -> tuple[Delta, ...]:
        self.untouched = False
        match piece:
            case TextPiece(text):
                return self._text(text)
            case InputPiece(text):
                return self._input(text)
            case ThinkingPiece(text):
                return self._thinking(text)
            case SignaturePiece(signature):
                self.fields["signature"] = (self.fields.get("signature") or "") + signature
            case CitationPiece(citation):
                self.fields["citations"] = [*(self.fields.get("citations") or ()), citation]
        return _NOTHING

    def add_fields(self, fields: dict[str, Any]) -> None:
        """A delta of a kind without a name: text grows, anything else is set."""
        self.untouched = False
        for name, value in fields.items():
            if name != "type":
                known = self.fields.get(name)
                self.fields[name] = known + value if isinstance(known, str) and isinstance(value, str) else value

    def end(self) -> tuple[Delta, ...]:
        match self.kind:
            case "text":
                return (PartEnd(self.index, self._rest("text")),)
            case "thinking":
                return (PartEnd(self.index, self._thinking_state()),)
            case "tool":
                end = PartEnd(self.index, self._rest("id", "name", "input"))
                given = self.fields.get("input")
                if given and not self.pieces:
                    return (InputDelta(self.index, msgspec.json.encode(given).decode()), end)
                return (end,)
            case "opaque":
                if self.pieces:
                    self.fields["input"] = read_tool_input("".join(self.pieces))[0]
                return (PartEnd(self.index, {"block": self.fields}),)

    def _text(self, text: str) -> tuple[Delta, ...]:
        return (TextDelta(self.index, text),) if text else _NOTHING

    def _thinking(self, text: str) -> tuple[Delta, ...]:
        if not text:
            return _NOTHING
        self.pieces.append(text)
        return (ReasoningDelta(self.index, text),)

    def _input(self, text: str) -> tuple[Delta, ...]:
        if not text:
            return _NOTHING
        self.pieces.append(text)
        return (InputDelta(self.index, text),) if self.kind == "tool" else _NOTHING

    def _thinking_state(self) -> dict[str, Any]:
        """The signature; or the whole block when there is more in it than text and signature."""
        signature = self.fields.get("signature")
        if self._rest("thinking", "signature"):
            return {"block": self.fields | {"thinking": "".join(self.pieces)}}
        return {"signature": signature} if signature else {}

    def _rest(self, *known: str) -> dict[str, Any]:
        """The fields that a part has no name for (citations, caller, …), unless they are empty."""
        known = ("type", *known)
        return {name: value for name, value in self.fields.items() if name not in known and value not in (None, [])}


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
