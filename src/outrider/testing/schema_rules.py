"""Rules of the model APIs for JSON schemas that they enforce, in their own words."""

from collections.abc import Iterator
from typing import Any, cast

Body = dict[str, Any]
Problems = Iterator[str]


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


_NOT_STRICT = _words(
    "allOf not dependentRequired dependentSchemas if then else patternProperties oneOf minLength maxLength "
    "minProperties maxProperties propertyNames uniqueItems contains unevaluatedProperties prefixItems"
)
_ANTHROPIC_FORMATS = _words("date-time time date duration email hostname uri ipv4 ipv6 uuid")
_ANTHROPIC = _words(
    "type description title enum const anyOf allOf $ref $defs definitions properties required items default format "
    "additionalProperties minItems"
)
_GOOGLE = _words(
    "type description title enum anyOf oneOf $ref $defs $id $anchor properties required items prefixItems format "
    "additionalProperties minItems maxItems minimum maximum propertyOrdering"
)


def strict_problems(what: str, schema: Body) -> Problems:
    """Yields why OpenAI rejects a schema in strict mode."""
    for place, inner in schemas_in(schema, ()):
        head = f"Invalid schema for {what}: In context={place}"
        yield from (f"{head}, '{word}' is not permitted." for word in sorted(inner.keys() & _NOT_STRICT))
        if "$ref" in inner and (beside := sorted(inner.keys() - {"$ref", "$defs"})):
            yield f"{head}, $ref cannot have keywords {set(beside)}."
        if not inner.keys() & {"type", "anyOf", "$ref", "enum", "const"}:
            yield f"{head}, schema must have a 'type' key."
        if inner.get("type") == "array" and "items" not in inner:
            yield f"{head}, array schema missing items."
        if inner.get("type") != "object":
            continue
        if inner.get("additionalProperties") is not False:
            yield f"{head}, 'additionalProperties' is required to be supplied and to be false."
        if set(inner.get("required", ())) != set(inner.get("properties", ())):
            missing = sorted(set(inner.get("properties", ())) - set(inner.get("required", ())))
            yield (
                f"{head}, 'required' is required to be supplied and to be an array including every key in properties. "
                f"Missing '{missing[0] if missing else ''}'."
            )


def anthropic_problems(what: str, schema: Body) -> Problems:
    """Yields why Anthropic rejects a schema that it has to enforce."""
    for _, inner in schemas_in(schema, ()):
        kind = inner.get("type")
        for word in sorted(inner.keys() - _ANTHROPIC):
            yield f"{what}: For '{kind}' type, property '{word}' is not supported"
        if inner.get("minItems", 0) > 1:
            yield f"{what}: For 'array' type, 'minItems' values other than 0 or 1 are not supported"
        if inner.get("format", "date") not in _ANTHROPIC_FORMATS:
            yield f"{what}: '{inner['format']}' is not a supported string format"
        if kind == "object" and inner.get("additionalProperties") is not False:
            yield f"{what}: For 'object' type, 'additionalProperties' must be explicitly set to false"
        if not inner.keys() & {"type", "anyOf", "allOf", "$ref", "enum", "const"}:
            yield f"{what}: a schema must have a 'type'"
    definitions: Body = schema.get("$defs", {})
    if any(name in _references(definitions[name], definitions) for name in definitions):
        yield f"{what}: Circular reference detected in schema definitions"


def google_problems(what: str, schema: Body) -> Problems:
    """Yields why Gemini rejects the JSON schema of a response."""
    for place, inner in schemas_in(schema, ()):
        here = ".".join((what, *place))
        yield from (f"{here}: the keyword {word} is not supported" for word in sorted(inner.keys() - _GOOGLE))
        if "$ref" in inner and any(not word.startswith("$") for word in inner):
            yield f"{here}: a schema with $ref must not have other properties"


def _references(schema: Any, definitions: Body, seen: frozenset[str] = frozenset()) -> frozenset[str]:
    """Returns the names of all definitions that a schema refers to."""
    for _, inner in schemas_in(schema, ()):
        name = str(inner.get("$ref", "")).removeprefix("#/$defs/")
        if name in definitions and name not in seen:
            seen = _references(definitions[name], definitions, seen | {name})
    return seen


def array_problems(what: str, schema: Any, at: tuple[str, ...]) -> Problems:
    """Yields why OpenAI rejects the arrays of a schema."""
    for place, inner in schemas_in(schema, at):
        if inner.get("type") == "array" and "items" not in inner and "prefixItems" not in inner:
            yield f"Invalid schema for {what}: In context={place}, array schema missing items."


def schemas_in(given: Any, at: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Body]]:
    """Yields every schema inside of a schema, with its place."""
    if not isinstance(given, dict):
        return
    schema = cast("Body", given)
    yield at, schema
    for word in ("properties", "$defs", "definitions"):
        for name, inner in cast("Body", schema.get(word) or {}).items():
            yield from schemas_in(inner, (*at, word, name))
    for word in ("items", "additionalProperties", "not"):
        yield from schemas_in(schema.get(word), (*at, word))
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for number, inner in enumerate(cast("list[Any]", schema.get(word) or [])):
            yield from schemas_in(inner, (*at, word, str(number)))
