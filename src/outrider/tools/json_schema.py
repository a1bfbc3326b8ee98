"""Compares a value with a JSON schema: the keywords that programs use, without `format` and remote references."""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from outrider.types.validate import is_object

_MAX_DEPTH = 100  # a schema may refer to itself without end
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": is_object,
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: not isinstance(value, bool) and (isinstance(value, int) or _is_whole(value)),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


def find_schema_problem(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Return where and why a value does not match a schema, or None if it matches."""
    return next(_SchemaCheck(schema).find_problems(value, schema, "", 0), None)


class _SchemaCheck:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def find_problems(self, value: Any, schema: Any, where: str, depth: int) -> Iterator[str]:
        if schema is False:
            yield f"{_place(where)} is not expected"
        if not is_object(schema) or depth > _MAX_DEPTH:
            return
        if "$ref" in schema:
            yield from self.find_problems(value, self._resolve(str(schema["$ref"])), where, depth + 1)
        if (problem := _type_problem(value, schema)) is not None:
            yield f"{_place(where)} {problem}"
            return
        yield from (f"{_place(where)} {problem}" for problem in _value_problems(value, schema))
        if is_object(value):
            yield from self._object_problems(value, schema, where, depth)
        if isinstance(value, list):
            yield from self._array_problems(cast("list[Any]", value), schema, where, depth)
        yield from self._combination_problems(value, schema, where, depth)

    def _matches(self, value: Any, schema: Any, depth: int) -> bool:
        return next(self.find_problems(value, schema, "", depth + 1), None) is None

    def _object_problems(self, value: dict[str, Any], schema: dict[str, Any], where: str, depth: int) -> Iterator[str]:
        if missing := [name for name in schema.get("required", ()) if name not in value]:
            yield f"{_place(where)} lacks {', '.join(missing)}"
        properties = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        for name, item in value.items():
            inner = f"{where}.{name}" if where else name
            matching = [found for pattern, found in patterns.items() if re.search(pattern, name)]
            rules = [*([properties[name]] if name in properties else ()), *matching]
            for rule in rules or [schema.get("additionalProperties", True)]:
                yield from self.find_problems(item, rule, inner, depth + 1)

    def _array_problems(self, value: list[Any], schema: dict[str, Any], where: str, depth: int) -> Iterator[str]:
        first = schema.get("prefixItems", [])
        for number, item in enumerate(value):
            rule = first[number] if number < len(first) else schema.get("items", True)
            yield from self.find_problems(item, rule, f"{where}[{number}]", depth + 1)
        if schema.get("uniqueItems") and _has_equal_items(value):
            yield f"{_place(where)} has equal items"

    def _combination_problems(self, value: Any, schema: dict[str, Any], where: str, depth: int) -> Iterator[str]:
        for rule in schema.get("allOf", ()):
            yield from self.find_problems(value, rule, where, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if keyword not in schema:
                continue
            matching = sum(self._matches(value, rule, depth) for rule in schema[keyword])
            if not matching:
                yield f"{_place(where)} has none of the possible forms"
            elif keyword == "oneOf" and matching > 1:
                yield f"{_place(where)} has more than one of the possible forms"
        if "not" in schema and self._matches(value, schema["not"], depth):
            yield f"{_place(where)} has a form that is excluded"

    def _resolve(self, reference: str) -> Any:
        """Return the schema of a local reference; one that does not exist allows everything."""
        found: Any = self._root
        for name in reference.lstrip("#").split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if is_object(found) else None
        return found


def _type_problem(value: Any, schema: dict[str, Any]) -> str | None:
    wanted = schema.get("type")
    names = cast("list[str]", wanted) if isinstance(wanted, list) else [wanted] if wanted else []
    if not names or any(_TYPES.get(name, lambda _: True)(value) for name in names):
        return None
    return f"must be {' or '.join(names)}, not {_type_name(value)}"


def _value_problems(value: Any, schema: dict[str, Any]) -> Iterator[str]:
    if "const" in schema and not _is_same(value, schema["const"]):
        yield f"must be {schema['const']!r}"
    if "enum" in schema and not any(_is_same(value, allowed) for allowed in schema["enum"]):
        yield f"must be one of {', '.join(map(repr, schema['enum']))}"
    for keyword, measure, is_within, words in _LIMITS:
        limit, size = schema.get(keyword), measure(value)
        if limit is not None and size is not None and not is_within(size, limit):
            yield words.format(limit=limit)
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"does not match {schema['pattern']}"


def _number(value: Any) -> float | None:
    return value if _TYPES["number"](value) else None


def _length(kind: type) -> Callable[[Any], int | None]:
    return lambda value: len(value) if isinstance(value, kind) else None


def _is_multiple(value: float, step: float) -> bool:
    return not step or _is_whole(value / step)


_LIMITS: tuple[tuple[str, Callable[[Any], float | None], Callable[[float, float], bool], str], ...] = (
    ("minimum", _number, operator.ge, "must be at least {limit}"),
    ("maximum", _number, operator.le, "must be at most {limit}"),
    ("exclusiveMinimum", _number, operator.gt, "must be more than {limit}"),
    ("exclusiveMaximum", _number, operator.lt, "must be less than {limit}"),
    ("multipleOf", _number, _is_multiple, "must be a multiple of {limit}"),
    ("minLength", _length(str), operator.ge, "must have at least {limit} characters"),
    ("maxLength", _length(str), operator.le, "must have at most {limit} characters"),
    ("minItems", _length(list), operator.ge, "must have at least {limit} items"),
    ("maxItems", _length(list), operator.le, "must have at most {limit} items"),
    ("minProperties", _length(dict), operator.ge, "must have at least {limit} fields"),
    ("maxProperties", _length(dict), operator.le, "must have at most {limit} fields"),
)


def _is_same(value: Any, other: Any) -> bool:
    """Compare as JSON does: true is not 1."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if is_object(value) and is_object(other):
        return value.keys() == other.keys() and all(_is_same(value[name], other[name]) for name in value)
    if isinstance(value, list) and isinstance(other, list):
        pairs = cast("list[Any]", value), cast("list[Any]", other)
        return len(pairs[0]) == len(pairs[1]) and all(map(_is_same, *pairs))
    return value == other


def _has_equal_items(value: list[Any]) -> bool:
    return any(_is_same(item, before) for number, item in enumerate(value) for before in value[:number])


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _type_name(value: Any) -> str:
    return next((name for name, matches in _TYPES.items() if matches(value)), type(value).__name__)


def _place(where: str) -> str:
    return f"`{where}`" if where else "it"
