"""Shared helpers for OpenAI APIs: URL, headers, error conversion and schema checks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from outrider._lazy import lazy_pattern
from outrider.errors import ProviderError
from outrider.providers.request_body import tool_parameters
from outrider.types.agents import Provider
from outrider.types.modes import REASONING_EFFORTS, ReasoningEffort
from outrider.types.request import ToolSpec

_DEFAULT_BASE_URL = "https://api.openai.com/v1"


def endpoint_url(provider: Provider, path: str) -> str:
    """Returns the request URL. `options["query"]` adds query parameters; `api_version` is a shortcut for the one that
    Azure requires.

    A query in the base URL is preserved, and a base URL that already ends with the path is used unchanged.
    """
    base = urlsplit(provider.base_url or _DEFAULT_BASE_URL)
    query = dict(parse_qsl(base.query)) | provider.options.get("query", {})
    if version := provider.options.get("api_version"):
        query["api-version"] = version
    base_path = base.path.rstrip("/").removesuffix(f"/{path}")
    return base._replace(path=f"{base_path}/{path}", query=urlencode(query)).geturl()


def provider_host(provider: Provider) -> str:
    return urlsplit(provider.base_url or _DEFAULT_BASE_URL).hostname or ""


def request_headers(provider: Provider) -> dict[str, str]:
    """Returns the request headers. Azure reads the key from `api-key`. Headers from the provider configuration override
    the defaults."""
    headers = {"content-type": "application/json"}
    if provider.api_key and provider_host(provider).endswith(".azure.com"):
        headers["api-key"] = provider.api_key
    elif provider.api_key:
        headers["authorization"] = f"Bearer {provider.api_key}"
    return headers | provider.headers


def error_from_response(status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
    """Converts a response with an error status to a ProviderError."""
    from outrider.providers.response_json import decode_error_body  # lazy: only for errors

    return error_from_payload(decode_error_body(body), status=status, headers=headers)


def error_from_payload(
    payload: Any, *, status: int | None = None, headers: Mapping[str, str] | None = None
) -> ProviderError:
    """Converts an error object, or an object or list that contains one, to a ProviderError. Errors inside a stream have
    no status."""
    from outrider.providers.error_mapping import build_provider_error
    from outrider.providers.response_json import error_fields, format_json

    fields = error_fields(payload)
    texts = (fields.get(name) for name in ("error", "message", "detail"))
    message = next((text for text in texts if isinstance(text, str)), None)
    kind, code = fields.get("type"), fields.get("code")
    return build_provider_error(
        message if message is not None else format_json(fields),
        status=status,
        type=kind if isinstance(kind, str) and kind != "error" else None,
        code=code if isinstance(code, str | int) else None,
        headers=headers,
        upstream_message=_upstream_error(fields.get("metadata")),
    )


def _upstream_error(metadata: Any) -> str:
    """Returns the error that the upstream provider sent to OpenRouter."""
    from outrider.providers.response_json import format_json

    raw: Any = cast("dict[str, Any]", metadata).get("raw") if isinstance(metadata, dict) else None
    return raw if isinstance(raw, str) else format_json(raw) if raw else ""


_MAX_COST = 1_000_000  # dollars of one answer; a larger number is an error of the server


NO_VALUE = msgspec.Raw()


def reported_cost(cost: msgspec.Raw, is_byok: msgspec.Raw, details: msgspec.Raw) -> Decimal | None:
    """Returns the cost in dollars that a gateway reports in the usage of an answer, or None. `cost` is a number, or an
    object with `total_cost` (Perplexity). If the user has a key of the vendor (OpenRouter's `is_byok`), the vendor's
    price is added."""
    amount = _to_dollars(_decode_raw(cost), "total_cost")
    if amount is not None and _decode_raw(is_byok) is True:
        amount += _to_dollars(_decode_raw(details), "upstream_inference_cost") or 0
    return amount


def _decode_raw(value: msgspec.Raw) -> Any:
    """Returns a value that was not decoded with the answer, so that an invalid one does not fail the answer; None if it
    is invalid."""
    try:
        return msgspec.json.decode(value) if value else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _to_dollars(value: Any, name: str) -> Decimal | None:
    """Returns the amount, which may be the field `name` of an object; None if it is not a valid amount."""
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get(name)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return amount if amount.is_finite() and 0 <= amount <= _MAX_COST else None


_MODEL_VERSION = lazy_pattern(r"(?:gpt-(\d+)(?:\.(\d+))?|o\d)(?![a-z\d])(.*)")
_LISTED_VALUES = lazy_pattern(r"(?:supported|allowed|valid) values|must be one of|expected one of", re.IGNORECASE)


@lru_cache(maxsize=64)
def openai_version(model: str) -> tuple[int, int] | None:
    """Returns the version of OpenAI's reasoning models: (5, 4) for gpt-5.4, (0, 0) for the o series; else None."""
    match = _MODEL_VERSION.match(model.rpartition("/")[2].lower())
    if match is None or "-chat" in match[3]:  # the chat models do not accept an effort
        return None
    version = (int(match[1] or 0), int(match[2] or 0))
    return version if not match[1] or version >= (5, 0) else None


def openai_efforts(model: str) -> tuple[str, ...]:
    """Returns the effort levels of OpenAI's reasoning models; empty for other models."""
    version = openai_version(model)
    if version is None:
        return ()
    if "-pro" in model:
        return ("high",) if version < (5, 2) else ("medium", "high", "xhigh")
    if version < (5, 1):
        return ("minimal", "low", "medium", "high") if version == (5, 0) and "codex" not in model else THREE_EFFORTS
    lowest = () if "codex" in model else ("none",)
    highest = ("xhigh", "max") if version >= (5, 6) else ("xhigh",) if version >= (5, 2) or "codex-max" in model else ()
    return (*lowest, *THREE_EFFORTS, *highest)


THREE_EFFORTS = ("low", "medium", "high")


def nearest_effort(supported: Sequence[str], effort: ReasoningEffort) -> str | None:
    """Returns the supported level that is closest to the requested one; "none" only if it is requested."""
    allowed = [level for level in supported if effort == "none" or level != "none"]
    requested = REASONING_EFFORTS.index(effort)
    levels = [level for level in REASONING_EFFORTS if level in allowed]
    return min(levels, key=lambda level: abs(REASONING_EFFORTS.index(level) - requested), default=None)


def efforts_in_error(message: str) -> tuple[str, ...]:
    """Returns the effort levels that an error message lists as supported; empty if it lists none."""
    match = _LISTED_VALUES.search(message)
    words = re.findall(r"[a-z]+", message[match.end() :]) if match else ()
    levels = tuple(level for level in REASONING_EFFORTS if level in words)
    is_about_effort = levels != ("none",) or re.search("effort|reasoning", message)  # other fields accept "none" too
    return levels if is_about_effort else ()


Schema = dict[str, Any]

_UNENFORCED_KEYWORDS = (
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "patternProperties",
    "oneOf",
)


def parameters_with_properties(tool: ToolSpec) -> Schema:
    """Returns the tool's schema with a `properties` key, which the API requires even if it is empty."""
    parameters = tool_parameters(tool)
    return parameters if "properties" in parameters else {**parameters, "properties": {}}


def is_strict_schema(schema: Any) -> bool:
    """Returns True if the schema qualifies for strict mode: each object is closed, requires all properties and uses
    only enforceable keywords."""
    return (
        isinstance(schema, dict)
        and cast("Schema", schema).get("type") == "object"
        and _satisfies_strict(cast("Schema", schema))
    )


def _satisfies_strict(schema: Schema) -> bool:
    if any(keyword in schema for keyword in _UNENFORCED_KEYWORDS):
        return False
    if "properties" in schema or schema.get("type") == "object":
        properties: Schema = schema.get("properties", {})
        closed = schema.get("additionalProperties") is False
        if not closed or set(schema.get("required", ())) != set(properties):
            return False
    return all(_satisfies_strict(inner) for inner in _subschemas(schema))


def _subschemas(schema: Schema) -> Iterator[Schema]:
    for name in ("properties", "$defs", "definitions"):
        yield from schema.get(name, {}).values()
    yield from schema.get("anyOf", ())
    items = schema.get("items")
    if isinstance(items, dict):
        yield cast("Schema", items)
