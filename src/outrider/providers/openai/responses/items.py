"""The items of a Responses answer while they stream: each turns its own events into deltas, and knows how to end.

What an end tells (the whole item) is compared by length with what has arrived, so that only the rest is given.
"""

from collections.abc import Iterable
from typing import Any, Protocol, cast

import msgspec

from outrider.types.ids import new_id
from outrider.types.stream import Delta, InputDelta, PartEnd, PartKind, PartStart, ReasoningDelta, TextDelta

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
