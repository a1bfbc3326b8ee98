"""The JSON schema of a function's parameters, from its type hints, and the reading of arguments by the same hints."""

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
from outrider.tools.context import ToolContext
from outrider.types.validate import is_object

_PARAMETER = r"^\s*(?::param\s+)?\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>\S.*)$"
_SECTION = r"^\s*(?:Args|Arguments|Parameters)\s*:\s*$"


class Signature(msgspec.Struct, frozen=True):
    """What a function takes: the fields a model fills in, and the parameter that gets the context, if any."""

    arguments: type[msgspec.Struct]
    context_parameter: str | None
    takes_more: bool

    def json_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = msgspec.json.decode(_written_schema(self.arguments))
        return schema | {"additionalProperties": self.takes_more, "required": schema.get("required", [])}


@lru_cache(maxsize=256)
def _written_schema(arguments: type[msgspec.Struct]) -> bytes:
    return msgspec.json.encode(json_schema_of(arguments))


def json_schema_of(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type hint, with what it refers to under `$defs`."""
    (root,), components = msgspec.json.schema_components(
        (hint,), schema_hook=_schema_of_class, ref_template="#/$defs/{name}"
    )
    definitions: dict[str, Any] = dict(components)
    if "$ref" in root:
        root = definitions.pop(root["$ref"].removeprefix("#/$defs/"))
    root = _hoist(dict(root), definitions)
    root.pop("title", None)
    return root | ({"$defs": definitions} if definitions else {})


def signature_of(function: Callable[..., Any]) -> Signature:
    """What a function takes, read once for all tools that are made of it. A parameter that no model can fill in raises
    ConfigurationError."""
    if not isinstance(function, FunctionType):
        return _read(function)
    known = _signatures.get(function)
    if known is None:
        known = _signatures[function] = _read(function)
    return known


_signatures: WeakKeyDictionary[FunctionType, Signature] = WeakKeyDictionary()


def _read(function: Callable[..., Any]) -> Signature:
    hints = _hints(function)
    documented = _documented(inspect.getdoc(function) or "")
    fields: list[Any] = []
    context_parameter: str | None = None
    takes_more = False
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        if hint is ToolContext:
            context_parameter = parameter.name
        elif parameter.kind is parameter.VAR_KEYWORD:
            takes_more = True
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(f"{_name(function)}: a model cannot fill in `{parameter}`; give it a name")
        else:
            fields.append(_field(parameter, _described(hint, documented.get(parameter.name))))
    arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=not takes_more)
    return Signature(arguments, context_parameter, takes_more)


def read_value(hint: Any, value: Any) -> Any:
    """One argument as its hint says; text that spells a number or a truth value is taken for one."""
    return msgspec.convert(value, hint, strict=False, dec_hook=_value_of_class)


def _field(parameter: inspect.Parameter, hint: Any) -> Any:
    if parameter.default is parameter.empty:
        return (parameter.name, hint)
    if isinstance(parameter.default, list | dict | set):
        return (parameter.name, hint, msgspec.field(default_factory=parameter.default.copy))  # pyright: ignore
    return (parameter.name, hint, parameter.default)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"{_name(function)}: a type hint names {error.name!r}, which cannot be found from the function's module"
        ) from error


def _described(hint: Any, text: str | None) -> Any:
    """`Annotated[str, "words"]` and the docstring's words become the schema's description."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        words = [note for note in notes if isinstance(note, str)]
        kept = [note for note in notes if isinstance(note, msgspec.Meta)]
        text = " ".join(words) or text
        hint = Annotated[(inner, *kept)] if kept else inner  # pyright: ignore
    return Annotated[hint, msgspec.Meta(description=text)] if text else hint


def _documented(docstring: str) -> dict[str, str]:
    """The words a docstring has for each parameter, in the Google or the `:param name:` manner."""
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


def summary_of(docstring: str) -> str:
    """A docstring without its section on parameters, which the schema already says."""
    kept: list[str] = []
    inside = False
    for line in docstring.splitlines():
        inside = bool(re.match(_SECTION, line)) or (inside and bool(line.strip()))
        if not inside and not line.lstrip().startswith(":param"):
            kept.append(line)
    return "\n".join(kept).strip()


def _schema_of_class(cls: type[Any]) -> dict[str, Any]:
    """Schemas of what msgspec does not know: paths, and pydantic models if the user has pydantic."""
    if hasattr(cls, "model_json_schema"):
        return cls.model_json_schema(ref_template="#/$defs/{model}")
    if issubclass(cls, PurePath):
        return {"type": "string"}
    raise ConfigurationError(f"no JSON schema is known for the type {cls.__name__}")


def _value_of_class(cls: type[Any], value: Any) -> Any:
    if hasattr(cls, "model_validate"):
        return _validated(cls, value)
    if issubclass(cls, PurePath) and isinstance(value, str):
        return cls(value)
    raise ValueError(f"expected {cls.__name__}, got {type(value).__name__}")


def _validated(cls: Any, value: Any) -> Any:
    """A pydantic model; its report of what is wrong, in one line."""
    try:
        return cls.model_validate(value)
    except ValueError as error:
        found: list[dict[str, Any]] = getattr(error, "errors", list)()
        lines = [f"{'.'.join(map(str, one['loc'])) or cls.__name__}: {one['msg']}" for one in found]
        raise ValueError(", ".join(lines) or str(error)) from error


def _hoist(schema: Any, definitions: dict[str, Any]) -> Any:
    """Move nested `$defs` to the root, where `#/$defs/…` points."""
    if isinstance(schema, list):
        return [_hoist(item, definitions) for item in schema]  # pyright: ignore
    if not is_object(schema):
        return schema
    for name, definition in schema.pop("$defs", {}).items():
        definitions[name] = _hoist(definition, definitions)
    return {name: _hoist(value, definitions) for name, value in schema.items()}


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def plain_value(value: Any) -> Any:
    """A default as JSON, for messages."""
    return value.value if isinstance(value, Enum) else value


Schema = dict[str, Any]

_REF = "#/$defs/"


def compact_schema(schema: Schema, unsaid: Collection[str] = ()) -> Schema:
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


_SHOWN = 120


def read_arguments(tool: str, signature: Signature, given: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments for the function. All that is wrong is reported at once, argument by argument."""
    try:
        values = msgspec.structs.asdict(read_value(signature.arguments, given))
    except (ValueError, TypeError, RecursionError) as error:  # also pydantic's, which is a ValueError
        problems = list(_problems(tool, signature, given)) or [_why(error)]
        raise InvalidArguments(f"Invalid arguments for {tool}: {'; '.join(problems)}. Nothing was run.") from error
    if signature.takes_more:
        values.update((name, value) for name, value in given.items() if name not in values)
    return values


def _problems(tool: str, signature: Signature, given: dict[str, Any]) -> Iterator[str]:
    known = {field.name: field for field in fields(signature.arguments)}
    for name, field in known.items():
        if name not in given:
            if field.required:
                yield f"`{name}` is missing"
            continue
        try:
            read_value(field.type, given[name])
        except (ValueError, TypeError, RecursionError) as error:
            yield f"`{name}`: {_why(error)}; got {_shown(given[name])}"
    if not signature.takes_more:
        for name in given.keys() - known.keys():
            yield f"`{name}` is not an argument of {tool}; it takes {_listed(known)}"


class InvalidArguments(ToolFailure):
    """The call never ran: its input does not fit the tool's parameters."""


def _why(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, msgspec.ValidationError):
        text = text.replace("`$.", "`").replace("`$[", "`[").replace(" - at `$`", "").replace(" - at `", " at `")
    return text[:1].lower() + text[1:]


def _shown(value: object) -> str:
    """A value in so many words as help, with its JSON type."""
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
    return f"{kinds.get(type(value), 'something else')} ({text if len(text) <= _SHOWN else text[:_SHOWN] + '…'})"


def _listed(names: dict[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "no arguments"
