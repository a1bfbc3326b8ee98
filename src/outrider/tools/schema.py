"""Derives the JSON schema of a function from its type hints, converts arguments by them, and checks JSON values.

`find_schema_problem` checks a value against any JSON schema, such as one of an MCP server.
"""

import inspect
import operator
import re
import sys
import typing
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from functools import cached_property, partial
from importlib import import_module
from types import FunctionType, NoneType, UnionType
from typing import Annotated, Any, cast, get_args, get_origin
from weakref import WeakKeyDictionary

import msgspec

from outrider.errors import ConfigurationError, ToolFailure
from outrider.tools.type_adapters import (
    MISSING,
    ObjectAdapter,
    Schema,
    SchemaDefinitions,
    TypeAdapter,
    TypedField,
    ValueMismatch,
    convert_fields,
)
from outrider.tools.type_hints import TypeCompiler, UnsupportedTypeError, compile_type, describe_type, inline_root
from outrider.tools.type_notes import parse_docstring
from outrider.types.validate import is_object


class ToolSignature(msgspec.Struct, frozen=True, dict=True):
    """Parameters of a tool function, and the name of the parameter for the context, if any."""

    parameters: tuple[TypedField, ...]
    context_parameter: str | None
    accepts_extra: bool

    @cached_property
    def argument_names(self) -> frozenset[str]:
        """The names of the arguments in JSON."""
        return frozenset(field.key for field in self.parameters)

    def json_schema(self) -> dict[str, Any]:
        """Returns the schema of the arguments; the caller may change it."""
        return msgspec.json.decode(self._encoded_schema)

    @cached_property
    def _encoded_schema(self) -> bytes:
        """The schema as JSON; built once, because programs create tools of the same functions for every run."""
        definitions = SchemaDefinitions()
        properties = {field.key: field.schema(definitions) for field in self.parameters}
        required = [field.key for field in self.parameters if field.required]
        root = {"type": "object", "properties": properties, "required": required}
        return msgspec.json.encode(inline_root(root | {"additionalProperties": self.accepts_extra}, definitions))


def schema_for_type(hint: Any) -> dict[str, Any]:
    """Returns the JSON schema of a type hint, with referenced types in `$defs`."""
    return describe_type(compile_type(hint))


class UnresolvedHintError(ConfigurationError):
    """A type hint names something that does not exist yet; it may be defined later."""


def read_signature(function: Callable[..., Any], context_type: type, tool: str = "") -> ToolSignature:
    """Returns the signature of a function, cached per function. A parameter of `context_type` is not part of the
    schema. Raises ConfigurationError for a parameter that a model cannot pass."""
    if not isinstance(function, FunctionType):
        return _inspect_signature(function, context_type, tool)
    definition = _signatures.get(function)
    if definition is None:
        definition = _signatures[function] = _read_definition(function, context_type, tool)
    return definition


_signatures: WeakKeyDictionary[FunctionType, ToolSignature] = WeakKeyDictionary()
_definitions: dict[Hashable, ToolSignature] = {}
_MAX_DEFINITIONS = 256


def _read_definition(function: FunctionType, context_type: type, tool: str) -> ToolSignature:
    """Returns the signature of a plain function. Closures of one definition share the result, because inspecting a
    function takes longer than a short run."""
    try:
        hints = tuple((name, _hint_key(hint)) for name, hint in function.__annotations__.items())
        defaults = tuple(map(_value_key, function.__defaults__ or ()))
        named = tuple((name, _value_key(value)) for name, value in (function.__kwdefaults__ or {}).items())
    except _UnsharedError:
        return _inspect_signature(function, context_type, tool)
    key = (function.__code__, function.__doc__, hints, defaults, named, context_type)
    signature_parts = _definitions.get(key)
    if signature_parts is None:
        if len(_definitions) >= _MAX_DEFINITIONS:
            _definitions.clear()
        signature_parts = _definitions[key] = _inspect_signature(function, context_type, tool)
    return signature_parts


class _UnsharedError(Exception):
    """A hint or a default value may mean something else in each function."""


_SHARED_ORIGINS = (typing.Union, UnionType, list, dict, tuple)
_PLAIN_VALUES = (str, int, float, bool, NoneType)


def _hint_key(hint: Any) -> Hashable:
    """Returns a key that only hints with the same meaning have. Hints themselves are no such key: a name in a string
    may mean different classes, and unions whose members are in another order are equal."""
    origin = get_origin(hint)
    if origin is None and (hint is Any or hint is None or isinstance(hint, type)):
        return hint
    if origin is Annotated and all(isinstance(note, str) for note in hint.__metadata__):
        return (Annotated, _hint_key(hint.__origin__), hint.__metadata__)
    if origin is typing.Literal:
        return (typing.Literal, *map(_value_key, get_args(hint)))
    if origin in _SHARED_ORIGINS:
        return (origin, *map(_hint_key, get_args(hint)))
    raise _UnsharedError


def _value_key(value: Any) -> Hashable:
    """Returns a key that only equal values of the same type have: 1, 1.0 and True are equal."""
    kind: type[Any] = value.__class__
    if kind not in _PLAIN_VALUES:
        raise _UnsharedError
    return kind, value


def _inspect_signature(function: Callable[..., Any], context_type: type, tool: str) -> ToolSignature:
    name = tool or function_name(function)
    hints = _type_hints(function, name)
    documented = parse_docstring(function_docs(function)).parameters
    compiler = TypeCompiler()
    fields: list[TypedField] = []
    context_parameter: str | None = None
    accepts_extra = False
    for parameter in _list_parameters(function, name):
        hint = hints.get(parameter.name, Any)
        if _is_context(hint, context_type):
            if context_parameter is not None:
                raise ConfigurationError(
                    f"tool {name}: the parameters {context_parameter!r} and {parameter.name!r} both have the type "
                    f"{context_type.__name__}; use one"
                )
            context_parameter = parameter.name
        elif parameter.kind is parameter.VAR_KEYWORD:
            accepts_extra = not (unpacked := _unpacked_fields(hint, compiler))
            fields += unpacked
        else:
            _check_parameter(name, parameter, is_first=not fields, has_hint=parameter.name in hints)
            fields.append(_parameter_field(name, parameter, hint, documented.get(parameter.name, ""), compiler))
    return ToolSignature(tuple(fields), context_parameter, accepts_extra)


def _list_parameters(function: Callable[..., Any], tool: str) -> list[inspect.Parameter]:
    """Returns the parameters that are not bound yet: what `functools.partial` fills in is not offered to a model."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"tool {tool}: its parameters are not known ({error}); wrap it in a function with parameters"
        ) from error
    bound = function.keywords if isinstance(function, partial) else {}
    return [parameter for parameter in parameters if parameter.name not in bound]


def _is_context(hint: Any, context_type: type) -> bool:
    if get_origin(hint) in (typing.Union, UnionType):
        return any(_is_context(member, context_type) for member in get_args(hint))
    return hint is context_type or get_origin(hint) is context_type


def _unpacked_fields(hint: Any, compiler: TypeCompiler) -> list[TypedField]:
    """Returns the fields of `**options: Unpack[SomeTypedDict]`."""
    if get_origin(hint) is not typing.Unpack:
        return []
    adapter = compiler.compile(get_args(hint)[0])
    return list(adapter.fields) if isinstance(adapter, ObjectAdapter) else []


def _check_parameter(tool: str, parameter: inspect.Parameter, *, is_first: bool, has_hint: bool) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
        raise ConfigurationError(f"tool {tool}: a model cannot fill in `{parameter}`; give it a name")
    if is_first and parameter.name in ("self", "cls") and not has_hint:
        raise ConfigurationError(
            f"tool {tool}: it is a method without its object, so a model would have to fill in `{parameter.name}`; "
            "pass the method of an object, such as `store.search`"
        )


def _parameter_field(
    tool: str, parameter: inspect.Parameter, hint: Any, description: str, compiler: TypeCompiler
) -> TypedField:
    default = MISSING if parameter.default is parameter.empty else parameter.default
    try:
        return compiler.compile_field(parameter.name, hint, default=default, description=description)
    except UnsupportedTypeError as error:
        raise UnsupportedTypeError(f"tool {tool}, parameter `{parameter.name}`: {error.message}") from error


def _type_hints(function: Callable[..., Any], tool: str) -> dict[str, Any]:
    plain = function
    while isinstance(plain, partial):
        plain = plain.func
    target = plain if inspect.isroutine(plain) else type(plain).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError as error:
        raise UnresolvedHintError(
            f"tool {tool}: a type hint names {error.name!r}, which cannot be found from the function's module; define "
            "or import it there, not in a function or under TYPE_CHECKING"
        ) from error
    except TypeError as error:
        raise ConfigurationError(f"tool {tool}: a type hint is not valid: {error}") from error


def find_object(module: str, path: str) -> Any:
    """Returns the object of this name in a module, or None if there is none. The module is imported if it is not loaded
    yet, as in a new process."""
    value: Any = sys.modules.get(module) or (import_module(module) if module else None)
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def function_name(function: Callable[..., Any]) -> str:
    """Returns the name of a function; that of the class for a callable object."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def function_docs(function: Callable[..., Any]) -> str:
    """Returns the docstring of a function; of `__call__` or the class for a callable object."""
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return inspect.getdoc(function) or ""
    called: str | None = type(function).__call__.__doc__ if "__call__" in vars(type(function)) else None
    return inspect.cleandoc(called) if called else inspect.getdoc(type(function)) or ""


_REF = "#/$defs/"


def compact_schema(schema: Schema, omitted: Collection[str] = ()) -> Schema:
    """Returns an equivalent schema with fewer tokens.

    Optional parameters do not need `null`, and empty defaults are dropped. Referenced types are inlined unless they are
    recursive.
    """
    visible = {name: hint for name, hint in schema.get("properties", {}).items() if name not in omitted}
    schema = {**schema, "properties": visible}
    definitions: Schema = schema.get("$defs", {})
    short = _compact_node({name: value for name, value in schema.items() if name != "$defs"}, definitions, ())
    remaining = {
        name: _compact_node(value, definitions, (name,))
        for name, value in definitions.items()
        if _refers_to(short, name)
    }
    return short | ({"$defs": remaining} if remaining else {})


def _compact_node(schema: Any, definitions: Schema, inside: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_compact_node(item, definitions, inside) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return int(schema) if isinstance(schema, float) and schema.is_integer() else schema
    node = cast("Schema", schema)
    name = str(node.get("$ref", "")).removeprefix(_REF)
    if name in definitions and name not in inside and not _refers_to(definitions[name], name):
        siblings = {key: value for key, value in node.items() if key != "$ref"}
        return _compact_node({**definitions[name], **siblings}, definitions, (*inside, name))
    retained = {key: value for key, value in node.items() if not _is_redundant(key, value)}
    required = retained.get("required", ())
    if isinstance(retained.get("properties"), dict):
        properties = cast("Schema", retained["properties"])
        retained["properties"] = {
            property_name: _compact_node(
                hint if property_name in required else _without_null(hint), definitions, inside
            )
            for property_name, hint in properties.items()
        }
    return {
        key: value if key == "properties" else _compact_node(value, definitions, inside)
        for key, value in retained.items()
    }


def _is_redundant(key: str, value: Any) -> bool:
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
    siblings = {key: value for key, value in hint.items() if key != "anyOf"}
    return {**siblings, **choices[0]} if len(choices) == 1 else {**siblings, "anyOf": choices}


def _refers_to(schema: Any, name: str) -> bool:
    """Returns whether the schema contains a reference to the definition."""
    if isinstance(schema, list):
        return any(_refers_to(item, name) for item in cast("list[Any]", schema))
    if not isinstance(schema, dict):
        return False
    fields = cast("Schema", schema)
    return fields.get("$ref") == _REF + name or any(_refers_to(value, name) for value in fields.values())


_MAX_SHOWN = 120


def convert_arguments(
    tool: str, signature: ToolSignature, arguments: dict[str, Any], *, nulls: bool = False
) -> dict[str, Any]:
    """Returns the keyword arguments for the function. With `nulls`, a null means the default if the type does not
    accept null. Raises InvalidArguments with the errors of all arguments."""
    has_extra = not (arguments.keys() <= signature.argument_names)
    try:
        values, mismatches = convert_fields(signature.parameters, arguments, strict=False, nulls=nulls)
    except RecursionError as error:
        raise InvalidArguments(f"Invalid arguments for {tool}: they are nested too deeply. Nothing was run.") from error
    if mismatches or (has_extra and not signature.accepts_extra):
        problems = "; ".join(_argument_problems(tool, signature, arguments, nulls=nulls))
        raise InvalidArguments(f"Invalid arguments for {tool}: {problems}. Nothing was run.")
    if not has_extra:
        return values
    return values | {name: value for name, value in arguments.items() if name not in signature.argument_names}


def _argument_problems(tool: str, signature: ToolSignature, arguments: dict[str, Any], *, nulls: bool) -> Iterator[str]:
    for field in signature.parameters:
        if field.key not in arguments:
            if field.required:
                yield f"`{field.key}` is missing"
            continue
        adapter: TypeAdapter = field.adapter
        try:
            adapter.convert(arguments[field.key])
        except ValueMismatch as error:
            if arguments[field.key] is not None or field.required or not nulls:
                yield f"`{field.key}`: {_error_text(error)}; got {_describe_value(arguments[field.key])}"
    if not signature.accepts_extra:
        parameters = {field.key: field for field in signature.parameters}
        for name in arguments.keys() - parameters.keys():
            yield f"`{name}` is not an argument of {tool}; it takes {_list_names(parameters)}"


class InvalidArguments(ToolFailure):
    """The input does not match the tool's parameters; the call was not executed."""


def _error_text(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text[:1].lower() + text[1:]


def _describe_value(value: object) -> str:
    """Returns the JSON type and the shortened value, for an error message."""
    kinds: dict[type, str] = {
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        list: "an array",
        dict: "an object",
    }
    if value is None:
        return "null"
    text = repr(value)
    return (
        f"{kinds.get(type(value), 'something else')} ({text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + '…'})"
    )


def _list_names(names: dict[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "no arguments"


_MAX_DEPTH = 100  # a schema may refer to itself without end
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": is_object,
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: not isinstance(value, bool) and (isinstance(value, int) or _is_integral(value)),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


def find_schema_problem(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Returns where and why a value does not match a schema, or None if it matches."""
    return next(_SchemaCheck(schema).find_problems(value, schema, "", 0), None)


class _SchemaCheck:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def find_problems(self, value: Any, schema: Any, where: str, depth: int) -> Iterator[str]:
        if schema is False:
            yield f"{_quote_path(where)} is not expected"
        if not is_object(schema) or depth > _MAX_DEPTH:
            return
        if "$ref" in schema:
            yield from self.find_problems(value, self._resolve(str(schema["$ref"])), where, depth + 1)
        if (problem := _type_problem(value, schema)) is not None:
            yield f"{_quote_path(where)} {problem}"
            return
        yield from (f"{_quote_path(where)} {problem}" for problem in _value_problems(value, schema))
        if is_object(value):
            yield from self._object_problems(value, schema, where, depth)
        if isinstance(value, list):
            yield from self._array_problems(cast("list[Any]", value), schema, where, depth)
        yield from self._combination_problems(value, schema, where, depth)

    def _matches(self, value: Any, schema: Any, depth: int) -> bool:
        return next(self.find_problems(value, schema, "", depth + 1), None) is None

    def _object_problems(self, value: dict[str, Any], schema: dict[str, Any], where: str, depth: int) -> Iterator[str]:
        if missing := [name for name in schema.get("required", ()) if name not in value]:
            yield f"{_quote_path(where)} lacks {', '.join(missing)}"
        properties = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        for name, item in value.items():
            inner = f"{where}.{name}" if where else name
            matching = [pattern_rule for pattern, pattern_rule in patterns.items() if re.search(pattern, name)]
            rules = [*([properties[name]] if name in properties else ()), *matching]
            for rule in rules or [schema.get("additionalProperties", True)]:
                yield from self.find_problems(item, rule, inner, depth + 1)

    def _array_problems(self, value: list[Any], schema: dict[str, Any], where: str, depth: int) -> Iterator[str]:
        prefix_rules = schema.get("prefixItems", [])
        for number, item in enumerate(value):
            rule = prefix_rules[number] if number < len(prefix_rules) else schema.get("items", True)
            yield from self.find_problems(item, rule, f"{where}[{number}]", depth + 1)
        if schema.get("uniqueItems") and _has_equal_items(value):
            yield f"{_quote_path(where)} has equal items"

    def _combination_problems(self, value: Any, schema: dict[str, Any], where: str, depth: int) -> Iterator[str]:
        for rule in schema.get("allOf", ()):
            yield from self.find_problems(value, rule, where, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if keyword not in schema:
                continue
            matching = sum(self._matches(value, rule, depth) for rule in schema[keyword])
            if not matching:
                yield f"{_quote_path(where)} has none of the possible forms"
            elif keyword == "oneOf" and matching > 1:
                yield f"{_quote_path(where)} has more than one of the possible forms"
        if "not" in schema and self._matches(value, schema["not"], depth):
            yield f"{_quote_path(where)} has a form that is excluded"

    def _resolve(self, reference: str) -> Any:
        """Returns the schema of a local reference; one that does not exist allows everything."""
        value: Any = self._root
        for name in reference.lstrip("#").split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            value = value.get(key) if is_object(value) else None
        return value


def _type_problem(value: Any, schema: dict[str, Any]) -> str | None:
    expected = schema.get("type")
    names = cast("list[str]", expected) if isinstance(expected, list) else [expected] if expected else []
    if not names or any(_TYPES.get(name, lambda _: True)(value) for name in names):
        return None
    return f"must be {' or '.join(names)}, not {_type_name(value)}"


def _value_problems(value: Any, schema: dict[str, Any]) -> Iterator[str]:
    if "const" in schema and not _is_same(value, schema["const"]):
        yield f"must be {schema['const']!r}"
    if "enum" in schema and not any(_is_same(value, allowed) for allowed in schema["enum"]):
        yield f"must be one of {', '.join(map(repr, schema['enum']))}"
    for keyword, measure, is_within, template in _LIMITS:
        limit, size = schema.get(keyword), measure(value)
        if limit is not None and size is not None and not is_within(size, limit):
            yield template.format(limit=limit)
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"does not match {schema['pattern']}"


def _number(value: Any) -> float | None:
    return value if _TYPES["number"](value) else None


def _length(kind: type) -> Callable[[Any], int | None]:
    return lambda value: len(value) if isinstance(value, kind) else None


def _is_multiple(value: float, step: float) -> bool:
    return not step or _is_integral(value / step)


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


def _is_same(value: Any, expected: Any) -> bool:
    """Returns whether two values are equal in JSON, where true is not 1."""
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if is_object(value) and is_object(expected):
        return value.keys() == expected.keys() and all(_is_same(value[name], expected[name]) for name in value)
    if isinstance(value, list) and isinstance(expected, list):
        pairs = cast("list[Any]", value), cast("list[Any]", expected)
        return len(pairs[0]) == len(pairs[1]) and all(map(_is_same, *pairs))
    return value == expected


def _has_equal_items(value: list[Any]) -> bool:
    return any(_is_same(item, earlier) for number, item in enumerate(value) for earlier in value[:number])


def _is_integral(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _type_name(value: Any) -> str:
    return next((name for name, matches in _TYPES.items() if matches(value)), type(value).__name__)


def _quote_path(where: str) -> str:
    return f"`{where}`" if where else "it"
