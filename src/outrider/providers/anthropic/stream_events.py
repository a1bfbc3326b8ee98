"""Typed stream events of the Messages API: a strict fast decoder for valid events, a lenient fallback for others."""

from typing import Any, cast

import msgspec

from outrider.errors import MalformedAnswerError
from outrider.providers.response_json import JSON_ERRORS, convert_leniently, repair_json


class TaggedStruct(msgspec.Struct, tag_field="type", gc=False):
    """Base class of the tagged union. The `type` field selects the class; a missing field gets its default value."""


class TextBlockDelta(TaggedStruct, tag="text_delta", gc=False):
    text: str = ""


class ThinkingBlockDelta(TaggedStruct, tag="thinking_delta", gc=False):
    thinking: str = ""


class InputBlockDelta(TaggedStruct, tag="input_json_delta", gc=False):
    partial_json: str = ""


class SignatureBlockDelta(TaggedStruct, tag="signature_delta", gc=False):
    signature: str = ""


class CitationBlockDelta(TaggedStruct, tag="citations_delta"):
    citation: dict[str, Any] = {}


ContentDelta = TextBlockDelta | ThinkingBlockDelta | InputBlockDelta | SignatureBlockDelta | CitationBlockDelta


class OutputTokenDetails(msgspec.Struct):
    thinking_tokens: int | None = None


class MessageUsage(msgspec.Struct):
    """Token usage as the API reports it: input excludes cached tokens, output includes thinking."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: OutputTokenDetails | None = None


class StartedMessage(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    usage: MessageUsage | None = None


class StopDetails(msgspec.Struct):
    stop_reason: str | None = None


class MessageStartEvent(TaggedStruct, tag="message_start"):
    message: StartedMessage = msgspec.field(default_factory=StartedMessage)


class BlockStartEvent(TaggedStruct, tag="content_block_start"):
    index: int = 0
    content_block: dict[str, Any] = {}


class BlockDeltaEvent(TaggedStruct, tag="content_block_delta", gc=False):
    delta: ContentDelta
    index: int = 0


class BlockStopEvent(TaggedStruct, tag="content_block_stop", gc=False):
    index: int = 0


class MessageDeltaEvent(TaggedStruct, tag="message_delta"):
    delta: StopDetails = msgspec.field(default_factory=StopDetails)
    usage: MessageUsage | None = None


class MessageStopEvent(TaggedStruct, tag="message_stop", gc=False):
    pass


class PingEvent(TaggedStruct, tag="ping", gc=False):
    pass


class StreamErrorEvent(TaggedStruct, tag="error"):
    """An error event. Some gateways put the message next to `type` instead of into an `error` object."""

    error: Any = None
    message: Any = None

    @property
    def payload(self) -> Any:
        return self.error or self.message


class UnknownDeltaEvent(msgspec.Struct, tag=False):
    """A delta of unknown type. It belongs to an opaque block, which stores its fields unchanged."""

    index: int
    fields: dict[str, Any]


class UnknownEvent(msgspec.Struct, tag=False):
    """An event of unknown type."""


class CompleteMessage(msgspec.Struct):
    """A response that was not streamed."""

    id: str | None = None
    model: str | None = None
    content: list[dict[str, Any]] | None = None
    stop_reason: str | None = None
    usage: MessageUsage | None = None
    type: str | None = None
    error: Any = None


KnownEvent = (
    BlockDeltaEvent
    | BlockStartEvent
    | BlockStopEvent
    | MessageStartEvent
    | MessageDeltaEvent
    | MessageStopEvent
    | PingEvent
    | StreamErrorEvent
)
MessagesEvent = KnownEvent | UnknownDeltaEvent | UnknownEvent

_event_decoder = msgspec.json.Decoder(KnownEvent)
_message_decoder = msgspec.json.Decoder(CompleteMessage)
_EVENT_TYPES = {
    str(kind.__struct_config__.tag)
    for kind in (
        BlockDeltaEvent,
        BlockStartEvent,
        BlockStopEvent,
        MessageStartEvent,
        MessageDeltaEvent,
        MessageStopEvent,
        PingEvent,
        StreamErrorEvent,
    )
}

_REQUIRED_EVENT_TYPES = (_EVENT_TYPES | {""}) - {"ping"}
_DELTA_TYPE_BY_FIELD = {
    "text": "text_delta",
    "partial_json": "input_json_delta",
    "thinking": "thinking_delta",
    "signature": "signature_delta",
}


def decode_event(name: str, data: bytes) -> MessagesEvent:
    try:
        return _event_decoder.decode(data)
    except JSON_ERRORS:
        return _decode_unusual_event(name, data)


def decode_message(body: bytes) -> CompleteMessage:
    try:
        return _message_decoder.decode(body)
    except JSON_ERRORS:
        value = _decode_lenient(body)
    if isinstance(value, dict) and isinstance(text := cast("dict[str, Any]", value).get("content"), str):
        value["content"] = [{"type": "text", "text": text}]
    try:
        return convert_leniently(value, lambda fields: msgspec.convert(fields, CompleteMessage, strict=False))
    except (msgspec.ValidationError, RecursionError) as error:
        raise MalformedAnswerError(f"the answer is not a message: {error}") from error


def _decode_lenient(data: bytes) -> Any:
    repaired = repair_json(data, mark_surrogates=True)
    try:
        if repaired is not None:
            return _drop_nulls(msgspec.json.decode(repaired))
    except RecursionError:
        pass
    preview = data[:200].decode("utf-8", "replace")
    raise MalformedAnswerError(f"the provider sent something that is not JSON: {preview}")


def _decode_unusual_event(name: str, data: bytes) -> MessagesEvent:
    if data.strip()[:1] != b"{":  # a keep-alive, OpenAI's end-of-stream marker, or a plain-text error
        return StreamErrorEvent(data.decode("utf-8", "replace")) if name == "error" else UnknownEvent()
    try:
        fields = {"type": name} | cast("dict[str, Any]", _decode_lenient(data))
    except MalformedAnswerError:
        if name in _REQUIRED_EVENT_TYPES:
            raise
        return UnknownEvent()
    delta = fields.get("delta")
    if isinstance(delta, dict) and "type" not in delta:
        fields["delta"] = {"type": _delta_type(cast("dict[str, Any]", delta)), **delta}
    try:
        return convert_leniently(fields, lambda fields: msgspec.convert(fields, KnownEvent, strict=False))
    except (msgspec.ValidationError, RecursionError) as error:
        return _decode_unmatched_event(fields, error)


def _delta_type(delta: dict[str, Any]) -> str:
    """Infers the type of a delta without `type` from its field name."""
    return next((kind for field, kind in _DELTA_TYPE_BY_FIELD.items() if field in delta), "")


def _decode_unmatched_event(fields: dict[str, Any], error: Exception) -> MessagesEvent:
    kind = fields["type"]
    if kind == "content_block_delta":
        index, delta = fields.get("index"), fields.get("delta")
        if not isinstance(delta, dict):
            return UnknownEvent()
        return UnknownDeltaEvent(index if isinstance(index, int) else 0, cast("dict[str, Any]", delta))
    if kind in _EVENT_TYPES:
        raise MalformedAnswerError(f"the provider sent a {kind} event that cannot be read: {error}") from error
    return StreamErrorEvent(fields["error"]) if "error" in fields else UnknownEvent()


def _drop_nulls(value: Any) -> Any:
    """Removes null fields, which the strict decoder rejects although they mean the same as missing ones."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {name: _drop_nulls(item) for name, item in items if item is not None}
    if isinstance(value, list):
        return [_drop_nulls(item) for item in cast("list[Any]", value) if item is not None]
    return value
