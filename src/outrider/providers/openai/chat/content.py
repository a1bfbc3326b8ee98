"""Content that is no plain string: blocks of text, thinking and pictures, or the object that a schema asked for."""

from collections.abc import Iterator
from typing import Any, cast

import msgspec


class Text(msgspec.Struct, frozen=True):
    text: str


class Thinking(msgspec.Struct, frozen=True):
    text: str


class Picture(msgspec.Struct, frozen=True):
    url: str

    @property
    def mime(self) -> str:
        return self.url[5:].partition(";")[0] if self.url.startswith("data:") else "image/*"


Block = Text | Thinking | Picture


def blocks_of(content: Any) -> Iterator[Block]:
    if isinstance(content, list):
        for item in cast("list[Any]", content):
            yield from _block(item)
    else:
        yield Text(content if isinstance(content, str) else msgspec.json.encode(content).decode())


def _block(item: Any) -> Iterator[Block]:
    match item:
        case str(text) | {"type": "text" | "output_text", "text": str(text)}:
            yield Text(text)
        case {"type": "thinking" | "reasoning"}:
            yield Thinking(_inner(item.get("thinking") or item.get("summary") or item.get("text")))
        case {"image_url": {"url": str(url)}} | {"image_url": str(url)}:
            yield Picture(url)
        case _:
            pass  # references to sources and the like, which say nothing by themselves


def _inner(value: Any) -> str:
    match value:
        case str():
            return value
        case [*items]:
            return "".join(map(_inner, items))
        case {"text": text}:
            return _inner(text)
        case _:
            return ""
