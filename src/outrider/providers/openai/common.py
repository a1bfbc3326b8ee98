"""Where a server with OpenAI's shapes is reached, by which headers, and what its refusals say."""

from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

from outrider.errors import ProviderError
from outrider.providers.error_mapping import refusal
from outrider.providers.request_body import parameters_of
from outrider.providers.response_json import said_in, shown
from outrider.types.agents import Provider
from outrider.types.request import ToolSpec

_OPENAI = "https://api.openai.com/v1"


def address(provider: Provider, path: str) -> str:
    """`options["query"]` is added to the address; `api_version` is short for the one that Azure wants there.

    A query in the base address is kept, and an address that already ends in the path is taken as it is."""
    base = urlsplit(provider.base_url or _OPENAI)
    query = dict(parse_qsl(base.query)) | provider.options.get("query", {})
    if version := provider.options.get("api_version"):
        query["api-version"] = version
    place = base.path.rstrip("/").removesuffix(f"/{path}")
    return base._replace(path=f"{place}/{path}", query=urlencode(query)).geturl()


def host(provider: Provider) -> str:
    return urlsplit(provider.base_url or _OPENAI).hostname or ""


def headers(provider: Provider) -> dict[str, str]:
    """Azure wants a key in a header of its own; a provider's own headers count last."""
    found = {"content-type": "application/json"}
    if provider.api_key and host(provider).endswith(".azure.com"):
        found["api-key"] = provider.api_key
    elif provider.api_key:
        found["authorization"] = f"Bearer {provider.api_key}"
    return found | provider.headers


def refused(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """What an answer with an error status means, in any of the shapes that servers give it."""
    return from_error(said_in(body), status=status, headers=headers)


def from_error(said: Any, *, status: int | None = None, headers: Mapping[str, str] | None = None) -> ProviderError:
    """An error object, or whatever holds one; inside a stream there is no status."""
    while (inner := _held(said)) is not None:
        said = inner
    fields: dict[str, Any] = cast("dict[str, Any]", said) if isinstance(said, dict) else {"message": said}
    words = (fields.get(name) for name in ("error", "message", "detail"))
    message = next((word for word in words if isinstance(word, str)), None)
    kind, code = fields.get("type"), fields.get("code")
    return refusal(
        message if message is not None else shown(said),
        status=status,
        type=kind if isinstance(kind, str) and kind != "error" else None,
        code=code if isinstance(code, str | int) else None,
        headers=headers,
        below=_below(fields.get("metadata")),
    )


def _below(metadata: Any) -> str:
    """What OpenRouter was told by the provider that it asked."""
    raw: Any = cast("dict[str, Any]", metadata).get("raw") if isinstance(metadata, dict) else None
    return raw if isinstance(raw, str) else shown(raw) if raw else ""


def _held(said: Any) -> Any:
    """The error that this only holds, or None."""
    if isinstance(said, list):
        return cast("list[Any]", said)[0] if said else None
    fields: dict[str, Any] = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    for inner in (fields.get("error"), fields.get("errors")):
        if inner and isinstance(inner, dict | list):
            return cast("Any", inner)
    return None


Schema = dict[str, Any]

_UNKNOWN = ("allOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties", "oneOf")


def listed_parameters(tool: ToolSpec) -> Schema:
    """The properties are named, even if there are none."""
    parameters = parameters_of(tool)
    return parameters if "properties" in parameters else {**parameters, "properties": {}}


def is_strict(schema: Any) -> bool:
    """Every object is closed and requires all of its properties, and no keyword is one that cannot be enforced."""
    return (
        isinstance(schema, dict) and cast("Schema", schema).get("type") == "object" and _strict(cast("Schema", schema))
    )


def _strict(schema: Schema) -> bool:
    if any(keyword in schema for keyword in _UNKNOWN):
        return False
    if "properties" in schema or schema.get("type") == "object":
        properties: Schema = schema.get("properties", {})
        closed = schema.get("additionalProperties") is False
        if not closed or set(schema.get("required", ())) != set(properties):
            return False
    return all(_strict(inner) for inner in _inner(schema))


def _inner(schema: Schema) -> Iterator[Schema]:
    for name in ("properties", "$defs", "definitions"):
        yield from schema.get(name, {}).values()
    yield from schema.get("anyOf", ())
    items = schema.get("items")
    if isinstance(items, dict):
        yield cast("Schema", items)
