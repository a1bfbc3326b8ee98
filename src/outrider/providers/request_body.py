"""Request encoding that all vendors share: cached body prefixes, files, and tool schemas."""

import json
import re
from base64 import b64decode
from binascii import Error as DamagedBase64
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar, cast
from urllib.parse import unquote

import msgspec

from outrider.errors import ConfigurationError
from outrider.types.modes import VendorTool
from outrider.types.request import ModelSettings, Request, ToolSpec
from outrider.types.tool_state import parse_data_url

_TEXT_MEDIA_TYPES = (
    "application/json",
    "application/xml",
    "application/yaml",
    "application/x-yaml",
    "application/toml",
    "application/javascript",
    "image/svg+xml",
)


def encode_json(value: Any) -> bytes:
    """Encodes JSON. Lone surrogates, which file names may contain, are replaced, because APIs reject them."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=msgspec.json.decode)
        return text.encode("utf-8", "replace")
    except TypeError as error:  # only `extra` can cause this: all other values of a request have been checked
        raise ConfigurationError(
            f"the request is not JSON: {error}; `extra` of the agent must contain only JSON values"
        ) from error


def build_body(head: dict[str, Any], messages_field: str, messages: bytes | bytearray) -> bytes:
    """Builds a body with the messages last, so that consecutive requests share a byte prefix (vendor caches)."""
    start = encode_json({name: value for name, value in head.items() if name != messages_field})
    comma = b"," if len(start) > 2 else b""
    return b"".join((start[:-1], comma, b'"', messages_field.encode(), b'":[', messages, b"]}"))


def build_body_prefix(
    request: Request,
    messages_field: str,
    cache_key: object,
    fields: Callable[[], dict[str, Any]],
    first_messages: Callable[[], bytes] = bytes,
    *,
    shared: "SharedPrefixes | None" = None,
) -> bytes:
    """Returns the encoded body up to the first message of the prompt.

    The prompt caches these bytes until the model, system text, tools or settings change; `cache_key` has the other
    values that they depend on. `first_messages` returns encoded messages to put before the prompt. Requests with custom
    fields (`settings.extra`) are not cached, since those dicts are mutable. `shared` is passed if the bytes do not
    contain the id of the conversation: sessions with the same agent then use the same bytes.
    """

    def build() -> bytes:
        return build_body(merge_fields(fields(), request.settings.extra), messages_field, first_messages())[:-2]

    if request.settings.extra:
        return build()
    conversation = request.conversation if shared is None else ""
    inputs = (request.model, request.system, request.tools, request.settings, request.stream, conversation)
    inputs_key = (messages_field, cache_key, inputs)
    if shared is None or request.settings.output is not None:
        return request.prompt.opening(inputs_key, build)
    return request.prompt.opening(inputs_key, lambda: shared.find(inputs_key, build))


class SharedPrefixes:
    """The newest body prefixes of a client. A second session with the same agent does not build its prefix again."""

    def __init__(self) -> None:
        self._entries: tuple[tuple[object, bytes], ...] = ()  # replaced as a whole, because threads may use it

    def find(self, inputs_key: object, build: Callable[[], bytes]) -> bytes:
        """Returns the bytes that were built from equal values, or builds them."""
        for key, prefix in self._entries:
            if key == inputs_key:
                return prefix
        prefix = build()
        self._entries = ((inputs_key, prefix), *self._entries[: _MAX_SHARED_PREFIXES - 1])
        return prefix


def finish_body(prefix: bytes, messages: bytes | bytearray) -> bytes:
    """Joins the prefix and the encoded messages in a single copy, because the messages may be large."""
    comma = b"," if messages and not prefix.endswith(b"[") else b""
    return b"".join((prefix, comma, messages, b"]}"))


def insert_bytes(messages: bytes | bytearray, inserts: Sequence[tuple[int, bytes]]) -> bytes | bytearray:
    """Returns encoded messages with bytes inserted at ascending offsets."""
    if not inserts:
        return messages
    chunks, position = list[bytes | bytearray](), 0
    for offset, inserted in inserts:
        chunks += (messages[position:offset], inserted)
        position = offset
    return b"".join((*chunks, messages[position:]))


def merge_fields(head: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Adds custom fields to `head`: merges objects, extends lists, replaces other values."""
    result = dict(head)
    for name, value in extra.items():
        current = result.get(name)
        if isinstance(current, dict) and isinstance(value, dict):
            result[name] = merge_fields(cast("dict[str, Any]", current), cast("dict[str, Any]", value))
        elif isinstance(current, list) and isinstance(value, list):
            result[name] = [*cast("list[Any]", current), *cast("list[Any]", value)]
        else:
            result[name] = value
    return result


def data_url_text(mime: str, url: str) -> str | None:
    """Returns the text of a data: URL with a text media type, else None; models read text better than files."""
    data = parse_data_url(url) if mime.startswith("text/") or mime in _TEXT_MEDIA_TYPES else None
    if data is None:
        return None
    if not data.is_base64:
        return unquote(data.payload)
    try:
        return b64decode(data.payload, validate=True).decode()
    except (DamagedBase64, UnicodeDecodeError):
        return None


def normalize_media_type(mime: str) -> str:
    """Returns the media type without parameters, in the spelling that vendors accept."""
    bare = mime.partition(";")[0].strip().lower()
    return "image/jpeg" if bare == "image/jpg" else bare


def is_fetchable_url(url: str) -> bool:
    """Whether the vendor can fetch the URL itself; it cannot fetch local files."""
    return url.startswith(("https:", "http:", "gs:"))


def unreadable_file_note(mime: str, url: str, name: str | None) -> str:
    """Returns the text that replaces a file of an unsupported type; the API would reject the whole request."""
    where = f" at {url}" if not url.startswith("data:") else ""
    return (
        f"({name or 'a file'} of type {mime or 'unknown'}{where} was attached, but this model cannot read such files)"
    )


def uploaded_file_id(url: str) -> str | None:
    """Returns the provider's id of an uploaded file; None for other URLs."""
    return url.removeprefix("file-id:") if url.startswith("file-id:") else None


# Patterns of error messages about tools of the vendor that a model lacks, or does not combine with functions.
_REJECTED_VENDOR_TOOLS: dict[VendorTool, str] = {
    "web_search": r"web.?search|google.?search|search.?(tool|grounding)",
    "code_execution": r"code.?execution|code.?interpreter",
}
_ALL_REJECTED = r"(built|hosted|server).{0,6}\btool|tool use with function calling"


def find_rejected_vendor_tools(settings: ModelSettings, message: str) -> frozenset[VendorTool]:
    """Returns the requested tools of the vendor that an error message refuses."""
    enabled = settings.vendor_tools
    rejected: frozenset[VendorTool] = frozenset(
        name for name in enabled if re.search(_REJECTED_VENDOR_TOOLS[name], message, re.IGNORECASE)
    )
    return rejected or (frozenset(enabled) if re.search(_ALL_REJECTED, message, re.IGNORECASE) else rejected)


def own_tools(request: Request, vendor_tools: Collection[str]) -> list[ToolSpec]:
    """Returns the tools of the request without those that a tool of the vendor with the same name replaces."""
    return [tool for tool in request.tools if tool.name not in vendor_tools]


def has_schemas(request: Request) -> bool:
    """Returns whether the request has schemas that the API enforces."""
    return request.settings.output is not None or any(map(_is_strict, request.tools))


_is_strict: Callable[[ToolSpec], bool] = attrgetter("strict")


Schema = dict[str, Any]

_MAX_CACHED_TOOLS = 1024
_MAX_SHARED_PREFIXES = 8
_UNION_KEYWORDS = ("allOf", "anyOf", "oneOf")
_FORBIDDEN_ROOT_KEYWORDS = (*_UNION_KEYWORDS, "enum", "not", "$ref")
_NON_OBJECT_TYPES = (None, "string", "number", "integer", "boolean", "array", "null")  # Google also uses "OBJECT"
_VALUE_KEYWORDS = ("default", "const", "enum", "examples")  # their values are data, not schemas
CachedValue = TypeVar("CachedValue")


def cache_per_tool(make: Callable[[ToolSpec], CachedValue]) -> Callable[[ToolSpec], CachedValue]:
    """Caches a function of a ToolSpec by object identity; every request of a conversation has the same tools."""
    cache: dict[int, tuple[ToolSpec, CachedValue]] = {}

    def get_cached(tool: ToolSpec) -> CachedValue:
        entry = cache.get(id(tool))
        if entry is None or entry[0] is not tool:
            if len(cache) >= _MAX_CACHED_TOOLS:
                cache.clear()
            cache[id(tool)] = entry = (tool, make(tool))
        return entry[1]

    return get_cached


@cache_per_tool
def tool_parameters(tool: ToolSpec) -> Schema:
    """Returns the tool's parameters as an object schema; an invalid schema is passed on for the API to reject."""
    try:
        return object_schema(tool.parameters)
    except (RecursionError, AttributeError, TypeError, ValueError):
        return tool.parameters


def object_schema(schema: Schema) -> Schema:
    """Rewrites a schema so that its root is an object without unions and every array has `items`, as APIs require."""
    root = _resolve_reference(schema, schema)
    if any(keyword in root for keyword in _FORBIDDEN_ROOT_KEYWORDS):
        root = _merge_union(root)
    if root.get("type") in _NON_OBJECT_TYPES:
        root = {**root, "type": "object"}
    return _add_array_items(root)


def _merge_union(root: Schema) -> Schema:
    """Merges the members of a root union into one object; a property is required if all members require it."""
    remaining = {keyword: value for keyword, value in root.items() if keyword not in _FORBIDDEN_ROOT_KEYWORDS}
    properties: Schema = dict(root.get("properties", {}))
    required = set[str](root.get("required", ()))
    for keyword in _UNION_KEYWORDS:
        members = [
            _resolve_reference(cast("Schema", member), root)
            for member in root.get(keyword, ())
            if isinstance(member, dict)
        ]
        for name, schema in _iter_properties(members):
            existing = properties.setdefault(name, schema)
            if existing != schema:
                properties[name] = {"anyOf": [*_union_members(existing), schema]}
        required_sets = [set[str](member.get("required", ())) for member in members]
        for name in set[str]().union(*required_sets):
            if keyword == "allOf" or all(name in required_set for required_set in required_sets):
                required.add(name)
    return remaining | {"properties": properties} | ({"required": sorted(required)} if required else {})


def _iter_properties(members: list[Schema]) -> Iterator[tuple[str, Schema]]:
    return (item for member in members for item in member.get("properties", {}).items())


def _union_members(schema: Schema) -> list[Schema]:
    return schema["anyOf"] if schema.keys() == {"anyOf"} else [schema]


def _resolve_reference(schema: Schema, root: Schema) -> Schema:
    """Resolves a `$ref` into the root and merges it with the keywords next to the reference."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    target: Any = root
    for step in reference.split("/")[1:]:
        target = cast("Schema", target).get(step) if isinstance(target, dict) else None
    if not isinstance(target, dict) or "$ref" in target:
        return schema
    return {keyword: value for keyword, value in schema.items() if keyword != "$ref"} | cast("Schema", target)


def _add_array_items(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_add_array_items(member) for member in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    keywords = cast("Schema", schema).items()
    completed = {
        keyword: value if keyword in _VALUE_KEYWORDS else _add_array_items(value) for keyword, value in keywords
    }
    if completed.get("type") == "array" and "items" not in completed and "prefixItems" not in completed:
        completed["items"] = {}
    return completed
