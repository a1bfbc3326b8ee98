"""An answer of the Responses API, streamed or whole, read into deltas.

Items are told apart by `output_index`: some servers change ids in mid-stream, and some send an empty final `output`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, cast

import msgspec

from outrider.errors import MalformedAnswerError, NetworkError
from outrider.providers.openai.common import from_error
from outrider.providers.response_json import decoded
from outrider.types.deltas import (
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
from outrider.types.ids import new_id
from outrider.types.usage import CacheTokens, Tokens

Fields = dict[str, Any]

# What a part has fields for, and the status, which a call that is sent back need not tell.
_CALL_FIELDS = {"type", "call_id", "name", "arguments", "input", "status"}


class Indexes:
    """Hands out the indexes of parts, in the order of first appearance, and the ids of calls, each only once."""

    def __init__(self) -> None:
        self._next = 0
        self._call_ids: set[str] = set()

    def take(self) -> int:
        index = self._next
        self._next += 1
        return index

    def call_id(self, given: Any) -> str:
        call_id = _text(given)
        if not call_id or call_id in self._call_ids:
            call_id = f"call_{new_id()}"
        self._call_ids.add(call_id)
        return call_id


class Item(Protocol):
    ended: bool

    def __init__(self, indexes: Indexes) -> None: ...

    def end(self, item: Fields) -> Iterable[Delta]:
        """The item is whole. `item` is empty when the provider never said what it became."""
        ...


class MessageItem:
    """Text and refusals: one part for each piece of content."""

    def __init__(self, indexes: Indexes) -> None:
        self.ended = False
        self.refused = False
        self._indexes = indexes
        self._parts: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._refusals: set[int] = set()

    def write(self, content: int, text: str) -> tuple[Delta, ...]:
        index = self._parts.get(content)
        if index is None:
            index = self._parts[content] = self._indexes.take()
            self._lengths[content] = len(text)
            return PartStart(index, "text"), TextDelta(index, text)
        self._lengths[content] += len(text)
        return (TextDelta(index, text),)

    def refuse(self, content: int, text: str) -> tuple[Delta, ...]:
        self.refused = True
        self._refusals.add(content)
        return self.write(content, text)

    def complete(self, content: int, piece: Fields) -> Iterable[Delta]:
        """What `piece` holds beyond what has arrived."""
        refusal = piece.get("type") == "refusal"
        text = _text(piece.get("refusal" if refusal else "text"))
        rest = text[self._lengths.get(content, 0) :]
        if rest or content not in self._parts:
            yield from self.refuse(content, rest) if refusal else self.write(content, rest)

    def end(self, item: Fields) -> Iterable[Delta]:
        self.ended = True
        pieces = in_order(self._parts, item.get("content"))
        for content, piece in pieces.items():
            yield from self.complete(content, piece)
        own = {name: item[name] for name in ("id", "phase", "status") if item.get(name)}
        for content, index in self._parts.items():
            yield PartEnd(index, state=own | self._extras(content, pieces.get(content, {})))

    def _extras(self, content: int, piece: Fields) -> Fields:
        extras: Fields = {"refusal": True} if content in self._refusals else {}
        if annotations := piece.get("annotations"):
            extras["annotations"] = annotations
        return extras


class ReasoningItem:
    """Summary parts, and reasoning text where a model shows it, as one part with blank lines between."""

    def __init__(self, indexes: Indexes) -> None:
        self.ended = False
        self._index = indexes.take()
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
        shown = text if self._section is None else f"\n\n{text}"
        self._section = section
        self._lengths[section] = self._lengths.get(section, 0) + len(text)
        return (ReasoningDelta(self._index, shown),)

    def end(self, item: Fields) -> Iterable[Delta]:
        self.ended = True
        for kind in ("summary", "content"):
            seen = [number for found, number in self._lengths if found == kind]
            for number, piece in in_order(seen, item.get(kind)).items():
                text = _text(piece.get("text"))
                yield from self.write(kind, number, text[self._lengths.get((kind, number), 0) :])
        yield PartEnd(self._index, state={"item": item} if item else {})


class CallItem:
    """A call of a function. Until its name is known nothing of it is given; the end then gives it all."""

    def __init__(self, indexes: Indexes) -> None:
        self.ended = False
        self._indexes = indexes
        self._index: int | None = None
        self._length = 0

    def start(self, item: Fields) -> tuple[Delta, ...]:
        return self._begin(item)[1] if self._index is None and item.get("name") else ()

    def _begin(self, item: Fields) -> tuple[int, tuple[Delta, ...]]:
        """The part's index, and its start if that was not told yet. A call without a name is a call all the same."""
        if self._index is not None:
            return self._index, ()
        self._index = self._indexes.take()
        call_id = self._indexes.call_id(item.get("call_id") or item.get("id"))
        return self._index, (PartStart(self._index, "tool", call_id, _text(item.get("name"))),)

    def write(self, text: str) -> tuple[Delta, ...]:
        if self._index is None or not text:
            return ()
        self._length += len(text)
        return (InputDelta(self._index, text),)

    def complete(self, arguments: str) -> tuple[Delta, ...]:
        return self.write(arguments[self._length :])

    def end(self, item: Fields) -> Iterable[Delta]:
        self.ended = True
        index, start = self._begin(item)
        yield from start
        yield from self.complete(_text(item.get("arguments")))
        yield PartEnd(index, state=_own_fields(item))


class CustomCallItem(CallItem):
    """A call whose input is free text: it is given as the one field `input` of an object, still as it arrives."""

    def write(self, text: str) -> tuple[Delta, ...]:
        if self._index is None or not text:
            return ()
        opening = "" if self._length else '{"input":"'
        self._length += len(text)
        return (InputDelta(self._index, opening + msgspec.json.encode(text)[1:-1].decode()),)

    def end(self, item: Fields) -> Iterable[Delta]:
        self.ended = True
        index, start = self._begin(item)
        yield from start
        yield from self.complete(_text(item.get("input")))
        yield InputDelta(index, '"}' if self._length else '{"input":""}')
        yield PartEnd(index, state=_own_fields(item) | {"custom": True})


class OpaqueItem:
    """What the provider did on its own side: it is kept whole and goes back whole. An image becomes a file."""

    def __init__(self, indexes: Indexes) -> None:
        self.ended = False
        self._indexes = indexes

    def end(self, item: Fields) -> Iterable[Delta]:
        self.ended = True
        if not item:
            return
        index = self._indexes.take()
        kind: PartKind = "file" if item.get("type") == "image_generation_call" and item.get("result") else "reasoning"
        yield PartStart(index, kind)
        if kind == "reasoning":
            yield PartEnd(index, state={"item": item})
            return
        mime = f"image/{item.get('output_format') or 'png'}"
        rest = {name: value for name, value in item.items() if name != "result"}
        yield PartEnd(index, {"item": rest}, mime, f"data:{mime};base64,{item['result']}")


def in_order(seen: Iterable[int], pieces: Any) -> dict[int, Fields]:
    """The pieces of a whole item under the numbers that its events gave them: the first seen is the first, since
    some servers count from somewhere else. A piece that no event told of gets a number of its own."""
    numbers = list(seen)
    return {numbers[at] if at < len(numbers) else -1 - at: piece for at, piece in enumerate(_pieces(pieces))}


def _pieces(pieces: Any) -> list[Fields]:
    """What an item holds; servers with simpler models of it give plain text."""
    listed = cast("list[Any]", pieces) if isinstance(pieces, list) else [pieces] if pieces else []
    texts = [{"type": "output_text", "text": piece} if isinstance(piece, str) else piece for piece in listed]
    return [piece for piece in texts if isinstance(piece, dict)]


def _own_fields(item: Fields) -> Fields:
    return {name: value for name, value in item.items() if name not in _CALL_FIELDS and value is not None}


def _text(value: Any) -> str:
    """Arguments are text; a server that sends them as an object means the same."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


FieldsOfEvents = dict[str, Any]


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class Response(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[FieldsOfEvents] | None = None
    usage: Usage | None = None
    error: Any = None
    incomplete_details: FieldsOfEvents | None = None


class Event(msgspec.Struct):
    """Every event there is: each kind uses a few of these fields."""

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
    response: Response | None = None
    error: Any = None
    message: Any = None
    code: Any = None


read_event = msgspec.json.Decoder(Event).decode
read_response = msgspec.json.Decoder(Response).decode


def tokens_of(usage: Usage) -> Tokens:
    """Here input includes what a cache gave, and output includes reasoning unless the total says otherwise."""
    details = usage.input_tokens_details or _InputDetails()
    read, written = details.cached_tokens or 0, details.cache_write_tokens or 0
    sent, given = usage.input_tokens or 0, usage.output_tokens or 0
    thought = (usage.output_tokens_details or _OutputDetails()).reasoning_tokens or 0
    apart = thought > given or (thought > 0 and usage.total_tokens == sent + given + thought)
    return Tokens(
        input=max(sent - read - written, 0),
        output=given if apart else given - thought,
        reasoning=thought,
        cache=CacheTokens(read, written),
    )


AnyItem = TypeVar("AnyItem", bound=Item)
ItemKind = type[MessageItem] | type[ReasoningItem] | type[CallItem] | type[OpaqueItem]


class ResponsesDecoder:
    closable = False  # the end has an event of its own

    def __init__(self) -> None:
        self._indexes = Indexes()
        self._items: dict[int, Item] = {}
        self._all: list[Item] = []
        self._places: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._last_place = 0
        self._start = AnswerStart()
        self._finished = False

    def feed(self, event: str, data: bytes) -> Iterable[Delta]:
        if self._finished:
            return ()
        if data[:1] != b"{":
            return self._read_other(event, data.strip())
        message = decoded(read_event, data)
        if not message.type:
            message.type = event
        react = _REACTIONS.get(message.type)
        if react is not None:
            return react(self, message)
        if message.error or (message.message and not message.type):
            return self.on_error(message)
        return ()

    def whole(self, body: bytes) -> Iterable[Delta]:
        response = decoded(read_response, body)
        if response.status is None and response.output is None:
            raise from_error(response.error) if response.error else MalformedAnswerError("an answer without any output")
        yield from self._end_with(response, response.status or "completed")

    def close(self) -> Iterable[Delta]:
        if not self._finished:
            raise NetworkError("the stream ended before the answer was whole")
        return ()

    def _read_other(self, event: str, data: bytes) -> Iterable[Delta]:
        """What is no object: a mark of the end that does not belong here, a sign of life, an error in plain words."""
        if data[:1] == b"{":
            return self.feed(event, data)
        if event == "error":
            raise from_error(data.decode(errors="replace"))
        return ()

    def on_start(self, event: Event) -> Iterable[Delta]:
        return self._begin(event.response) if event.response else ()

    def on_text(self, event: Event) -> Iterable[Delta]:
        return self._item(event, MessageItem).write(event.content_index or 0, event.delta or "")

    def on_all_text(self, event: Event) -> Iterable[Delta]:
        piece = {"type": "output_text", "text": event.text}
        return self._item(event, MessageItem).complete(event.content_index or 0, piece) if event.text else ()

    def on_refusal(self, event: Event) -> Iterable[Delta]:
        return self._item(event, MessageItem).refuse(event.content_index or 0, event.delta or "")

    def on_content(self, event: Event) -> Iterable[Delta]:
        """A piece of content is whole. Reasoning and pieces of kinds yet unknown wait for the end of their item."""
        piece = event.part or {}
        if piece.get("type") in ("output_text", "refusal"):
            return self._item(event, MessageItem).complete(event.content_index or 0, piece)
        return ()

    def on_summary(self, event: Event) -> Iterable[Delta]:
        return self._reason(event, "summary", event.summary_index or 0)

    def on_reasoning(self, event: Event) -> Iterable[Delta]:
        return self._reason(event, "content", event.content_index or 0)

    def on_arguments(self, event: Event) -> Iterable[Delta]:
        return self._item(event, CallItem).write(event.delta or "")

    def on_all_arguments(self, event: Event) -> Iterable[Delta]:
        item = self._item(event, CallItem)
        begun = item.start({"name": event.name, "id": event.item_id})
        return (*begun, *item.complete(event.arguments or ""))

    def on_free_input(self, event: Event) -> Iterable[Delta]:
        return self._item(event, CustomCallItem).write(event.delta or "")

    def on_item_added(self, event: Event) -> Iterable[Delta]:
        fields = event.item or {}
        place = self._place(event)
        item_id: str = fields.get("id") or f"item {place}"
        known, self._ids[place], self._places[item_id] = self._ids.get(place, item_id), item_id, place
        item = self._items.get(place)
        if item is not None and not item.ended and isinstance(item, _kind(fields)) and known == item_id:
            return ()  # it was begun before, or is told of twice
        return self._open(place, fields)

    def on_item_done(self, event: Event) -> Iterable[Delta]:
        return self._settle(self._place(event), event.item or {})

    def on_end(self, event: Event) -> Iterable[Delta]:
        return self._end_with(event.response or Response(), event.type.removeprefix("response."))

    def on_error(self, event: Event) -> Iterable[Delta]:
        raise from_error(event.error or {"message": event.message or "", "code": event.code})

    def _place(self, event: Event) -> int:
        """Where the event's item stands in the output, also when the server does not say it."""
        if event.output_index is not None:
            self._last_place = event.output_index
        elif event.item is not None:
            self._last_place = self._places.get(event.item.get("id", ""), len(self._all))
        else:
            self._last_place = self._places.get(event.item_id or "", self._last_place)
        return self._last_place

    def _item(self, event: Event, kind: type[AnyItem]) -> AnyItem:
        place = event.output_index
        item = self._items.get(self._place(event) if place is None else place)
        return item if isinstance(item, kind) else self._put(self._place(event), kind(self._indexes))

    def _put(self, place: int, item: AnyItem) -> AnyItem:
        self._items[place] = item
        self._all.append(item)
        return item

    def _open(self, place: int, fields: Fields) -> tuple[Delta, ...]:
        item = self._put(place, _kind(fields)(self._indexes))
        match item:
            case ReasoningItem():
                return item.start()
            case CallItem():
                return item.start(fields)
            case _:
                return ()

    def _reason(self, event: Event, kind: str, number: int) -> Iterable[Delta]:
        place = self._place(event)
        item = self._items.get(place)
        if isinstance(item, ReasoningItem):
            return item.write(kind, number, event.delta or "")
        item = self._put(place, ReasoningItem(self._indexes))
        return (*item.start(), *item.write(kind, number, event.delta or ""))

    def _settle(self, place: int, fields: Fields) -> Iterator[Delta]:
        """End the item at this place, whether or not its beginning was seen."""
        item = self._items.get(place)
        if item is None or not isinstance(item, _kind(fields)):
            yield from self._open(place, fields)
            item = self._items[place]
        if not item.ended:
            yield from item.end(fields)

    def _begin(self, response: Response) -> Iterator[Delta]:
        start = AnswerStart(response.id or self._start.response_id, response.model or self._start.model)
        if start != self._start:
            self._start = start
            yield start

    def _end_with(self, response: Response, status: str) -> Iterator[Delta]:
        yield from self._begin(response)
        yield from self._catch_up(response.output or [])
        if response.usage is not None:
            yield UsageReport(tokens_of(response.usage))
        if response.error or (response.status or status) == "failed":
            raise from_error(response.error or {"message": "the answer failed; nothing else is known"})
        self._finished = True
        yield self._finish(response, response.status or status)

    def _catch_up(self, output: list[Fields]) -> Iterator[Delta]:
        """What only the final output tells. An item that was seen under another index is not given twice."""
        for place, fields in enumerate(output):
            item = self._items.get(place)
            if item is None and place >= len(self._all):
                yield from self._settle(place, fields)
            elif item is not None and not item.ended and isinstance(item, _kind(fields)):
                yield from item.end(fields)
        for item in self._all:
            if not item.ended:
                yield from item.end({})

    def _finish(self, response: Response, status: str) -> Finish:
        details = response.incomplete_details or {}
        why = details.get("reason")
        raw = f"{status}:{why}" if why else status
        if status == "completed":
            return Finish(self._reason_to_stop(), raw)
        return Finish(_INCOMPLETE.get(why or "", "other"), raw)

    def _reason_to_stop(self) -> FinishReason:
        if any(isinstance(item, CallItem) for item in self._all):
            return "tool_use"
        return "refusal" if any(isinstance(item, MessageItem) and item.refused for item in self._all) else "stop"


_INCOMPLETE: dict[str, FinishReason] = {"max_output_tokens": "length", "content_filter": "refusal"}
_KINDS: dict[str, ItemKind] = {
    "message": MessageItem,
    "reasoning": ReasoningItem,
    "function_call": CallItem,
    "custom_tool_call": CustomCallItem,
}
_REACTIONS: dict[str, Callable[[ResponsesDecoder, Event], Iterable[Delta]]] = {
    "response.output_text.delta": ResponsesDecoder.on_text,
    "response.output_text.done": ResponsesDecoder.on_all_text,
    "response.reasoning_summary_text.delta": ResponsesDecoder.on_summary,
    "response.reasoning_text.delta": ResponsesDecoder.on_reasoning,
    "response.function_call_arguments.delta": ResponsesDecoder.on_arguments,
    "response.function_call_arguments.done": ResponsesDecoder.on_all_arguments,
    "response.custom_tool_call_input.delta": ResponsesDecoder.on_free_input,
    "response.refusal.delta": ResponsesDecoder.on_refusal,
    "response.content_part.done": ResponsesDecoder.on_content,
    "response.output_item.added": ResponsesDecoder.on_item_added,
    "response.output_item.done": ResponsesDecoder.on_item_done,
    "response.created": ResponsesDecoder.on_start,
    "response.queued": ResponsesDecoder.on_start,
    "response.in_progress": ResponsesDecoder.on_start,
    "response.completed": ResponsesDecoder.on_end,
    "response.done": ResponsesDecoder.on_end,
    "response.incomplete": ResponsesDecoder.on_end,
    "response.failed": ResponsesDecoder.on_end,
    "response.cancelled": ResponsesDecoder.on_end,
    "error": ResponsesDecoder.on_error,
}


def _kind(fields: Fields) -> ItemKind:
    return _KINDS.get(fields.get("type", ""), OpaqueItem)
