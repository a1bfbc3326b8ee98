"""A request's body, put together from what is written anew each time and the messages that are remembered as bytes."""

from collections.abc import Mapping
from typing import Any

import msgspec


def body(head: dict[str, Any], messages_field: str, messages: bytes | bytearray) -> bytes:
    """The messages stand last, so that a request begins with the bytes of the one before it."""
    start = msgspec.json.encode({name: value for name, value in head.items() if name != messages_field})
    comma = b"," if len(start) > 2 else b""
    return b"".join((start[:-1], comma, b'"', messages_field.encode(), b'":[', messages, b"]}"))


def merged(head: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`head` with the user's own fields: objects are merged, lists are continued, anything else is replaced."""
    result = dict(head)
    for name, value in extra.items():
        ours = result.get(name)
        match ours, value:
            case dict(), dict():
                result[name] = merged(ours, value)
            case list(), list():
                result[name] = [*ours, *value]
            case _:
                result[name] = value
    return result
