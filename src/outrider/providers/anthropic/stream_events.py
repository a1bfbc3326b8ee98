"""The stream events of the Messages API as typed values: strict and fast for what is usual, tolerant for the rest."""

from typing import Any, cast

import msgspec

from outrider.errors import MalformedAnswerError
from outrider.providers.response_json import UNREADABLE, fitted, mended_json


class Wired(msgspec.Struct, tag_field="type", gc=False):
    """What all of these share: `type` says which it is, and a field that is missing has a default."""


class TextPiece(Wired, tag="text_delta", gc=False):
    text: str = ""


class ThinkingPiece(Wired, tag="thinking_delta", gc=False):
    thinking: str = ""


class InputPiece(Wired, tag="input_json_delta", gc=False):
    partial_json: str = ""


class SignaturePiece(Wired, tag="signature_delta", gc=False):
    signature: str = ""


class CitationPiece(Wired, tag="citations_delta"):
    citation: dict[str, Any] = {}


Piece = TextPiece | ThinkingPiece | InputPiece | SignaturePiece | CitationPiece


class OutputDetails(msgspec.Struct):
    thinking_tokens: int | None = None


class WireUsage(msgspec.Struct):
    """Counts as the API reports them: input without cache, output with thinking."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: OutputDetails | None = None


class Started(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    usage: WireUsage | None = None


class Ending(msgspec.Struct):
    stop_reason: str | None = None


class MessageStart(Wired, tag="message_start"):
    message: Started = msgspec.field(default_factory=Started)


class BlockStart(Wired, tag="content_block_start"):
    index: int = 0
    content_block: dict[str, Any] = {}


class BlockDelta(Wired, tag="content_block_delta", gc=False):
    delta: Piece
    index: int = 0


class BlockStop(Wired, tag="content_block_stop", gc=False):
    index: int = 0


class MessageDelta(Wired, tag="message_delta"):
    delta: Ending = msgspec.field(default_factory=Ending)
    usage: WireUsage | None = None


class MessageStop(Wired, tag="message_stop", gc=False):
    pass


class Ping(Wired, tag="ping", gc=False):
    pass


class Failure(Wired, tag="error"):
    """Some gateways put what there is to say beside the type, not into an `error`."""

    error: Any = None
    message: Any = None

    @property
    def said(self) -> Any:
        return self.error or self.message


class OddDelta(msgspec.Struct, tag=False):
    """A delta of a kind that has no name here; it belongs to a block that is kept as it is."""

    index: int
    fields: dict[str, Any]


class Unknown(msgspec.Struct, tag=False):
    """An event of a kind that has no name here."""


class WholeMessage(msgspec.Struct):
    """An answer that was not streamed."""

    id: str | None = None
    model: str | None = None
    content: list[dict[str, Any]] | None = None
    stop_reason: str | None = None
    usage: WireUsage | None = None
    type: str | None = None
    error: Any = None


Known = BlockDelta | BlockStart | BlockStop | MessageStart | MessageDelta | MessageStop | Ping | Failure
Event = Known | OddDelta | Unknown

_known = msgspec.json.Decoder(Known)
_whole = msgspec.json.Decoder(WholeMessage)
_NAMES = {
    str(kind.__struct_config__.tag)
    for kind in (BlockDelta, BlockStart, BlockStop, MessageStart, MessageDelta, MessageStop, Ping, Failure)
}

_NEEDED = (_NAMES | {""}) - {"ping"}
_PIECES = {
    "text": "text_delta",
    "partial_json": "input_json_delta",
    "thinking": "thinking_delta",
    "signature": "signature_delta",
}


def read_event(name: str, data: bytes) -> Event:
    try:
        return _known.decode(data)
    except UNREADABLE:
        return _read_odd_event(name, data)


def read_whole(body: bytes) -> WholeMessage:
    try:
        return _whole.decode(body)
    except UNREADABLE:
        value = _loosely(body)
    if isinstance(value, dict) and isinstance(text := cast("dict[str, Any]", value).get("content"), str):
        value["content"] = [{"type": "text", "text": text}]
    try:
        return fitted(value, lambda fields: msgspec.convert(fields, WholeMessage, strict=False))
    except (msgspec.ValidationError, RecursionError) as error:
        raise MalformedAnswerError(f"the answer is not a message: {error}") from error


def _loosely(data: bytes) -> Any:
    mended = mended_json(data)
    try:
        if mended is not None:
            return _without_nulls(msgspec.json.decode(mended))
    except RecursionError:
        pass
    shown = data[:200].decode("utf-8", "replace")
    raise MalformedAnswerError(f"the provider sent something that is not JSON: {shown}")


def _read_odd_event(name: str, data: bytes) -> Event:
    if (
        data.strip()[:1] != b"{"
    ):  # a sign of life, or the mark with which OpenAI ends streams, or an error in plain words
        return Failure(data.decode("utf-8", "replace")) if name == "error" else Unknown()
    try:
        fields = {"type": name} | cast("dict[str, Any]", _loosely(data))
    except MalformedAnswerError:
        if name in _NEEDED:
            raise
        return Unknown()
    delta = fields.get("delta")
    if isinstance(delta, dict) and "type" not in delta:
        fields["delta"] = {"type": _kind_of(cast("dict[str, Any]", delta)), **delta}
    try:
        return fitted(fields, lambda fields: msgspec.convert(fields, Known, strict=False))
    except (msgspec.ValidationError, RecursionError) as error:
        return _read_unknown(fields, error)


def _kind_of(delta: dict[str, Any]) -> str:
    """By the field that it has, where a delta does not say what it is."""
    return next((kind for field, kind in _PIECES.items() if field in delta), "")


def _read_unknown(fields: dict[str, Any], error: Exception) -> Event:
    kind = fields["type"]
    if kind == "content_block_delta":
        index, delta = fields.get("index"), fields.get("delta")
        if not isinstance(delta, dict):
            return Unknown()
        return OddDelta(index if isinstance(index, int) else 0, cast("dict[str, Any]", delta))
    if kind in _NAMES:
        raise MalformedAnswerError(f"the provider sent a {kind} event that cannot be read: {error}") from error
    return Failure(fields["error"]) if "error" in fields else Unknown()


def _without_nulls(value: Any) -> Any:
    """A field that is null says as little as one that is missing."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {name: _without_nulls(item) for name, item in items if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in cast("list[Any]", value) if item is not None]
    return value
