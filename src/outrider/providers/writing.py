"""What vendors share when they write a request: bodies from remembered bytes, and the files in them."""

import json
from base64 import b64decode, b64encode
from binascii import Error as DamagedBase64
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote, unquote_to_bytes

import msgspec

_TEXTUAL = (
    "application/json",
    "application/xml",
    "application/yaml",
    "application/x-yaml",
    "application/toml",
    "application/javascript",
)


def encoded_json(value: Any) -> bytes:
    """JSON bytes. Half a surrogate pair, as names of files may hold, is replaced: no API takes it."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=msgspec.json.decode)
        return text.encode("utf-8", "replace")


def body(head: dict[str, Any], messages_field: str, messages: bytes | bytearray) -> bytes:
    """The messages stand last, so that a request begins with the bytes of the one before it."""
    start = encoded_json({name: value for name, value in head.items() if name != messages_field})
    comma = b"," if len(start) > 2 else b""
    return b"".join((start[:-1], comma, b'"', messages_field.encode(), b'":[', messages, b"]}"))


def merged(head: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`head` with the user's own fields: objects are merged, lists are continued, anything else is replaced."""
    result = dict(head)
    for name, value in extra.items():
        ours = result.get(name)
        if isinstance(ours, dict) and isinstance(value, dict):
            result[name] = merged(cast("dict[str, Any]", ours), cast("dict[str, Any]", value))
        elif isinstance(ours, list) and isinstance(value, list):
            result[name] = [*cast("list[Any]", ours), *cast("list[Any]", value)]
        else:
            result[name] = value
    return result


def inline(url: str) -> str | None:
    """The base64 of a data: address; None for any other address."""
    if not url.startswith("data:"):
        return None
    head, _, payload = url.partition(",")
    return payload if head.endswith(";base64") else b64encode(unquote_to_bytes(payload)).decode()


def plain_text(mime: str, url: str) -> str | None:
    """The text of a data: address that holds text, for models that read text better than files."""
    if not url.startswith("data:") or not (mime.startswith("text/") or mime in _TEXTUAL):
        return None
    head, _, payload = url.partition(",")
    if not head.endswith(";base64"):
        return unquote(payload)
    try:
        return b64decode(payload, validate=True).decode()
    except (DamagedBase64, UnicodeDecodeError):
        return None


def file_id(url: str) -> str | None:
    """The provider's own name of an uploaded file; None for any other address."""
    return url.removeprefix("file-id:") if url.startswith("file-id:") else None
