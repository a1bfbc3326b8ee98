"""Decodes a Responses API response, streamed or complete, into deltas.

Items are identified by `output_index`, because some servers change item ids during the stream and some send an empty
final `output`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, cast

import msgspec

from outrider.errors import MalformedAnswerError, NetworkError
from outrider.providers.openai.common import NO_VALUE, error_from_payload, reported_cost
from outrider.providers.response_json import decode_json
from outrider.types.ids import new_id
from outrider.types.parts import CacheTokens, Tokens
from outrider.types.request import (
    AnswerStart,
    Delta,
    Finish,
    FinishReason,
    InputDelta,
    PartEnd,
    PartKind,
    PartStart,
    ReasoningDelta,
    TextDelta,
    UsageReport,
)
from outrider.types.tool_state import make_data_url

Fields = dict[str, Any]

# Fields that a part represents itself, and `status`, which a replayed call does not need.
_CALL_FIELDS = {"type", "call_id", "name", "arguments", "input", "status"}


class PartIndexes:
    """Assigns part indexes in order of first appearance, and unique call ids."""

    def __init__(self) -> None:
        self._next = 0
        self._call_ids: set[str] = set()

    def next_index(self) -> int:
        index = self._next
        self._next += 1
        return index

    def unique_call_id(self, sent_id: Any) -> str:
        call_id = _as_text(sent_id)
        if not call_id or call_id in self._call_ids:
            call_id = f"call_{new_id()}"
        self._call_ids.add(call_id)
        return call_id


class OutputItem(Protocol):
    ended: bool

    def __init__(self, indexes: PartIndexes) -> None: ...

    def finish(self, item: Fields) -> Iterable[Delta]:
        """Returns the end deltas. `item` is empty if the server did not send the final item."""
        ...


class MessageItem:
    """Decodes text and refusals: one part per content index."""

    def __init__(self, indexes: PartIndexes) -> None:
        self.ended = False
        self.refused = False
        self._indexes = indexes
        self._parts: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._refusals: set[int] = set()

    def write(self, content: int, text: str) -> tuple[Delta, ...]:
        index = self._parts.get(content)
        if index is None:
            index = self._parts[content] = self._indexes.next_index()
            self._lengths[content] = len(text)
            return PartStart(index, "text"), TextDelta(index, text)
        self._lengths[content] += len(text)
        return (TextDelta(index, text),)

    def write_refusal(self, content: int, text: str) -> tuple[Delta, ...]:
        self.refused = True
        self._refusals.add(content)
        return self.write(content, text)

    def write_remaining(self, content: int, final: Fields) -> Iterable[Delta]:
        """Writes the text of the final content that was not streamed."""
        refusal = final.get("type") == "refusal"
        text = _as_text(final.get("refusal" if refusal else "text"))
        remaining = text[self._lengths.get(content, 0) :]
        if remaining or content not in self._parts:
            yield from self.write_refusal(content, remaining) if refusal else self.write(content, remaining)

    def finish(self, item: Fields) -> Iterable[Delta]:
        self.ended = True
        contents = match_to_events(self._parts, item.get("content"))
        for content, final in contents.items():
            yield from self.write_remaining(content, final)
        state = {name: item[name] for name in ("id", "phase", "status") if item.get(name)}
        for content, index in self._parts.items():
            yield PartEnd(index, state=state | self._content_state(content, contents.get(content, {})))

    def _content_state(self, content: int, final: Fields) -> Fields:
        extras: Fields = {"refusal": True} if content in self._refusals else {}
        if annotations := final.get("annotations"):
            extras["annotations"] = annotations
        return extras


class ReasoningOutputItem:
    """Decodes summaries and reasoning text into one part, separated by blank lines."""

    def __init__(self, indexes: PartIndexes) -> None:
        self.ended = False
        self._index = indexes.next_index()
        self._section: tuple[str, int] | None = None
        self._lengths: dict[tuple[str, int], int] = {}

    def start(self) -> tuple[Delta, ...]:
        return (PartStart(self._index, "reasoning"),)

    def write(self, kind: str, number: int, text: str) -> tuple[Delta, ...]:
        section = (kind, number)
        if not text:
            return ()
        if section == self._section:
            self._lengths[section] += len(text)
            return (ReasoningDelta(self._index, text),)
        separated = text if self._section is None else f"\n\n{text}"
        self._section = section
        self._lengths[section] = self._lengths.get(section, 0) + len(text)
        return (ReasoningDelta(self._index, separated),)

    def finish(self, item: Fields) -> Iterable[Delta]:
        self.ended = True
        for kind in ("summary", "content"):
            streamed = [number for streamed_kind, number in self._lengths if streamed_kind == kind]
            for number, content in match_to_events(streamed, item.get(kind)).items():
                text = _as_text(content.get("text"))
                yield from self.write(kind, number, text[self._lengths.get((kind, number), 0) :])
        yield PartEnd(self._index, state={"item": item} if item else {})


class CallItem:
    """Decodes a function call. Nothing is emitted until the name is known; `finish` then emits the complete call."""

    def __init__(self, indexes: PartIndexes) -> None:
        self.ended = False
        self._indexes = indexes
        self._index: int | None = None
        self._length = 0

    def start(self, item: Fields) -> tuple[Delta, ...]:
        return self._start_once(item)[1] if self._index is None and item.get("name") else ()

    def _start_once(self, item: Fields) -> tuple[int, tuple[Delta, ...]]:
        """Returns the part index and, on the first call, the start delta. A call without a name is started too, because
        it needs a result."""
        if self._index is not None:
            return self._index, ()
        self._index = self._indexes.next_index()
        call_id = self._indexes.unique_call_id(item.get("call_id") or item.get("id"))
        return self._index, (PartStart(self._index, "tool", call_id, _as_text(item.get("name"))),)

    def write(self, text: str) -> tuple[Delta, ...]:
        if self._index is None or not text:
            return ()
        self._length += len(text)
        return (InputDelta(self._index, text),)

    def write_remaining(self, arguments: str) -> tuple[Delta, ...]:
        return self.write(arguments[self._length :])

    def finish(self, item: Fields) -> Iterable[Delta]:
        self.ended = True
        index, start = self._start_once(item)
        yield from start
        yield from self.write_remaining(_as_text(item.get("arguments")))
        yield PartEnd(index, state=_own_fields(item))


class CustomCallItem(CallItem):
    """Decodes a call with free-text input, which is streamed as the field `input` of a JSON object."""

    def write(self, text: str) -> tuple[Delta, ...]:
        if self._index is None or not text:
            return ()
        opening = "" if self._length else '{"input":"'
        self._length += len(text)
        return (InputDelta(self._index, opening + msgspec.json.encode(text)[1:-1].decode()),)

    def finish(self, item: Fields) -> Iterable[Delta]:
        self.ended = True
        index, start = self._start_once(item)
        yield from start
        yield from self.write_remaining(_as_text(item.get("input")))
        yield InputDelta(index, '"}' if self._length else '{"input":""}')
        yield PartEnd(index, state=_own_fields(item) | {"custom": True})


class OpaqueItem:
    """Stores an item of a server-side tool unchanged for the next request. A generated image becomes a file part."""

    def __init__(self, indexes: PartIndexes) -> None:
        self.ended = False
        self._indexes = indexes

    def finish(self, item: Fields) -> Iterable[Delta]:
        self.ended = True
        if not item:
            return
        index = self._indexes.next_index()
        kind: PartKind = "file" if item.get("type") == "image_generation_call" and item.get("result") else "reasoning"
        yield PartStart(index, kind)
        if kind == "reasoning":
            yield PartEnd(index, state={"item": item})
            return
        mime = f"image/{item.get('output_format') or 'png'}"
        fields = {name: value for name, value in item.items() if name != "result"}
        yield PartEnd(index, {"item": fields}, mime, make_data_url(mime, item["result"]))


def match_to_events(streamed: Iterable[int], contents: Any) -> dict[int, Fields]:
    """Maps the contents of a final item to the indexes of its stream events, by order, because some servers do not
    count from 0. Contents without an event get negative indexes."""
    numbers = list(streamed)
    return {
        numbers[position] if position < len(numbers) else -1 - position: content
        for position, content in enumerate(_content_list(contents))
    }


def _content_list(contents: Any) -> list[Fields]:
    """Returns the content objects of an item. Some servers send plain strings."""
    entries = cast("list[Any]", contents) if isinstance(contents, list) else [contents] if contents else []
    texts = [{"type": "output_text", "text": entry} if isinstance(entry, str) else entry for entry in entries]
    return [entry for entry in texts if isinstance(entry, dict)]


def _own_fields(item: Fields) -> Fields:
    return {name: value for name, value in item.items() if name not in _CALL_FIELDS and value is not None}


def _as_text(value: Any) -> str:
    """Returns the string itself, or the JSON text of an object: some servers send arguments as an object."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


FieldsOfEvents = dict[str, Any]


class _ResponseInputDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _ResponseOutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class ResponseUsage(msgspec.Struct):
    """Token usage as the API reports it: input includes cached tokens, output includes reasoning."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens_details: _ResponseInputDetails | None = None
    output_tokens_details: _ResponseOutputDetails | None = None
    cost: msgspec.Raw = NO_VALUE  # OpenRouter and other gateways; see `reported_cost`
    is_byok: msgspec.Raw = NO_VALUE
    cost_details: msgspec.Raw = NO_VALUE


class ResponseObject(msgspec.Struct):
    """A complete response, or the one in a start or end event."""

    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[FieldsOfEvents] | None = None
    usage: ResponseUsage | None = None
    error: Any = None
    incomplete_details: FieldsOfEvents | None = None


class ResponseEvent(msgspec.Struct):
    """Union of the fields of all event types; each type uses a few of them."""

    type: str = ""
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    item_id: str | None = None
    delta: str | None = None
    text: str | None = None
    name: str | None = None
    arguments: str | None = None
    item: FieldsOfEvents | None = None
    part: FieldsOfEvents | None = None
    response: ResponseObject | None = None
    error: Any = None
    message: Any = None
    code: Any = None


decode_event = msgspec.json.Decoder(ResponseEvent).decode
decode_response = msgspec.json.Decoder(ResponseObject).decode


def tokens_from_usage(usage: ResponseUsage) -> Tokens:
    """Converts usage to disjoint counts: input includes cached tokens, and output includes reasoning unless the total
    contradicts it."""
    details = usage.input_tokens_details or _ResponseInputDetails()
    read, written = details.cached_tokens or 0, details.cache_write_tokens or 0
    prompt, output = usage.input_tokens or 0, usage.output_tokens or 0
    reasoning = (usage.output_tokens_details or _ResponseOutputDetails()).reasoning_tokens or 0
    is_separate = reasoning > output or (reasoning > 0 and usage.total_tokens == prompt + output + reasoning)
    return Tokens(
        input=max(prompt - read - written, 0),
        output=output if is_separate else output - reasoning,
        reasoning=reasoning,
        cache=CacheTokens(read, written),
    )


ItemT = TypeVar("ItemT", bound=OutputItem)
ItemClass = type[MessageItem] | type[ReasoningOutputItem] | type[CallItem] | type[OpaqueItem]


class ResponsesDecoder:
    """Decodes one response: `_EVENT_HANDLERS` maps each event type to a method."""

    is_complete = False  # the API sends an explicit end event

    def __init__(self) -> None:
        self._indexes = PartIndexes()
        self._item_by_index: dict[int, OutputItem] = {}
        self._all_items: list[OutputItem] = []
        self._index_by_item_id: dict[str, int] = {}
        self._item_id_by_index: dict[int, str] = {}
        self._last_index = 0
        self._start = AnswerStart()
        self._finished = False

    def feed(self, event: str, data: bytes) -> Iterable[Delta]:
        if self._finished:
            return ()
        if data[:1] != b"{":
            return self._read_non_object(event, data.strip())
        message = decode_json(decode_event, data, mark_surrogates=True)
        if not message.type or event == "error":
            message.type = event
        handler = _EVENT_HANDLERS.get(message.type)
        if handler is not None:
            return handler(self, message)
        if message.error or (message.message and not message.type):
            return self.on_error(message)
        return ()

    def decode_body(self, body: bytes) -> Iterable[Delta]:
        response = decode_json(decode_response, body, mark_surrogates=True)
        if response.status is None and response.output is None:
            raise (
                error_from_payload(response.error)
                if response.error
                else MalformedAnswerError("an answer without any output")
            )
        yield from self._finish_response(response, response.status or "completed")

    def close(self) -> Iterable[Delta]:
        if not self._finished:
            raise NetworkError("the stream ended before the answer was complete")
        return ()

    def _read_non_object(self, event: str, data: bytes) -> Iterable[Delta]:
        """Handles an event that is not a JSON object: an end marker, a keep-alive or a plain-text error."""
        if data[:1] == b"{":
            return self.feed(event, data)
        if event == "error":
            raise error_from_payload(data.decode(errors="replace"))
        return ()

    def on_start(self, event: ResponseEvent) -> Iterable[Delta]:
        return self._emit_start(event.response) if event.response else ()

    def on_text(self, event: ResponseEvent) -> Iterable[Delta]:
        return self._find_or_add_item(event, MessageItem).write(event.content_index or 0, event.delta or "")

    def on_text_done(self, event: ResponseEvent) -> Iterable[Delta]:
        content = {"type": "output_text", "text": event.text}
        return (
            self._find_or_add_item(event, MessageItem).write_remaining(event.content_index or 0, content)
            if event.text
            else ()
        )

    def on_refusal(self, event: ResponseEvent) -> Iterable[Delta]:
        return self._find_or_add_item(event, MessageItem).write_refusal(event.content_index or 0, event.delta or "")

    def on_content_done(self, event: ResponseEvent) -> Iterable[Delta]:
        """Completes text content. Reasoning and unknown content types are completed when their item ends."""
        content = event.part or {}
        if content.get("type") in ("output_text", "refusal"):
            return self._find_or_add_item(event, MessageItem).write_remaining(event.content_index or 0, content)
        return ()

    def on_summary(self, event: ResponseEvent) -> Iterable[Delta]:
        return self._write_reasoning(event, "summary", event.summary_index or 0)

    def on_reasoning(self, event: ResponseEvent) -> Iterable[Delta]:
        return self._write_reasoning(event, "content", event.content_index or 0)

    def on_arguments(self, event: ResponseEvent) -> Iterable[Delta]:
        return self._find_or_add_item(event, CallItem).write(event.delta or "")

    def on_arguments_done(self, event: ResponseEvent) -> Iterable[Delta]:
        item = self._find_or_add_item(event, CallItem)
        started = item.start({"name": event.name, "id": event.item_id})
        return (*started, *item.write_remaining(event.arguments or ""))

    def on_free_input(self, event: ResponseEvent) -> Iterable[Delta]:
        return self._find_or_add_item(event, CustomCallItem).write(event.delta or "")

    def on_item_added(self, event: ResponseEvent) -> Iterable[Delta]:
        fields = event.item or {}
        index = self._output_index(event)
        item_id: str = fields.get("id") or f"item {index}"
        previous_id = self._item_id_by_index.get(index, item_id)
        self._item_id_by_index[index], self._index_by_item_id[item_id] = item_id, index
        item = self._item_by_index.get(index)
        if item is not None and not item.ended and isinstance(item, _item_class(fields)) and previous_id == item_id:
            return ()  # already started, or a duplicate event
        return self._open_item(index, fields)

    def on_item_done(self, event: ResponseEvent) -> Iterable[Delta]:
        return self._finish_item(self._output_index(event), event.item or {})

    def on_finish(self, event: ResponseEvent) -> Iterable[Delta]:
        return self._finish_response(event.response or ResponseObject(), event.type.removeprefix("response."))

    def on_error(self, event: ResponseEvent) -> Iterable[Delta]:
        raise error_from_payload(event.error or {"message": event.message or "", "code": event.code})

    def _output_index(self, event: ResponseEvent) -> int:
        """Returns the output index of the event's item, inferred from the item id or the last event if it is
        missing."""
        if event.output_index is not None:
            self._last_index = event.output_index
        elif event.item is not None:
            self._last_index = self._index_by_item_id.get(event.item.get("id", ""), len(self._all_items))
        else:
            self._last_index = self._index_by_item_id.get(event.item_id or "", self._last_index)
        return self._last_index

    def _find_or_add_item(self, event: ResponseEvent, kind: type[ItemT]) -> ItemT:
        index = event.output_index
        item = self._item_by_index.get(self._output_index(event) if index is None else index)
        return item if isinstance(item, kind) else self._add_item(self._output_index(event), kind(self._indexes))

    def _add_item(self, index: int, item: ItemT) -> ItemT:
        self._item_by_index[index] = item
        self._all_items.append(item)
        return item

    def _open_item(self, index: int, fields: Fields) -> tuple[Delta, ...]:
        item = self._add_item(index, _item_class(fields)(self._indexes))
        match item:
            case ReasoningOutputItem():
                return item.start()
            case CallItem():
                return item.start(fields)
            case _:
                return ()

    def _write_reasoning(self, event: ResponseEvent, kind: str, number: int) -> Iterable[Delta]:
        index = self._output_index(event)
        item = self._item_by_index.get(index)
        if isinstance(item, ReasoningOutputItem):
            return item.write(kind, number, event.delta or "")
        item = self._add_item(index, ReasoningOutputItem(self._indexes))
        return (*item.start(), *item.write(kind, number, event.delta or ""))

    def _finish_item(self, index: int, fields: Fields) -> Iterator[Delta]:
        """Ends the item at this index and starts it first if no start event arrived."""
        item = self._item_by_index.get(index)
        if item is None or not isinstance(item, _item_class(fields)):
            yield from self._open_item(index, fields)
            item = self._item_by_index[index]
        if not item.ended:
            yield from item.finish(fields)

    def _emit_start(self, response: ResponseObject) -> Iterator[Delta]:
        start = AnswerStart(response.id or self._start.response_id, response.model or self._start.model)
        if start != self._start:
            self._start = start
            yield start

    def _finish_response(self, response: ResponseObject, status: str) -> Iterator[Delta]:
        yield from self._emit_start(response)
        yield from self._finish_items(response.output or [])
        if response.usage is not None:
            usage = response.usage
            cost = None if usage.cost is NO_VALUE else reported_cost(usage.cost, usage.is_byok, usage.cost_details)
            yield UsageReport(tokens_from_usage(usage), cost)
        if response.error or (response.status or status) == "failed":
            raise error_from_payload(response.error or {"message": "the answer failed; nothing else is known"})
        self._finished = True
        yield self._finish_delta(response, response.status or status)

    def _finish_items(self, output: list[Fields]) -> Iterator[Delta]:
        """Emits content that only the final output contains. An item that was streamed under another index is not
        emitted twice."""
        for index, fields in enumerate(output):
            item = self._item_by_index.get(index)
            if item is None and index >= len(self._all_items):
                yield from self._finish_item(index, fields)
            elif item is not None and not item.ended and isinstance(item, _item_class(fields)):
                yield from item.finish(fields)
        for item in self._all_items:
            if not item.ended:
                yield from item.finish({})

    def _finish_delta(self, response: ResponseObject, status: str) -> Finish:
        details = response.incomplete_details or {}
        reason = details.get("reason")
        raw = f"{status}:{reason}" if reason else status
        if status == "completed":
            return Finish(self._stop_reason(), raw)
        return Finish(_INCOMPLETE_REASONS.get(reason or "", "other"), raw)

    def _stop_reason(self) -> FinishReason:
        if any(isinstance(item, CallItem) for item in self._all_items):
            return "tool_use"
        return "refusal" if any(isinstance(item, MessageItem) and item.refused for item in self._all_items) else "stop"


_INCOMPLETE_REASONS: dict[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "refusal"}
_ITEM_CLASSES: dict[str, ItemClass] = {
    "message": MessageItem,
    "reasoning": ReasoningOutputItem,
    "function_call": CallItem,
    "custom_tool_call": CustomCallItem,
}
_EVENT_HANDLERS: dict[str, Callable[[ResponsesDecoder, ResponseEvent], Iterable[Delta]]] = {
    "response.output_text.delta": ResponsesDecoder.on_text,
    "response.output_text.done": ResponsesDecoder.on_text_done,
    "response.reasoning_summary_text.delta": ResponsesDecoder.on_summary,
    "response.reasoning_text.delta": ResponsesDecoder.on_reasoning,
    "response.function_call_arguments.delta": ResponsesDecoder.on_arguments,
    "response.function_call_arguments.done": ResponsesDecoder.on_arguments_done,
    "response.custom_tool_call_input.delta": ResponsesDecoder.on_free_input,
    "response.refusal.delta": ResponsesDecoder.on_refusal,
    "response.content_part.done": ResponsesDecoder.on_content_done,
    "response.output_item.added": ResponsesDecoder.on_item_added,
    "response.output_item.done": ResponsesDecoder.on_item_done,
    "response.created": ResponsesDecoder.on_start,
    "response.queued": ResponsesDecoder.on_start,
    "response.in_progress": ResponsesDecoder.on_start,
    "response.completed": ResponsesDecoder.on_finish,
    "response.done": ResponsesDecoder.on_finish,
    "response.incomplete": ResponsesDecoder.on_finish,
    "response.failed": ResponsesDecoder.on_finish,
    "response.cancelled": ResponsesDecoder.on_finish,
    "error": ResponsesDecoder.on_error,
}


def _item_class(fields: Fields) -> ItemClass:
    return _ITEM_CLASSES.get(fields.get("type", ""), OpaqueItem)
