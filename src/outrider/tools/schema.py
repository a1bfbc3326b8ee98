"""The JSON schema of a function's parameters, from its type hints, and the reading of arguments by the same hints."""

import inspect
import re
import typing
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from types import FunctionType
from typing import Annotated, Any, get_args, get_origin
from weakref import WeakKeyDictionary

import msgspec

from outrider.errors import ConfigurationError
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
