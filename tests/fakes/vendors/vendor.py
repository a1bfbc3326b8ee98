"""The contract of a fake vendor: reads requests as strictly as the real one, and speaks its format byte for byte."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import msgspec

from outrider.types.parts import ToolUsePart

Body = dict[str, Any]
Frame = bytes | asyncio.Event
"""Bytes of a stream; an event is waited for."""


class Thought(msgspec.Struct, frozen=True):
    """Reasoning with the vendor's seal on it, which has to come back."""

    text: str
    seal: str = "c2VhbGVk"


class Stop(msgspec.Struct, frozen=True):
    """Ends an answer for want of room."""


class Searched(msgspec.Struct, frozen=True):
    """Anthropic's own search at work: the answer is paused before its result is there."""

    query: str


Piece = str | Thought | ToolUsePart | Searched | Stop | asyncio.Event


class Refusal(msgspec.Struct, frozen=True):
    """An answer that is none: a status, and the vendor's own name and words for it."""

    status: int
    message: str
    type: str = ""
    headers: dict[str, str] = {}


class Vendor(Protocol):
    kind: str
    model: str
    path: str
    overloaded: Refusal
    overflow: Refusal
    base: str

    def problem(self, body: Body) -> str | None:
        """Why the real API would refuse this request, in its own words."""
        ...

    def refusal(self, refusal: Refusal) -> Body: ...
    def whole(self, pieces: list[Piece]) -> Body: ...
    def stream(self, pieces: list[Piece]) -> Iterator[Frame]: ...
    def streams(self, target: str, body: Body) -> bool: ...

    def results(self, body: Body) -> list[str]:
        """The texts of all results in a request, in order."""
        ...

    def texts(self, body: Body) -> list[str]:
        """What users said in it, in order."""
        ...

    def seals(self, body: Body) -> list[str]: ...
    def schema(self, body: Body) -> Body | None: ...
    def system(self, body: Body) -> str: ...


def events(payloads: Iterable[tuple[str, Body] | asyncio.Event]) -> Iterator[Frame]:
    """Server-sent events; a name of "" is left out."""
    for payload in payloads:
        if isinstance(payload, asyncio.Event):
            yield payload
            continue
        name, data = payload
        head = f"event: {name}\n".encode() if name else b""
        yield head + b"data: " + msgspec.json.encode(data) + b"\n\n"


def halves(text: str) -> tuple[str, str]:
    """A text comes in more than one piece."""
    middle = len(text) // 2
    return text[:middle], text[middle:]


def json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
