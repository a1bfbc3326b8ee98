"""A tool's parameters as every API takes them: an object at the root, and lists that say what they hold.

Servers of tools describe them in all of JSON schema, and one description that an API refuses takes all other tools with
it. So what is refused everywhere is said in other words, as loosely as it must be: the tool itself checks its input.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from outrider.types.request import ToolSpec

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
