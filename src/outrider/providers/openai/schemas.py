"""What OpenAI asks of a JSON schema, and more where it is to be enforced strictly."""

from collections.abc import Iterator
from typing import Any, cast

from outrider.providers.tool_schemas import parameters_of
from outrider.types.request import ToolSpec

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
