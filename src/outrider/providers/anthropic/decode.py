"""Decodes a Messages API response, streamed events or a complete message, into deltas, and error responses."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, cast

import msgspec

from outrider.errors import MalformedAnswerError, NetworkError, ProviderError
from outrider.providers.anthropic.stream_events import (
    BlockDeltaEvent,
    BlockStartEvent,
    BlockStopEvent,
    CitationBlockDelta,
    ContentDelta,
    InputBlockDelta,
    MessageDeltaEvent,
    MessagesEvent,
    MessageStartEvent,
    MessageStopEvent,
    MessageUsage,
    SignatureBlockDelta,
    StreamErrorEvent,
    TextBlockDelta,
    ThinkingBlockDelta,
    UnknownDeltaEvent,
    decode_event,
    decode_message,
)
from outrider.providers.error_mapping import build_provider_error
from outrider.providers.response_json import decode_error_body, format_json, parse_tool_input
from outrider.types.ids import new_id
from outrider.types.parts import CacheTokens, Tokens
from outrider.types.request import (
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


def error_from_response(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """Converts a response with an error status to a ProviderError."""
    envelope = _decode_envelope(body)
    kind, message = _error_type_and_message(envelope)
    error = build_provider_error(message, status=status, type=kind, headers=headers)
    request_id = envelope.get("request_id") or headers.get("request-id")
    if request_id:
        error.details["request_id"] = request_id  # Anthropic's support asks for this id
    return error


def error_from_stream(error: Any) -> ProviderError:
    """Converts an error event inside a successful response to a ProviderError."""
    kind, message = _error_type_and_message({"error": error})
    code = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
    return build_provider_error(message, type=kind, code=code if isinstance(code, int | str) else None)


def _decode_envelope(body: bytes) -> dict[str, Any]:
    value = decode_error_body(body)
    if isinstance(value, list) and value:  # Google's gateways wrap the error object in a list
        value = cast("list[Any]", value)[0]
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"error": value}


def _error_type_and_message(envelope: dict[str, Any]) -> tuple[str | None, str]:
    """Returns the error type, if any, and the message."""
    match envelope:
        case {"error": {"message": message, **fields}}:
            kind = fields.get("type") or fields.get("status")
        case {"error": str(message)} | {"message": message} | {"detail": message}:
            kind = None
        case _:
            kind, message = None, ""
    text = message if isinstance(message, str) else format_json(message) if message else ""
    return (kind if isinstance(kind, str) else None), text


BlockKind = Literal["text", "thinking", "tool", "opaque"]

_BLOCK_KINDS: dict[object, BlockKind] = {"text": "text", "thinking": "thinking", "tool_use": "tool"}
_NO_DELTAS: tuple[Delta, ...] = ()


class BlockDecoder:
    """Accumulates one content block and emits its deltas.

    `opaque` blocks (redacted thinking, server-side tools, compaction, types from a newer API) emit no text. Their
    fields are stored unchanged and sent back in the next request.
    """

    __slots__ = ("fields", "index", "kind", "pieces", "untouched")

    def __init__(self, index: int, fields: dict[str, Any]) -> None:
        self.index = index
        self.kind: BlockKind = _BLOCK_KINDS.get(fields.get("type"), "opaque")
        self.fields = dict(fields)
        self.pieces: list[str] = []
        self.untouched = True

    def start_block(self, call_id: str) -> tuple[Delta, ...]:
        """Returns the start delta plus any content in it: complete messages and some gateways put the content into the
        start."""
        match self.kind:
            case "text":
                return (PartStart(self.index, "text"), *self._emit_text(str(self.fields.get("text") or "")))
            case "thinking":
                deltas = self._emit_thinking(str(self.fields.get("thinking") or ""))
                return (PartStart(self.index, "reasoning"), *deltas)
            case "tool":
                return (PartStart(self.index, "tool", call_id, str(self.fields.get("name") or "")),)
            case "opaque":
                return (PartStart(self.index, "reasoning"),)

    def accepts(self, delta: ContentDelta) -> bool:
        match delta:
            case TextBlockDelta() | CitationBlockDelta():
                return self.kind == "text"
            case InputBlockDelta():
                return self.kind in ("tool", "opaque")
            case ThinkingBlockDelta() | SignatureBlockDelta():
                return self.kind == "thinking"

    def add_delta(self, delta: ContentDelta) -> tuple[Delta, ...]:
        self.untouched = False
        match delta:
            case TextBlockDelta(text):
                return self._emit_text(text)
            case InputBlockDelta(text):
                return self._emit_input(text)
            case ThinkingBlockDelta(text):
                return self._emit_thinking(text)
            case SignatureBlockDelta(signature):
                self.fields["signature"] = (self.fields.get("signature") or "") + signature
            case CitationBlockDelta(citation):
                self.fields["citations"] = [*(self.fields.get("citations") or ()), citation]
        return _NO_DELTAS

    def add_fields(self, fields: dict[str, Any]) -> None:
        """Merges a delta of unknown type into the block: strings are appended, other values are replaced."""
        self.untouched = False
        for name, value in fields.items():
            if name != "type":
                current = self.fields.get(name)
                self.fields[name] = current + value if isinstance(current, str) and isinstance(value, str) else value

    def end_block(self) -> tuple[Delta, ...]:
        match self.kind:
            case "text":
                return (PartEnd(self.index, self._other_fields("text")),)
            case "thinking":
                return (PartEnd(self.index, self._thinking_state()),)
            case "tool":
                end = PartEnd(self.index, self._other_fields("id", "name", "input"))
                complete_input = self.fields.get("input")
                if complete_input and not self.pieces:
                    return (InputDelta(self.index, msgspec.json.encode(complete_input).decode()), end)
                return (end,)
            case "opaque":
                if self.pieces:
                    self.fields["input"] = parse_tool_input("".join(self.pieces))[0]
                return (PartEnd(self.index, {"block": self.fields}),)

    def _emit_text(self, text: str) -> tuple[Delta, ...]:
        return (TextDelta(self.index, text),) if text else _NO_DELTAS

    def _emit_thinking(self, text: str) -> tuple[Delta, ...]:
        if not text:
            return _NO_DELTAS
        self.pieces.append(text)
        return (ReasoningDelta(self.index, text),)

    def _emit_input(self, text: str) -> tuple[Delta, ...]:
        if not text:
            return _NO_DELTAS
        self.pieces.append(text)
        return (InputDelta(self.index, text),) if self.kind == "tool" else _NO_DELTAS

    def _thinking_state(self) -> dict[str, Any]:
        """Returns the signature, or the complete block if it has more fields than text and signature."""
        signature = self.fields.get("signature")
        if self._other_fields("thinking", "signature"):
            return {"block": self.fields | {"thinking": "".join(self.pieces)}}
        return {"signature": signature} if signature else {}

    def _other_fields(self, *represented: str) -> dict[str, Any]:
        """Returns the non-empty fields that a part cannot represent (citations, caller and others)."""
        represented = ("type", *represented)
        return {
            name: value for name, value in self.fields.items() if name not in represented and value not in (None, [])
        }


_FINISH_REASONS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_use",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}


class AnthropicDecoder:
    """Decodes one response. Events after `message_stop` are ignored."""

    def __init__(self) -> None:
        self._done = False
        self._open_blocks: dict[int, BlockDecoder] = {}  # by the index that the API assigns
        self._part_count = 0
        self._call_ids: set[str] = set()
        self._usage = MessageUsage()
        self._stop_reason: str | None = None
        self.is_complete = False

    def feed(self, event: str, data: bytes) -> Iterable[Delta]:
        if self._done:
            return ()
        message = decode_event(event, data)
        if type(message) is BlockDeltaEvent:
            return self._add_delta(message.index, message.delta)
        return tuple(self._decode_other_event(message))

    def decode_body(self, body: bytes) -> Iterable[Delta]:
        message = decode_message(body)
        if message.error is not None or message.type == "error":
            raise error_from_stream(message.error)
        if message.content is None and message.stop_reason is None:
            raise MalformedAnswerError("the answer is JSON but not a message: it has neither content nor a stop reason")
        yield AnswerStart(message.id or "", message.model or "")
        for index, fields in enumerate(message.content or ()):
            yield from self._start_block(index, fields)
            yield from self._stop_block(index)
        yield from self._report_usage(message.usage)
        self._stop_reason = message.stop_reason or ""
        yield from self._finish_answer()

    def close(self) -> Iterable[Delta]:
        """Ends the stream. A response with a stop reason is complete, even if `message_stop` is missing. Raises
        NetworkError otherwise."""
        if self._done:
            return ()
        if self._stop_reason is None:
            raise NetworkError("the stream ended before the answer was complete")
        return tuple(self._finish_answer())

    def _decode_other_event(self, event: MessagesEvent) -> Iterator[Delta]:
        match event:
            case BlockStartEvent(index, fields) if fields.get("type"):  # otherwise the first delta determines the type
                yield from self._start_block(index, fields)
            case BlockStopEvent(index):
                yield from self._stop_block(index)
            case MessageStartEvent(message):
                yield AnswerStart(message.id or "", message.model or "")
                yield from self._report_usage(message.usage)
            case MessageDeltaEvent(ending, usage):
                self._stop_reason = ending.stop_reason or self._stop_reason
                self.is_complete = self._stop_reason is not None
                yield from self._report_usage(usage)
            case MessageStopEvent():
                yield from self._finish_answer()
            case StreamErrorEvent(payload=payload):
                raise error_from_stream(payload)
            case UnknownDeltaEvent(index, fields):
                yield from self._add_unknown_delta(index, fields)
            case _:  # a ping, or an event type from a newer API
                pass

    def _add_delta(self, index: int, delta: ContentDelta) -> Iterable[Delta]:
        block = self._open_blocks.get(index)
        if block is None or not block.accepts(delta):
            return tuple(self._add_delta_to_new_block(index, delta))
        return block.add_delta(delta)

    def _add_delta_to_new_block(self, index: int, delta: ContentDelta) -> Iterator[Delta]:
        """Starts a block for a delta whose block was never started or has a different type."""
        yield from self._start_block(index, {"type": _block_type_for(delta)})
        yield from self._open_blocks[index].add_delta(delta)

    def _start_block(self, index: int, fields: dict[str, object]) -> Iterator[Delta]:
        previous = self._open_blocks.get(index)
        if previous is not None:
            if previous.untouched and previous.fields == fields:
                return
            yield from self._stop_block(index)
        block = BlockDecoder(self._part_count, fields)
        self._part_count += 1
        self._open_blocks[index] = block
        yield from block.start_block(self._unique_call_id(fields) if block.kind == "tool" else "")

    def _add_unknown_delta(self, index: int, fields: dict[str, object]) -> Iterator[Delta]:
        kind = str(fields.get("type", "")).removesuffix("_delta")
        if index not in self._open_blocks:
            yield from self._start_block(index, {"type": kind})
        self._open_blocks[index].add_fields(fields)

    def _stop_block(self, index: int) -> Iterator[Delta]:
        block = self._open_blocks.pop(index, None)
        if block is not None:
            yield from block.end_block()

    def _finish_answer(self) -> Iterator[Delta]:
        for index in list(self._open_blocks):
            yield from self._stop_block(index)
        self._done = True
        raw = self._stop_reason or ""
        reason = _FINISH_REASONS.get(raw, "other")
        if reason == "stop" and self._call_ids:
            reason = "tool_use"  # open calls need results, even if the stop reason is "end_turn"
        yield Finish(reason, raw, paused=raw == "pause_turn")

    def _unique_call_id(self, fields: dict[str, object]) -> str:
        """Returns a unique call id, because results are matched to calls by id."""
        sent_id = fields.get("id")
        call_id = sent_id if isinstance(sent_id, str) and sent_id else f"toolu_{new_id().replace('-', '')}"
        if call_id in self._call_ids:
            call_id = f"{call_id}_{self._part_count}"
        self._call_ids.add(call_id)
        return call_id

    def _report_usage(self, usage: MessageUsage | None) -> Iterator[Delta]:
        """Merges a usage report into the totals. Values are cumulative, so a later value replaces an earlier one."""
        if usage is None:
            return
        for name in MessageUsage.__struct_fields__:
            value = getattr(usage, name)
            if value is not None:
                setattr(self._usage, name, value)
        yield UsageReport(tokens_from_usage(self._usage))


def tokens_from_usage(usage: MessageUsage) -> Tokens:
    """Converts usage to disjoint counts: the API includes thinking tokens in the output tokens."""
    details = usage.output_tokens_details
    thinking = (details.thinking_tokens if details else None) or 0
    return Tokens(
        input=usage.input_tokens or 0,
        output=max((usage.output_tokens or 0) - thinking, 0),
        reasoning=thinking,
        cache=CacheTokens(usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0),
    )


def _block_type_for(delta: ContentDelta) -> str:
    match delta:
        case TextBlockDelta() | CitationBlockDelta():
            return "text"
        case ThinkingBlockDelta() | SignatureBlockDelta():
            return "thinking"
        case InputBlockDelta():
            return "tool_use"
