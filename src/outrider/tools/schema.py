"""JSON schema of a function's parameters from its type hints, and conversion of arguments by the same hints."""

import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from types import FunctionType
from typing import Annotated, Any, cast, get_args, get_origin
from weakref import WeakKeyDictionary

import msgspec
from msgspec.structs import fields

from outrider.errors import ConfigurationError, ToolFailure
from outrider.types.validate import is_object

_PARAMETER = r"^\s*(?::param\s+)?\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>\S.*)$"
_SECTION = r"^\s*(?:Args|Arguments|Parameters)\s*:\s*$"


class ToolSignature(msgspec.Struct, frozen=True):
    """Parameters of a tool function: a struct type for the arguments, and the name of the context parameter, if any."""

    arguments: type[msgspec.Struct]
    context_parameter: str | None
    accepts_extra: bool

    def json_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = msgspec.json.decode(_encode_schema(self.arguments))
        return schema | {"additionalProperties": self.accepts_extra, "required": schema.get("required", [])}


@lru_cache(maxsize=256)
def _encode_schema(arguments: type[msgspec.Struct]) -> bytes:
    return msgspec.json.encode(schema_for_type(arguments))


def schema_for_type(hint: Any) -> dict[str, Any]:
    """Returns the JSON schema of a type hint, with referenced types in `$defs`."""
    (root,), components = msgspec.json.schema_components(
        (hint,), schema_hook=_schema_of_class, ref_template="#/$defs/{name}"
    )
    definitions: dict[str, Any] = dict(components)
    if "$ref" in root:
        root = definitions.pop(root["$ref"].removeprefix("#/$defs/"))
    root = _hoist_definitions(dict(root), definitions)
    root.pop("title", None)
    return root | ({"$defs": definitions} if definitions else {})


def read_signature(function: Callable[..., Any], context_type: type) -> ToolSignature:
    """Returns the signature of a function, cached per function. A parameter of `context_type` is not part of the
    schema. Raises ConfigurationError for a parameter that a model cannot pass."""
    if not isinstance(function, FunctionType):
        return _inspect_signature(function, context_type)
    known = _signatures.get(function)
    if known is None:
        known = _signatures[function] = _inspect_signature(function, context_type)
    return known


_signatures: WeakKeyDictionary[FunctionType, ToolSignature] = WeakKeyDictionary()


def _inspect_signature(function: Callable[..., Any], context_type: type) -> ToolSignature:
    hints = _type_hints(function)
    documented = _parameter_docs(inspect.getdoc(function) or "")
    fields: list[Any] = []
    context_parameter: str | None = None
    takes_more = False
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        if hint is context_type or get_origin(hint) is context_type:
            context_parameter = parameter.name
        elif parameter.kind is parameter.VAR_KEYWORD:
            takes_more = True
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(
                f"{_function_name(function)}: a model cannot fill in `{parameter}`; give it a name"
            )
        else:
            fields.append(_struct_field(parameter, _with_description(hint, documented.get(parameter.name))))
    arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=not takes_more)
    return ToolSignature(arguments, context_parameter, takes_more)


def convert_value(hint: Any, value: Any) -> Any:
    """Converts one argument to its type hint. Strings that contain a number or boolean are accepted."""
    return msgspec.convert(value, hint, strict=False, dec_hook=_value_of_class)


def _struct_field(parameter: inspect.Parameter, hint: Any) -> Any:
    if parameter.default is parameter.empty:
        return (parameter.name, hint)
    if isinstance(parameter.default, list | dict | set):
        return (parameter.name, hint, msgspec.field(default_factory=parameter.default.copy))  # pyright: ignore
    return (parameter.name, hint, parameter.default)


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"{_function_name(function)}: a type hint names {error.name!r}, "
            "which cannot be found from the function's module"
        ) from error


def _with_description(hint: Any, text: str | None) -> Any:
    """Adds the description from `Annotated[str, "text"]`, else from the docstring."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        texts = [note for note in notes if isinstance(note, str)]
        kept = [note for note in notes if isinstance(note, msgspec.Meta)]
        text = " ".join(texts) or text
        hint = Annotated[(inner, *kept)] if kept else inner  # pyright: ignore
    return Annotated[hint, msgspec.Meta(description=text)] if text else hint


def _parameter_docs(docstring: str) -> dict[str, str]:
    """Returns the description of each parameter in a docstring, in Google or `:param name:` style."""
    found: dict[str, str] = {}
    inside = False
    for line in docstring.splitlines():
        if re.match(_SECTION, line):
            inside = True
        elif not line.strip():
            inside = False
        elif (match := re.match(_PARAMETER, line)) and (inside or line.lstrip().startswith(":param")):
            found[match["name"]] = match["text"].strip()
    return found


def docstring_summary(docstring: str) -> str:
    """Returns the docstring without its parameter section, which the schema already contains."""
    kept: list[str] = []
    inside = False
    for line in docstring.splitlines():
        inside = bool(re.match(_SECTION, line)) or (inside and bool(line.strip()))
        if not inside and not line.lstrip().startswith(":param"):
            kept.append(line)
    return "\n".join(kept).strip()


def _schema_of_class(cls: type[Any]) -> dict[str, Any]:
    """Returns schemas of types that msgspec does not support: paths, and pydantic models."""
    if hasattr(cls, "model_json_schema"):
        return cls.model_json_schema(ref_template="#/$defs/{model}")
    if issubclass(cls, PurePath):
        return {"type": "string"}
    raise ConfigurationError(f"no JSON schema is known for the type {cls.__name__}")


def _value_of_class(cls: type[Any], value: Any) -> Any:
    if hasattr(cls, "model_validate"):
        return _validate_model(cls, value)
    if issubclass(cls, PurePath) and isinstance(value, str):
        return cls(value)
    raise ValueError(f"expected {cls.__name__}, got {type(value).__name__}")


def _validate_model(cls: Any, value: Any) -> Any:
    """Validates a pydantic model. Raises ValueError with all errors in one line."""
    try:
        return cls.model_validate(value)
    except ValueError as error:
        found: list[dict[str, Any]] = getattr(error, "errors", list)()
        lines = [f"{'.'.join(map(str, one['loc'])) or cls.__name__}: {one['msg']}" for one in found]
        raise ValueError(", ".join(lines) or str(error)) from error


def _hoist_definitions(schema: Any, definitions: dict[str, Any]) -> Any:
    """Moves nested `$defs` to the root, where `#/$defs/…` points."""
    if isinstance(schema, list):
        return [_hoist_definitions(item, definitions) for item in schema]  # pyright: ignore
    if not is_object(schema):
        return schema
    for name, definition in schema.pop("$defs", {}).items():
        definitions[name] = _hoist_definitions(definition, definitions)
    return {name: _hoist_definitions(value, definitions) for name, value in schema.items()}


def _function_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def plain_value(value: Any) -> Any:
    """Returns a default as a JSON value, for messages."""
    return value.value if isinstance(value, Enum) else value


Schema = dict[str, Any]

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
    left = {
        name: _compact_node(value, definitions, (name,))
        for name, value in definitions.items()
        if _refers_to(short, name)
    }
    return short | ({"$defs": left} if left else {})


def _compact_node(schema: Any, definitions: Schema, inside: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_compact_node(item, definitions, inside) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return int(schema) if isinstance(schema, float) and schema.is_integer() else schema
    found = cast("Schema", schema)
    name = str(found.get("$ref", "")).removeprefix(_REF)
    if name in definitions and name not in inside and not _refers_to(definitions[name], name):
        rest = {key: value for key, value in found.items() if key != "$ref"}
        return _compact_node({**definitions[name], **rest}, definitions, (*inside, name))
    kept = {key: value for key, value in found.items() if not _is_redundant(key, value)}
    required = kept.get("required", ())
    if isinstance(kept.get("properties"), dict):
        properties = cast("Schema", kept["properties"])
        kept["properties"] = {
            one: _compact_node(hint if one in required else _without_null(hint), definitions, inside)
            for one, hint in properties.items()
        }
    return {
        key: value if key == "properties" else _compact_node(value, definitions, inside) for key, value in kept.items()
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
    rest = {key: value for key, value in hint.items() if key != "anyOf"}
    return {**rest, **choices[0]} if len(choices) == 1 else {**rest, "anyOf": choices}


def _refers_to(schema: Any, name: str) -> bool:
    """Returns True if the schema contains a reference to the definition."""
    if isinstance(schema, list):
        return any(_refers_to(item, name) for item in cast("list[Any]", schema))
    if not isinstance(schema, dict):
        return False
    found = cast("Schema", schema)
    return found.get("$ref") == _REF + name or any(_refers_to(value, name) for value in found.values())


_MAX_SHOWN = 120


def convert_arguments(tool: str, signature: ToolSignature, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the keyword arguments for the function. Raises InvalidArguments with the errors of all arguments."""
    try:
        values = msgspec.structs.asdict(convert_value(signature.arguments, given))
    except (ValueError, TypeError, RecursionError) as error:  # includes pydantic's ValidationError
        problems = list(_argument_problems(tool, signature, given)) or [_error_text(error)]
        raise InvalidArguments(f"Invalid arguments for {tool}: {'; '.join(problems)}. Nothing was run.") from error
    if signature.accepts_extra:
        values.update((name, value) for name, value in given.items() if name not in values)
    return values


def _argument_problems(tool: str, signature: ToolSignature, given: dict[str, Any]) -> Iterator[str]:
    known = {field.name: field for field in fields(signature.arguments)}
    for name, field in known.items():
        if name not in given:
            if field.required:
                yield f"`{name}` is missing"
            continue
        try:
            convert_value(field.type, given[name])
        except (ValueError, TypeError, RecursionError) as error:
            yield f"`{name}`: {_error_text(error)}; got {_describe_value(given[name])}"
    if not signature.accepts_extra:
        for name in given.keys() - known.keys():
            yield f"`{name}` is not an argument of {tool}; it takes {_list_names(known)}"


class InvalidArguments(ToolFailure):
    """The input does not match the tool's parameters; the call was not executed."""


def _error_text(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, msgspec.ValidationError):
        text = text.replace("`$.", "`").replace("`$[", "`[").replace(" - at `$`", "").replace(" - at `", " at `")
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
