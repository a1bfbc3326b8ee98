"""Schemas in as few words as they can be said: they travel with every request, and cost attention besides money."""

from collections.abc import Collection
from typing import Any, cast

Schema = dict[str, Any]

_REF = "#/$defs/"


def terse(schema: Schema, unsaid: Collection[str] = ()) -> Schema:
    """The same parameters in fewer words. What may be left out need not be allowed to be null, and a default that is
    nothing is what one expects. Nested types stand where they are used, unless they hold themselves."""
    said = {name: hint for name, hint in schema.get("properties", {}).items() if name not in unsaid}
    schema = {**schema, "properties": said}
    definitions: Schema = schema.get("$defs", {})
    short = _short({name: value for name, value in schema.items() if name != "$defs"}, definitions, ())
    left = {name: _short(value, definitions, (name,)) for name, value in definitions.items() if _holds(short, name)}
    return short | ({"$defs": left} if left else {})


def _short(schema: Any, definitions: Schema, inside: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_short(item, definitions, inside) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return int(schema) if isinstance(schema, float) and schema.is_integer() else schema
    found = cast("Schema", schema)
    name = str(found.get("$ref", "")).removeprefix(_REF)
    if name in definitions and name not in inside and not _holds(definitions[name], name):
        rest = {key: value for key, value in found.items() if key != "$ref"}
        return _short({**definitions[name], **rest}, definitions, (*inside, name))
    kept = {key: value for key, value in found.items() if not _goes_without_saying(key, value)}
    required = kept.get("required", ())
    if isinstance(kept.get("properties"), dict):
        properties = cast("Schema", kept["properties"])
        kept["properties"] = {
            one: _short(hint if one in required else _without_null(hint), definitions, inside)
            for one, hint in properties.items()
        }
    return {key: value if key == "properties" else _short(value, definitions, inside) for key, value in kept.items()}


def _goes_without_saying(key: str, value: Any) -> bool:
    match key:
        case "additionalProperties":
            return value is False
        case "required" | "default":
            return not value
        case "title":
            return isinstance(value, str)
        case _:
            return False


def _without_null(hint: Schema) -> Schema:
    choices = [choice for choice in hint.get("anyOf", ()) if choice != {"type": "null"}]
    if not choices:
        return hint
    rest = {key: value for key, value in hint.items() if key != "anyOf"}
    return {**rest, **choices[0]} if len(choices) == 1 else {**rest, "anyOf": choices}


def _holds(schema: Any, name: str) -> bool:
    """Whether a schema refers to a definition anywhere."""
    if isinstance(schema, list):
        return any(_holds(item, name) for item in cast("list[Any]", schema))
    if not isinstance(schema, dict):
        return False
    found = cast("Schema", schema)
    return found.get("$ref") == _REF + name or any(_holds(value, name) for value in found.values())
