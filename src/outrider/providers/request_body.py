"""What vendors share when they write a request: bodies from remembered bytes, and the files in them."""

import json
from base64 import b64decode, b64encode
from binascii import Error as DamagedBase64
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast
from urllib.parse import unquote, unquote_to_bytes

import msgspec

from outrider.types.request import Request, ToolSpec

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


Schema = dict[str, Any]

_MOST_TOOLS = 1024
_CHOICES = ("allOf", "anyOf", "oneOf")
_NOT_AT_THE_ROOT = (*_CHOICES, "enum", "not", "$ref")
_NO_OBJECTS = (None, "string", "number", "integer", "boolean", "array", "null")  # Google's own word is OBJECT
_VALUES = ("default", "const", "enum", "examples")  # no schemas, whatever they look like
Made = TypeVar("Made")


def once_for_each_tool(make: Callable[[ToolSpec], Made]) -> Callable[[ToolSpec], Made]:
    """Remembered by the very object: conversations offer the same tools again and again."""
    remembered: dict[int, tuple[ToolSpec, Made]] = {}

    def made_of(tool: ToolSpec) -> Made:
        known = remembered.get(id(tool))
        if known is None or known[0] is not tool:
            if len(remembered) >= _MOST_TOOLS:
                remembered.clear()
            remembered[id(tool)] = known = (tool, make(tool))
        return known[1]

    return made_of


@once_for_each_tool
def parameters_of(tool: ToolSpec) -> Schema:
    """What is no schema at all, or nested too deeply, is for the API to judge."""
    try:
        return object_schema(tool.parameters)
    except (RecursionError, AttributeError, TypeError, ValueError):
        return tool.parameters


def object_schema(schema: Schema) -> Schema:
    root = _followed(schema, schema)
    if any(word in root for word in _NOT_AT_THE_ROOT):
        root = _joined(root)
    if root.get("type") in _NO_OBJECTS:
        root = {**root, "type": "object"}
    return _with_items(root)


def _joined(root: Schema) -> Schema:
    """One object that may be any of those that the root names."""
    kept = {word: value for word, value in root.items() if word not in _NOT_AT_THE_ROOT}
    properties: Schema = dict(root.get("properties", {}))
    required = set[str](root.get("required", ()))
    for word in _CHOICES:
        members = [_followed(cast("Schema", member), root) for member in root.get(word, ()) if isinstance(member, dict)]
        for name, described in _described(members):
            known = properties.setdefault(name, described)
            if known != described:
                properties[name] = {"anyOf": [*_alternatives(known), described]}
        demands = [set[str](member.get("required", ())) for member in members]
        for name in set[str]().union(*demands):
            if word == "allOf" or all(name in demand for demand in demands):
                required.add(name)
    return kept | {"properties": properties} | ({"required": sorted(required)} if required else {})


def _described(members: list[Schema]) -> Iterator[tuple[str, Schema]]:
    return (named for member in members for named in member.get("properties", {}).items())


def _alternatives(schema: Schema) -> list[Schema]:
    return schema["anyOf"] if schema.keys() == {"anyOf"} else [schema]


def _followed(schema: Schema, root: Schema) -> Schema:
    """The schema that a reference within the root leads to, together with what the reference itself says."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    found: Any = root
    for step in reference.split("/")[1:]:
        found = cast("Schema", found).get(step) if isinstance(found, dict) else None
    if not isinstance(found, dict) or "$ref" in found:
        return schema
    return {word: value for word, value in schema.items() if word != "$ref"} | cast("Schema", found)


def _with_items(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_items(member) for member in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    words = cast("Schema", schema).items()
    mended = {word: value if word in _VALUES else _with_items(value) for word, value in words}
    if mended.get("type") == "array" and "items" not in mended and "prefixItems" not in mended:
        mended["items"] = {}
    return mended
