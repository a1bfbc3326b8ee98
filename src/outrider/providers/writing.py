"""What vendors share when they write a request: bodies from remembered bytes, and the files in them."""

import json
from base64 import b64decode, b64encode
from binascii import Error as DamagedBase64
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import unquote, unquote_to_bytes

import msgspec

from outrider.types.request import Request

_TEXTUAL = (
    "application/json",
    "application/xml",
    "application/yaml",
    "application/x-yaml",
    "application/toml",
    "application/javascript",
    "image/svg+xml",
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


def opening(
    request: Request,
    messages_field: str,
    form: object,
    fields: Callable[[], dict[str, Any]],
    first: Callable[[], bytes] = bytes,
) -> bytes:
    """A body up to the prompt's first message, `first` stands before it. The prompt remembers these bytes as long as
    the request says the same; `form` is what they depend on besides. What a user adds may change at any time."""

    def written() -> bytes:
        return body(merged(fields(), request.settings.extra), messages_field, first())[:-2]

    if request.settings.extra:
        return written()
    said = (request.model, request.system, request.tools, request.settings, request.stream, request.conversation)
    return request.prompt.opening((messages_field, form, said), written)


def finished(opening: bytes, messages: bytes | bytearray) -> bytes:
    """The messages may be many: their bytes are copied once."""
    comma = b"," if messages and not opening.endswith(b"[") else b""
    return b"".join((opening, comma, messages, b"]}"))


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


def media_type(mime: str) -> str:
    """The bare name of a media type, as vendors spell it."""
    bare = mime.partition(";")[0].strip().lower()
    return "image/jpeg" if bare == "image/jpg" else bare


def can_be_fetched(url: str) -> bool:
    """Whether a vendor could fetch it; a file of this machine it cannot."""
    return url.startswith(("https:", "http:", "gs:"))


def unseen(mime: str, url: str, name: str | None) -> str:
    """Words for a file that an API would refuse, and with it the whole conversation."""
    where = f" at {url}" if not url.startswith("data:") else ""
    return (
        f"({name or 'a file'} of type {mime or 'unknown'}{where} was attached, but this model cannot read such files)"
    )


def file_id(url: str) -> str | None:
    """The provider's own name of an uploaded file; None for any other address."""
    return url.removeprefix("file-id:") if url.startswith("file-id:") else None
