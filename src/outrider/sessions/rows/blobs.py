"""Large texts inside a row, taken out so that each is stored once, and put back."""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import msgspec

BLOB_BYTES = 16 * 1024
_MARK = "\x00blob:"
_NAME = re.compile(rb"\\u0000blob:([0-9a-f]{64})")


def split(body: bytes) -> tuple[bytes, dict[str, bytes]]:
    """The row with every large text replaced by its name, and the texts by name; mostly there is none."""
    if len(body) < BLOB_BYTES:
        return body, {}
    blobs: dict[str, bytes] = {}

    def take(text: str) -> str:
        if len(text) < BLOB_BYTES and not text.startswith(_MARK):
            return text
        content = text.encode()
        name = hashlib.sha256(content).hexdigest()
        blobs[name] = content
        return _MARK + name

    lean = walk(msgspec.json.decode(body), take)
    return (msgspec.json.encode(lean), blobs) if blobs else (body, {})


def join(body: bytes, fetch: Callable[[str], bytes]) -> bytes:
    """The row as it was; `fetch` gives the content of a name."""

    def put(text: str) -> str:
        return fetch(text.removeprefix(_MARK)).decode() if text.startswith(_MARK) else text

    return msgspec.json.encode(walk(msgspec.json.decode(body), put))


def names_in(body: bytes) -> list[str]:
    """The names of the texts that were taken out of a row."""
    return [name.decode() for name in _NAME.findall(body)]


def walk(value: Any, change: Callable[[str], str]) -> Any:
    """Plain data with every text in it changed."""
    match value:
        case str():
            return change(value)
        case dict():
            return {key: walk(inner, change) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [walk(inner, change) for inner in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
