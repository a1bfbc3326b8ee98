"""Adapters of Python types: each has the JSON schema of its type and converts JSON values to it."""

import datetime
import decimal
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Protocol, cast

import msgspec

from outrider.types.validate import is_object

Schema = dict[str, Any]
REFERENCE = "#/$defs/"
MISSING: Any = object()  # no value, where None is one
SCALARS: tuple[type, ...] = (
    str,
    bool,
    int,
    float,
    bytes,
    bytearray,
    type(None),
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
    decimal.Decimal,
)
_MAX_PROBLEMS = 8
_LABELS: dict[type, str] = {
    dict: "object",
    list: "array",
    tuple: "array",
    set: "array",
    frozenset: "array",
    type(None): "null",
}


class ValueMismatch(ValueError):
    """A JSON value that does not have the expected type, with all problems and their paths in the value."""

    def __init__(self, text: str = "", problems: Iterable[tuple[str, str]] = ()) -> None:
        self.problems = list(problems) or [("", text)]
        lines = [
            f"{problem} at `{path.lstrip('.')}`" if path else problem for path, problem in self.problems[:_MAX_PROBLEMS]
        ]
        hidden = len(self.problems) - len(lines)
        super().__init__("; ".join(lines) + (f"; and {hidden} more" if hidden > 0 else ""))

    def inside(self, parent: str) -> list[tuple[str, str]]:
        """Returns the problems with the path of the value that contains this one."""
        return [(parent + path, text) for path, text in self.problems]


def type_mismatch(expected: str, value: object) -> ValueMismatch:
    """Returns the error for a value of another type."""
    return ValueMismatch(f"Expected `{expected}`, got `{_LABELS.get(type(value), type(value).__name__)}`")


class SchemaDefinitions:
    """Collects the schemas of named types, which may be recursive, under unique names."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}
        self._names: dict[int, str] = {}
        self._owners: list[object] = []  # keeps them alive, so that no id is used again

    def refer_to(self, owner: object, name: str, build: Callable[[], Schema]) -> Schema:
        """Returns a reference to the schema of a type, which is built at its first use."""
        reference_name = self._names.get(id(owner))
        if reference_name is None:
            reference_name = self._names[id(owner)] = self._free_name(re.sub(r"\W+", "_", name).strip("_") or "Type")
            self._owners.append(owner)
            self.schemas[reference_name] = {}
            self.schemas[reference_name] = build()
        return {"$ref": REFERENCE + reference_name}

    def take_over(self, schema: Schema) -> Schema:
        """Moves the `$defs` of a schema of another library here; returns the schema with the new references."""
        foreign: dict[str, Schema] = schema.pop("$defs", {})
        renamed: dict[str, str] = {}
        for name, definition in foreign.items():
            existing = self.schemas.get(name)
            renamed[name] = name if existing is None or existing == definition else self._free_name(name)
            self.schemas.setdefault(renamed[name], definition)
        if any(old != new for old, new in renamed.items()):
            for old, new in renamed.items():
                self.schemas[new] = _rename_references(foreign[old], renamed)
            return _rename_references(schema, renamed)
        return schema

    def _free_name(self, name: str) -> str:
        number, free = 1, name
        while free in self.schemas:
            number += 1
            free = f"{name}_{number}"
        return free


def _rename_references(schema: Any, renamed: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_rename_references(item, renamed) for item in cast("list[Any]", schema)]
    if not is_object(schema):
        return schema
    changed = {key: _rename_references(value, renamed) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.removeprefix(REFERENCE)
        changed["$ref"] = REFERENCE + renamed.get(name, name)
    return changed


class TypeAdapter(Protocol):
    """The JSON schema of one type, and the conversion of JSON values to it. `label` names the type in messages."""

    @property
    def label(self) -> str: ...

    def schema(self, definitions: SchemaDefinitions) -> Schema: ...

    def convert(self, value: Any, *, strict: bool = False) -> Any:
        """Returns the value of the type. Raises ValueMismatch. Unless `strict`, a string that contains a number or a
        boolean is accepted for one."""
        ...


def object_keys(adapter: TypeAdapter) -> frozenset[str] | None:
    """Returns the keys of an object type, None for other types."""
    return adapter.keys() if isinstance(adapter, ObjectAdapter | PydanticAdapter) else None


def accepts_text(adapter: TypeAdapter) -> bool:
    """Returns whether any string is a value of the type."""
    members = adapter.members if isinstance(adapter, UnionAdapter) else (adapter,)
    return any(isinstance(member, ScalarAdapter) and member.kind is str for member in members)


class AnyAdapter:
    """Any JSON value."""

    label = "any"

    def schema(self, definitions: SchemaDefinitions) -> Schema:
        return {}

    def convert(self, value: Any, *, strict: bool = False) -> Any:
        return value


_JSON_SCALARS = frozenset({str, int, float, bool})  # a value of such a class is the converted value


class ScalarAdapter:
    """A type that msgspec reads from one JSON value: text, numbers, booleans, null, dates, UUIDs, bytes. `build` makes
    a value of a subclass."""

    def __init__(self, kind: type[Any], build: Callable[[Any], Any] | None = None) -> None:
        self.kind = kind
        self.label = "null" if kind is type(None) else kind.__name__
        self._build = build
        self.unconverted = kind if kind in _JSON_SCALARS and build is None else None

    def schema(self, definitions: SchemaDefinitions) -> Schema:
        return msgspec.json.schema(self.kind)

    def convert(self, value: Any, *, strict: bool = False) -> Any:
        if value.__class__ is self.unconverted:
            return value
        try:
            converted = msgspec.convert(value, self.kind, strict=strict)
            return converted if self._build is None else self._build(converted)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueMismatch(str(error)) from error


class TextAdapter:
    """A class whose values are made from a string, such as a path."""

    def __init__(self, cls: type[Any], keywords: Schema | None = None) -> None:
        self.cls = cls
        self.label = cls.__name__
        self._keywords = keywords or {}

    def schema(self, definitions: SchemaDefinitions) -> Schema:
        return {"type": "string", **self._keywords}

    def convert(self, value: Any, *, strict: bool = False) -> Any:
        if not isinstance(value, str):
            raise type_mismatch("str", value)
        try:
            return self.cls(value)
        except (ValueError, TypeError, LookupError) as error:
            raise ValueMismatch(f"{value!r} is not a valid {self.label}: {error}") from error


class ChoiceAdapter:
    """A Literal or an Enum: the values in the order in which they are written, and what each of them becomes. An
    enum has its own definition."""

    def __init__(self, label: str, choices: Sequence[tuple[Any, Any]], owner: type[Any] | None = None) -> None:
        self.label = label
        self.choices = choices
        self._owner = owner
        self._values: dict[tuple[type[Any], Any], Any] = {(type(value), value): choice for value, choice in choices}

    def schema(self, definitions: SchemaDefinitions) -> Schema:
        if self._owner is None:
            return self._list_choices()
        return definitions.refer_to(self._owner, self._owner.__name__, self._describe_owner)

    def _describe_owner(self) -> Schema:
        text = class_description(self._owner) if self._owner else ""
        return ({"description": text} if text else {}) | self._list_choices()

    def _list_choices(self) -> Schema:
        by_type: dict[str, list[Any]] = {}
        for value, _ in self.choices:
            by_type.setdefault(_json_type(value), []).append(value)
        forms: list[Schema] = [
            {"type": name} if name == "null" else {"type": name, "enum": values} for name, values in by_type.items()
        ]
        return forms[0] if len(forms) == 1 else {"anyOf": forms}

    def convert(self, value: Any, *, strict: bool = False) -> Any:
        for attempt in (value,) if strict or not isinstance(value, str) else (value, _read_number(value)):
            with suppress(TypeError):  # a list or an object has no hash
                if (choice := self._values.get((cast("type[Any]", type(attempt)), attempt), MISSING)) is not MISSING:
                    return choice
        kinds: set[type[Any]] = {type(json_value) for json_value, _ in self.choices}
        if type(value) not in kinds:
            raise type_mismatch(" | ".join(sorted(_LABELS.get(kind, kind.__name__) for kind in kinds)), value)
        raise ValueMismatch(f"Invalid enum value {value!r}")


def _json_type(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "null" if value is None else "string"


def _read_number(text: str) -> Any:
    try:
        return msgspec.convert(text, int | float | bool | None, strict=False)
    except (ValueError, TypeError):
        return text


class ArrayAdapter:
    """A list, set or other collection of one item type."""

    def __init__(self, item: TypeAdapter, build: Callable[[list[Any]], Any]) -> None:
        self.label = "array"
        self._item = item
        self._build = build

    def schema(self, definitions: SchemaDefinitions) -> Schema:
        items = self._item.schema(definitions)
        return {"type": "array", "items": items} if items else {"type": "array"}

    def convert(self, value: Any, *, strict: bool = False) -> Any:
        values = _as_list(value)
        items, problems = _convert_items([self._item] * len(values), values, strict=strict)
        if problems:
            raise ValueMismatch(problems=problems)
        try:
            return self._build(items)
        except TypeError as error:
            raise ValueMismatch(f"the items cannot be in a {self.label}: {error}") from error


class TupleAdapter:
    """A tuple with one type for each position."""

    def __init__(self, items: Sequence[TypeAdapter]) -> None:
        self.label = "array"
        self._items = items

    def schema(self, definitions: SchemaDefinitions) -> Schema:
        size = len(self._items)
        schema: Schema = {"type": "array", "minItems": size, "maxItems": size}
        return schema | ({"prefixItems": [item.schema(definitions) for item in self._items]} if size else {})

    def convert(self, value: Any, *, strict: bool = False) -> Any:
        values = _as_list(value)
        if len(values) != len(self._items):
            raise ValueMismatch(f"Expected `array` of length {len(self._items)}, got {len(values)}")
        items, problems = _convert_items(self._items, values, strict=strict)
        if problems:
            raise ValueMismatch(problems=problems)
        return tuple(items)


def _as_list(value: object) -> list[Any]:
    if isinstance(value, list | tuple | set | frozenset):
        return list(cast("Iterable[Any]", value))
    raise type_mismatch("array", value)


def _convert_items(
    adapters: Sequence[TypeAdapter], values: Sequence[Any], *, strict: bool
) -> tuple[list[Any], list[tuple[str, str]]]:
    items: list[Any] = []
    problems: list[tuple[str, str]] = []
    for position, (adapter, value) in enumerate(zip(adapters, values, strict=True)):
        try:
            items.append(adapter.convert(value, strict=strict))
        except ValueMismatch as error:
            problems += error.inside(f"[{position}]")
    return items, problems


class MappingAdapter:
    """A dict with one type for its keys and one for its values."""

    def __init__(self, key: TypeAdapter, value: TypeAdapter, build: Callable[[dict[Any, Any]], Any]) -> None:
        self.label = "object"
        self._key = key
        self._value = value
        self._build = build

    def schema(self, definitions: SchemaDefinitions) -> Schema:
        schema: Schema = {"type": "object"}
        if values := self._value.schema(definitions):
            schema["additionalProperties"] = values
        names = self._key.schema(definitions)
        if names.keys() - {"type", "description"} and not isinstance(self._key, ScalarAdapter):
            schema["propertyNames"] = names
        return schema

    def convert(self, value: Any, *, strict: bool = False) -> Any:
        if not is_object(value):
            raise type_mismatch("object", value)
        converted: dict[Any, Any] = {}
        problems: list[tuple[str, str]] = []
        for name, item in value.items():
            try:
                converted[self._key.convert(name)] = self._value.convert(item, strict=strict)
            except ValueMismatch as error:
                problems += error.inside(f".{name}")
        if problems:
            raise ValueMismatch(problems=problems)
        return self._build(converted)


class TypedField(msgspec.Struct, frozen=True):
    """A field of an object or a parameter of a function. `key` is its name in JSON."""

    name: str
    key: str
    adapter: Any  # a TypeAdapter
    default: Any = MISSING
    default_factory: Callable[[], Any] | None = None
    required: bool = True
    description: str = ""

    def schema(self, definitions: SchemaDefinitions) -> Schema:
        adapter: TypeAdapter = self.adapter
        schema = adapter.schema(definitions)
        if self.description:
            schema = {"description": self.description, **{k: v for k, v in schema.items() if k != "description"}}
        default = self._json_default()
        return schema if default is MISSING else {**schema, "default": default}

    def make_default(self) -> Any:
        """Returns the default, MISSING without one."""
        return self.default_factory() if self.default_factory is not None else self.default

    def _json_default(self) -> Any:
        """Returns the default as a JSON value, MISSING if there is none or if it cannot be written."""
        if self.default_factory is not None and self.default_factory not in (list, dict):
            return MISSING
        default = self.make_default()
        if default is MISSING or default is msgspec.UNSET:
            return MISSING
        if isinstance(default, Enum) and isinstance(self.adapter, ChoiceAdapter):
            return next((value for value, choice in self.adapter.choices if choice is default), MISSING)
        with suppress(TypeError, ValueError, RecursionError):
            return msgspec.to_builtins(default, enc_hook=_dump_default)
        return MISSING


def _dump_default(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "__fspath__"):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def convert_fields(
    fields: Iterable[TypedField], value: Mapping[str, Any], *, strict: bool, nulls: bool = True
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Returns the values of the fields by name, and the problems. With `nulls`, a null for a field that has a default
    and accepts no null means the default, because models that have to fill in every field send null for it."""
    values: dict[str, Any] = {}
    problems: list[tuple[str, str]] = []
    for field in fields:
        field_value = value.get(field.key, MISSING)
        if field_value.__class__ is getattr(field.adapter, "unconverted", None):  # the usual case
            values[field.name] = field_value
            continue
        try:
            converted = _convert_field(field, field_value, strict=strict, nulls=nulls)
        except ValueMismatch as error:
            problems += error.inside(f".{field.key}" if field.key in value else "")
            continue
        if converted is not MISSING:
            values[field.name] = converted
    return values, problems


def _convert_field(field: TypedField, field_value: Any, *, strict: bool, nulls: bool) -> Any:
    if field_value is MISSING:
        if field.required:
            raise ValueMismatch(f"Object missing required field `{field.key}`")
        return field.make_default()
    adapter: TypeAdapter = field.adapter
    try:
        return adapter.convert(field_value, strict=strict)
    except ValueMismatch:
        if field_value is not None or field.required or not nulls:
            raise
    return field.make_default()


class ObjectAdapter:
    """A class with fields: a dataclass, TypedDict, NamedTuple, msgspec Struct or attrs class. `fields` are set after
    its creation, because they may refer to it. `tag` is a key with a fixed value that names the class."""

    def __init__(self, owner: object, label: str, build: Callable[..., Any], *, description: str = "") -> None:
        self.label = label
        self.fields: Sequence[TypedField] = ()
        self.tag: tuple[str, Any] | None = None
        self.closed = False
        self.positional = False  # an array is accepted too
        self._owner = owner
        self._build = build
        self._description = description

    def keys(self) -> frozenset[str]:
        return frozenset(field.key for field in self.fields) | ({self.tag[0]} if self.tag else frozenset[str]())

    def schema(self, definitions: SchemaDefinitions) -> Schema:
        return definitions.refer_to(self._owner, self.label, lambda: self._describe(definitions))

    def _describe(self, definitions: SchemaDefinitions) -> Schema:
        schema: Schema = {"description": self._description} if self._description else {}
        properties: Schema = {}
        required = [field.key for field in self.fields if field.required]
        if self.tag:
            kind = _json_type(self.tag[1])
            properties[self.tag[0]] = {"type": kind, "enum": [self.tag[1]]}
            required.insert(0, self.tag[0])
        properties |= {field.key: field.schema(definitions) for field in self.fields}
        schema |= {"type": "object", "properties": properties, "required": required}
        return schema | ({"additionalProperties": False} if self.closed else {})

    def convert(self, value: Any, *, strict: bool = False) -> Any:
        if self.positional and isinstance(value, list | tuple):
            value = self._name_items(cast("Sequence[Any]", value))
        if not is_object(value):
            raise type_mismatch("object", value)
        values, problems = convert_fields(self.fields, value, strict=strict)
        if self.tag and value.get(self.tag[0], self.tag[1]) != self.tag[1]:
            problems.append((f".{self.tag[0]}", f"Invalid value {value[self.tag[0]]!r}"))
        if self.closed and (unknown := value.keys() - self.keys()):
            problems += [("", f"Object contains unknown field `{name}`") for name in sorted(unknown)]
        if problems:
            raise ValueMismatch(problems=problems)
        try:
            return self._build(**values)
        except (ValueError, TypeError, AssertionError) as error:
            raise ValueMismatch(str(error) or type(error).__name__) from error

    def _name_items(self, items: Sequence[Any]) -> dict[str, Any]:
        if len(items) > len(self.fields):
            raise ValueMismatch(f"Expected `array` of at most length {len(self.fields)}, got {len(items)}")
        return {field.key: item for field, item in zip(self.fields, items, strict=False)}


class UnionAdapter:
    """One of several types.

    Objects are distinguished by a field with fixed values if all of them have one, else by the number of known keys.
    Other values are distinguished by their type, without a conversion if possible.
    """

    def __init__(self, members: Sequence[TypeAdapter]) -> None:
        self.members = members
        self._tags: tuple[str, dict[Any, TypeAdapter]] | None = None
        self._are_tags_known = False

    @property
    def label(self) -> str:
        return " | ".join(dict.fromkeys(member.label for member in self.members))

    def schema(self, definitions: SchemaDefinitions) -> Schema:
        forms: list[Schema] = []
        for member in self.members:
            schema = member.schema(definitions)
            forms += schema["anyOf"] if schema.keys() == {"anyOf"} else [schema]
        return {"anyOf": forms}

    def convert(self, value: Any, *, strict: bool = False) -> Any:
        if is_object(value) and (tags := self._find_tags()) and tags[0] in value:
            tag = value[tags[0]]
            member = tags[1].get(tag) if isinstance(tag, str | int | bool | None) else None
            if member is None:
                tag_values = ", ".join(repr(tag_value) for tag_value in tags[1])
                raise ValueMismatch(problems=[(f".{tags[0]}", f"Invalid value {tag!r}; it is one of {tag_values}")])
            return member.convert(value, strict=strict)
        problems: list[tuple[TypeAdapter, ValueMismatch]] = []
        for mode in (True,) if strict else (True, False):
            problems.clear()
            converted = self._convert_as_members(value, problems, strict=mode)
            if converted is not MISSING:
                return converted
        raise self._explain(value, problems)

    def _convert_as_members(
        self, value: Any, problems: list[tuple[TypeAdapter, ValueMismatch]], *, strict: bool
    ) -> Any:
        """Returns the value converted by the member that knows most of its keys, or by the first member that accepts
        it."""
        best, best_score = MISSING, -1
        for member in self.members:
            try:
                converted = member.convert(value, strict=strict)
            except ValueMismatch as error:
                problems.append((member, error))
                continue
            score = _count_known_keys(member, value)
            if score > best_score:
                best, best_score = converted, score
        return best

    def _explain(self, value: Any, problems: list[tuple[TypeAdapter, ValueMismatch]]) -> ValueMismatch:
        objects = [pair for pair in problems if object_keys(pair[0]) is not None]
        if not is_object(value) or not objects:
            near = [error for _, error in problems if error.problems[0][0] or "got `" not in str(error)]
            return near[0] if len(near) == 1 else type_mismatch(self.label, value)
        member, error = max(objects, key=lambda pair: _count_known_keys(pair[0], value))
        if len(objects) == 1:
            return error
        names = ", ".join(pair.label for pair, _ in objects)
        head = f"the object is none of {names}; as {member.label}:"
        (path, text), *further = error.problems
        return ValueMismatch(problems=[(path, f"{head} {text}"), *further])

    def _find_tags(self) -> tuple[str, dict[Any, TypeAdapter]] | None:
        """Returns the key that distinguishes the objects, and the member for each of its values."""
        if not self._are_tags_known:
            self._are_tags_known = True
            objects = [member for member in self.members if object_keys(member) is not None]
            if len(objects) > 1 and all(isinstance(member, ObjectAdapter) for member in objects):
                self._tags = _common_tag(cast("list[ObjectAdapter]", objects))
        return self._tags


def _common_tag(members: "list[ObjectAdapter]") -> tuple[str, dict[Any, TypeAdapter]] | None:
    choices = [_fixed_values(member) for member in members]
    for key in choices[0]:
        if not all(key in values for values in choices):
            continue
        pairs = [
            (tag_value, member) for values, member in zip(choices, members, strict=True) for tag_value in values[key]
        ]
        if len({tag_value for tag_value, _ in pairs}) == len(pairs):
            return key, dict(pairs)
    return None


def _fixed_values(member: "ObjectAdapter") -> dict[str, list[Any]]:
    values = {
        field.key: [value for value, _ in field.adapter.choices]
        for field in member.fields
        if isinstance(field.adapter, ChoiceAdapter)
    }
    return values | ({member.tag[0]: [member.tag[1]]} if member.tag else {})


def _count_known_keys(member: TypeAdapter, value: Any) -> int:
    keys = object_keys(member)
    return len(keys & value.keys()) if keys is not None and is_object(value) else 0


class PydanticAdapter:
    """A type that pydantic describes and validates: its models, and hints with its metadata."""

    def __init__(self, hint: Any, label: str) -> None:
        from pydantic import TypeAdapter as Pydantic  # only for programs that use it

        self._adapter: Any = Pydantic(hint)
        self.label = label
        self._fields: dict[str, Any] | None = getattr(hint, "model_fields", None)

    def keys(self) -> frozenset[str] | None:
        """Returns the keys of a model, None for other types."""
        if self._fields is None:
            return None
        return frozenset(self._fields) | {field.alias for field in self._fields.values() if field.alias}

    def schema(self, definitions: SchemaDefinitions) -> Schema:
        schema: Schema = self._adapter.json_schema(ref_template=REFERENCE + "{model}")
        return definitions.take_over(schema)

    def convert(self, value: Any, *, strict: bool = False) -> Any:
        try:
            return self._validate(value, strict=strict)
        except ValueError as error:
            without = _without_rejected_nulls(value, getattr(error, "errors", list)())
            if without is not None:
                with suppress(ValueError):
                    return self._validate(without, strict=strict)
            raise self._describe(error) from error

    def _validate(self, value: Any, *, strict: bool) -> Any:
        if strict:
            return self._adapter.validate_json(msgspec.json.encode(value), strict=True)
        return self._adapter.validate_python(value)

    def _describe(self, error: ValueError) -> ValueMismatch:
        errors: list[dict[str, Any]] = getattr(error, "errors", list)()
        lines = [f"{'.'.join(map(str, item['loc'])) or self.label}: {item['msg']}" for item in errors]
        return ValueMismatch(", ".join(lines) or str(error))


def _without_rejected_nulls(value: Any, errors: list[dict[str, Any]]) -> Any:
    """Returns the value without the nulls that were rejected; None if something else was rejected."""
    if not errors or any(item.get("input", "") is not None or not item["loc"] for item in errors):
        return None
    changed = msgspec.json.decode(msgspec.json.encode(value))
    for item in errors:
        *path, key = item["loc"]
        holder: Any = changed
        try:
            for step in path:
                holder = holder[step]
            del holder[key]
        except (LookupError, TypeError):  # the path names a member of a union
            return None
    return changed


class MsgspecAdapter:
    """A type that only msgspec can describe, such as a Struct that is written as an array."""

    def __init__(self, hint: Any, label: str) -> None:
        self._hint = hint
        self.label = label
        msgspec.json.schema(hint)

    def schema(self, definitions: SchemaDefinitions) -> Schema:
        (root,), components = msgspec.json.schema_components((self._hint,), ref_template=REFERENCE + "{name}")
        return definitions.take_over({**root, "$defs": dict(components)})

    def convert(self, value: Any, *, strict: bool = False) -> Any:
        try:
            return msgspec.convert(value, self._hint, strict=strict)
        except (ValueError, TypeError) as error:
            raise ValueMismatch(str(error)) from error


def class_description(cls: type[Any]) -> str:
    """Returns the docstring that the author of a class wrote, "" for one that was generated or inherited."""
    text = (cls.__dict__.get("__doc__") or "").strip()
    is_generated = text.startswith(f"{cls.__name__}(") or text in ("An enumeration.", (Enum.__doc__ or "").strip())
    return "" if is_generated else text
