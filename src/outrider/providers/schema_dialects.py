"""JSON schemas in the form that each API accepts: closed and strict where possible, without rejected keywords.

Only what is sent changes. Answers and arguments are validated with the type of the author.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import msgspec
from msgspec.structs import replace

from outrider.errors import InvalidRequestError, ProviderError
from outrider.providers.request_body import cache_per_tool, encode_json, tool_parameters
from outrider.types.request import OutputSchema, Request, ToolSpec
from outrider.types.validate import referenced_definitions

Schema = dict[str, Any]
SchemaDialect = Literal["openai", "anthropic", "google"]

_PROMPT = "Answer with one JSON object, and nothing else, that follows this JSON schema:\n{schema}"
_COMMON = frozenset(("type", "description", "enum", "const", "anyOf", "properties", "required", "items", "$ref"))
_SUPPORTED: dict[SchemaDialect, frozenset[str]] = {
    "openai": _COMMON
    | {
        "additionalProperties",
        "format",
        "pattern",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
    },
    "anthropic": _COMMON | {"additionalProperties", "format", "default", "minItems"},
    "google": _COMMON | {"additionalProperties", "format", "minimum", "maximum", "minItems", "maxItems", "prefixItems"},
}
_FORMATS: dict[SchemaDialect, frozenset[str]] = {
    "openai": frozenset(["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"]),
    "google": frozenset(["date-time", "date", "time"]),
}
_FORMATS["anthropic"] = _FORMATS["openai"] | {"uri"}
_IMPOSSIBLE = ("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties")
_NOT_STRICT = (
    *_IMPOSSIBLE,
    *("allOf", "oneOf", "minLength", "maxLength", "minProperties", "maxProperties", "propertyNames", "uniqueItems"),
    *("contains", "unevaluatedProperties", "prefixItems"),
)
_AS_WRITTEN = _SUPPORTED["anthropic"] | {"title", "$schema", "default", "examples", "allOf", "$defs", "definitions"}
_ENFORCED = ("type", "$ref", "anyOf", "allOf", "enum", "const")
_INNER_MAPS = ("$defs", "definitions")
_INNER_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_WITHOUT_MEANING = ("title", "$schema", "$id", "discriminator", "examples")
_LOOSE = frozenset(("type", "description", "enum", "properties", "required", "items", "anyOf", "$ref", "$defs"))
_OUTPUT_REJECTED = re.compile(
    r"schema|response.?format|output_config|output_format|structured.output|\$ref|\$defs|recursi|grammar|too complex"
    r"|propert(y|ies)\b|responsejson",
    re.IGNORECASE,
)
_TOOLS_REJECTED = re.compile(
    r"\btools?\b\s*[.\[]|\btools?\b.{0,40}schema|input_schema|function.?declaration|function\b.{0,60}(schema|parameter)"
    r"|schema\b.{0,20}\bfunction|parametersjson|parameters",
    re.IGNORECASE | re.DOTALL,
)


class _CannotLower(Exception):
    """Raised for a schema that the API cannot express."""


def lower_schema(schema: Schema, dialect: SchemaDialect) -> Schema | None:
    """Returns the schema of an object in the form of an API that enforces it, or None if it has none: for a dict with
    any keys, for any value, and for recursive types where the API rejects them."""
    definitions: Mapping[str, Schema] = schema.get("$defs", {})
    lowering = _SchemaLowerer(dialect, definitions)
    try:
        root = lowering.lower({key: value for key, value in schema.items() if key != "$defs"})
        if root.get("type") != "object" or (dialect == "anthropic" and _is_recursive(definitions)):
            return None
        lowered = {name: lowering.lower(definition) for name, definition in definitions.items()}
    except (_CannotLower, RecursionError, AttributeError, TypeError):
        return None
    return root | ({"$defs": lowered} if lowered else {})


def lower_written_schema(schema: Schema, dialect: SchemaDialect) -> Schema | None:
    """Returns a schema that the author of a program wrote. It stays as it is if the API accepts it: recorded requests
    show that `title`, `default` and `$schema` are accepted, and that Google ignores what it does not support."""
    is_recursive = dialect == "anthropic" and _is_recursive(schema.get("$defs", {}))
    if dialect == "google" or (schema.get("type") == "object" and not is_recursive and _is_accepted(schema, dialect)):
        return schema
    return lower_schema(schema, dialect)


def _is_accepted(schema: object, dialect: SchemaDialect) -> bool:
    """Whether OpenAI or Anthropic enforces a schema as it is. OpenAI accepts any `format`."""
    if not isinstance(schema, dict):
        return False
    keywords = cast("Schema", schema)
    if keywords.keys().isdisjoint(_ENFORCED) or (
        dialect == "openai" and any(keyword in keywords for keyword in _NOT_STRICT)
    ):
        return False
    properties: Schema = keywords.get("properties", {})
    if "properties" in keywords or keywords.get("type") == "object":
        is_closed = keywords.get("additionalProperties") is False
        if not is_closed or (dialect == "openai" and set(keywords.get("required", ())) != set(properties)):
            return False
    if dialect == "anthropic" and (
        not keywords.keys() <= _AS_WRITTEN
        or keywords.get("minItems", 0) > 1
        or keywords.get("format", "date") not in _FORMATS["anthropic"]
    ):
        return False
    inner = [
        *properties.values(),
        *(member for keyword in _INNER_MAPS for member in keywords.get(keyword, {}).values()),
    ]
    inner += [member for keyword in _INNER_LISTS for member in keywords.get(keyword, ())]
    return all(
        _is_accepted(member, dialect) for member in (*inner, *([keywords["items"]] if "items" in keywords else ()))
    )


class _SchemaLowerer:
    def __init__(self, dialect: SchemaDialect, definitions: Mapping[str, Schema]) -> None:
        self._dialect: SchemaDialect = dialect
        self._definitions = definitions

    def lower(self, schema: Schema) -> Schema:
        keywords = self._prepare(schema)
        lowered = {keyword: value for keyword, value in keywords.items() if keyword in _SUPPORTED[self._dialect]}
        self._lower_parts(lowered, keywords)
        if lowered.get("type") == "object" or "properties" in lowered:
            lowered |= self._close(keywords)
        moved = {
            keyword: value for keyword, value in keywords.items() if keyword not in lowered and keyword != "prefixItems"
        }
        moved |= self._drop_values(lowered)
        return self._describe(lowered, moved)

    def _prepare(self, schema: Schema) -> Schema:
        """Returns the schema without keywords that have no effect, and with one keyword for each meaning."""
        if any(keyword in schema for keyword in _IMPOSSIBLE) or not schema.keys() - {"description", *_WITHOUT_MEANING}:
            raise _CannotLower
        keywords = {keyword: value for keyword, value in schema.items() if keyword not in _WITHOUT_MEANING}
        if "oneOf" in keywords:
            keywords["anyOf"] = keywords.pop("oneOf")
        if "allOf" in keywords:
            (only,) = keywords.pop("allOf") if len(keywords["allOf"]) == 1 else (None,)
            if only is None:
                raise _CannotLower
            keywords = {**only, **keywords}
        if self._dialect == "google":
            _use_inclusive_limits(keywords)
            if "const" in keywords:
                keywords["enum"] = [keywords.pop("const")]
        return keywords

    def _lower_parts(self, lowered: Schema, keywords: Schema) -> None:
        if "anyOf" in keywords:
            lowered["anyOf"] = [self.lower(form) for form in keywords["anyOf"]]
        if isinstance(keywords.get("items"), dict):
            lowered["items"] = self.lower(keywords["items"])
        if "prefixItems" in keywords:
            forms = [self.lower(item) for item in keywords["prefixItems"]]
            if self._dialect == "google":
                lowered["prefixItems"] = forms
            else:
                distinct = [form for index, form in enumerate(forms) if form not in forms[:index]]
                lowered["items"] = distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
        elif keywords.get("type") == "array" and "items" not in lowered:
            raise _CannotLower

    def _close(self, keywords: Schema) -> Schema:
        """Returns the keywords of a closed object. OpenAI requires every property, so a property that may be missing
        becomes one that may be null."""
        properties: Schema = keywords.get("properties") or {}
        lowered = {name: self.lower(member) for name, member in properties.items()}
        additional = keywords.get("additionalProperties", False if "properties" in keywords else None)
        if self._dialect == "google":  # it does not need closed objects
            extra = (
                {"additionalProperties": self.lower(cast("Schema", additional))} if isinstance(additional, dict) else {}
            )
            return ({"properties": lowered} if lowered else {}) | extra
        if additional is not False:
            raise _CannotLower
        required: list[str] = [name for name in properties if name in (keywords.get("required") or ())]
        if self._dialect == "openai":
            lowered = {name: member if name in required else _nullable(member) for name, member in lowered.items()}
            required = list(properties)
        return {"properties": lowered, "required": required, "additionalProperties": False}

    def _drop_values(self, lowered: Schema) -> Schema:
        """Removes values of supported keywords that the API rejects, and returns them."""
        dropped: Schema = {}
        if lowered.get("format", "date") not in _FORMATS[self._dialect]:
            dropped["format"] = lowered.pop("format")
        if self._dialect == "anthropic" and lowered.get("minItems", 0) > 1:
            dropped["minItems"] = lowered.pop("minItems")
        return dropped

    def _describe(self, lowered: Schema, moved: Schema) -> Schema:
        """Returns the schema with the moved keywords in its description. A reference has no other keywords."""
        text = str(lowered.get("description", ""))
        if moved:
            limits = ", ".join(f"{keyword}: {encode_json(value).decode()}" for keyword, value in moved.items())
            text = f"{text} ({limits})" if text else limits
        if not text:
            return lowered
        other_keywords = {keyword: value for keyword, value in lowered.items() if keyword != "description"}
        if "$ref" in other_keywords:
            other_keywords = {"anyOf": [{"$ref": other_keywords["$ref"]}]}
        return {"description": text, **other_keywords}


def _use_inclusive_limits(schema: Schema) -> None:
    """Replaces exclusive limits of integers with inclusive ones."""
    for exclusive, inclusive, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        limit = schema.get(exclusive)
        if schema.get("type") == "integer" and isinstance(limit, int) and inclusive not in schema:
            schema[inclusive] = schema.pop(exclusive) + step


def _nullable(schema: Schema) -> Schema:
    forms: list[Schema] = schema.get("anyOf", [])
    if {"type": "null"} in forms:
        return schema
    if forms:
        return {**schema, "anyOf": [*forms, {"type": "null"}]}
    described = {"description": schema["description"]} if "description" in schema else {}
    other_keywords = {keyword: value for keyword, value in schema.items() if keyword != "description"}
    return {**described, "anyOf": [other_keywords, {"type": "null"}]}


def _is_recursive(definitions: Mapping[str, Schema]) -> bool:
    return any(name in referenced_definitions(definitions[name], definitions) for name in definitions)


def _loosen(schema: Any) -> Any:
    """Returns the schema with the keywords that every API accepts."""
    if isinstance(schema, list):
        return [_loosen(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    loose: Schema = {}
    for keyword, value in cast("Schema", schema).items():
        if keyword in ("properties", "$defs"):
            loose[keyword] = {name: _loosen(member) for name, member in value.items()}
        elif keyword in _LOOSE:
            loose[keyword] = value if keyword == "enum" else _loosen(value)
    return loose


class SchemaLowering:
    """Lowers the schemas of requests for one API. A schema that a model rejects nevertheless is not sent again:
    the output is described in the system prompt, and tools have only the keywords that every API accepts."""

    def __init__(self, dialect: SchemaDialect, *, lowers_tools: bool = True) -> None:
        self._dialect: SchemaDialect = dialect
        self._lowers_tools = lowers_tools
        self._rejected: set[tuple[str, bytes]] = set()  # models and schemas
        self._loose_models: set[str] = set()
        self._outputs: dict[int, tuple[OutputSchema, OutputSchema | None]] = {}
        self._strict_tool = cache_per_tool(self._lower_tool)
        self._loose_tool = cache_per_tool(_loosen_tool)

    def lower_request(self, request: Request, *, native: bool = True) -> Request:
        """Returns the request with lowered schemas. Without `native` the API accepts no output schema, and the caller
        describes it."""
        output = request.settings.output
        changes: dict[str, Any] = {}
        if output is not None and self._is_rejected(request.model, output):
            changes = _describe_in_prompt(request, output)
        elif output is not None and native:
            lowered = self._lower_output(output)
            changes = (
                _describe_in_prompt(request, output)
                if lowered is None
                else {"settings": replace(request.settings, output=lowered)}
            )
        lower_tool: Callable[[ToolSpec], ToolSpec] | None = None
        if request.model in self._loose_models:
            lower_tool = self._loose_tool
        elif any(tool.strict for tool in request.tools):
            lower_tool = self._strict_tool
        if lower_tool is not None:
            changes["tools"] = tuple(lower_tool(tool) for tool in request.tools)
        return replace(request, **changes) if changes else request

    def learn_from_error(self, request: Request, error: ProviderError) -> bool:
        """Stores the schema that an error response rejects. Returns True if the next request differs."""
        if not isinstance(error, InvalidRequestError):
            return False
        output, model = request.settings.output, request.model
        if request.tools and model not in self._loose_models and _TOOLS_REJECTED.search(error.message):
            self._loose_models.add(model)
            if any(self._loose_tool(tool) != tool for tool in request.tools):
                return True
        if output is None or self._is_rejected(model, output) or not _OUTPUT_REJECTED.search(error.message):
            return False
        self._rejected.add((model, encode_json(output.schema)))
        return True

    def _is_rejected(self, model: str, output: OutputSchema) -> bool:
        return bool(self._rejected) and (model, encode_json(output.schema)) in self._rejected

    def _lower_output(self, output: OutputSchema) -> OutputSchema | None:
        """Returns the output schema for the API; None if it cannot be expressed. OpenAI accepts any schema that it does
        not have to enforce."""
        entry = self._outputs.get(id(output))
        if entry is None or entry[0] is not output:
            if len(self._outputs) >= _MAX_OUTPUTS:
                self._outputs.clear()
            lower = lower_schema if output.from_type else lower_written_schema
            schema = lower(output.schema, self._dialect) if output.strict or self._dialect != "openai" else None
            lowered = None if schema is None else replace(output, schema=schema)
            if lowered is None and self._dialect == "openai":
                lowered = replace(output, strict=False)
            self._outputs[id(output)] = entry = (output, lowered)
        return entry[1]

    def _lower_tool(self, tool: ToolSpec) -> ToolSpec:
        if not tool.strict or not self._lowers_tools:
            return tool
        lower = lower_schema if self._dialect == "google" else lower_written_schema
        schema = lower(tool_parameters(tool), self._dialect)
        return replace(tool, strict=False) if schema is None else replace(tool, parameters=schema)


_MAX_OUTPUTS = 256


def _loosen_tool(tool: ToolSpec) -> ToolSpec:
    parameters = tool_parameters(tool)
    loose: Schema = _loosen(parameters)
    if loose == parameters and not tool.strict:
        return tool
    return replace(tool, parameters=loose, strict=False)


def _describe_in_prompt(request: Request, output: OutputSchema) -> dict[str, Any]:
    """Returns the changes that describe the output schema in the system prompt instead."""
    text = _PROMPT.format(schema=msgspec.json.encode(output.schema).decode())
    system = f"{request.system}\n\n{text}" if request.system else text
    return {"settings": replace(request.settings, output=None), "system": system}
