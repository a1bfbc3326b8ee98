"""An answer of the Responses API, streamed or whole, read into deltas.

Items are told apart by `output_index`: some servers change ids in mid-stream, and some send an empty final `output`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from outrider.errors import MalformedAnswerError, NetworkError
from outrider.providers.openai.endpoint import from_error
from outrider.providers.openai.responses.events import Event, Response, read_event, read_response, tokens_of
from outrider.providers.openai.responses.items import (
    CallItem,
    CustomCallItem,
    Fields,
    Indexes,
    Item,
    MessageItem,
    OpaqueItem,
    ReasoningItem,
)
from outrider.providers.reading import decoded
from outrider.types.stream import AnswerStart, Delta, Finish, FinishReason, UsageReport

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
