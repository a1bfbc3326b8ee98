"""Converts plain data to values and checks it, with errors that name the field."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast

import msgspec

from outrider._lazy import lazy_pattern
from outrider.errors import ConfigurationError, PartValidationError
from outrider.types.modes import APPROVAL_LEVELS, MODES

JsonObject = dict[str, Any]
S = TypeVar("S", bound=msgspec.Struct)

# RecursionError: the value is nested deeper than the interpreter allows.
JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_MISSING = lazy_pattern(r"missing required field `(?P<field>[^`]+)`(?: - at `\$\.?(?P<path>[^`]*)`)?")
_AT = lazy_pattern(r"at `\$\.?(?P<path>[^`]*)`")


def is_object(value: object) -> TypeGuard[JsonObject]:
    """Returns whether the value is a JSON object. Only JSON values may be passed, so the keys are always strings."""
    return isinstance(value, dict)


def referenced_definitions(schema: Any, definitions: Mapping[str, Any]) -> set[str]:
    """Returns the names of the definitions that a JSON schema refers to with `$ref`, directly or through other
    definitions."""
    names: set[str] = set()
    pending: list[Any] = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += cast("list[Any]", node)
        elif is_object(node):
            name = str(node.get("$ref", "")).removeprefix("#/$defs/")
            if name in definitions and name not in names:
                names.add(name)
                pending.append(definitions[name])
            pending += node.values()
    return names


class ArgumentsMeta(type(msgspec.Struct)):
    """The metaclass of values that programs create. A wrong argument raises ConfigurationError, which names the
    class and the nearest argument, in place of a TypeError."""

    if not TYPE_CHECKING:  # with this method, type checkers would not check the arguments

        def __call__(cls, *arguments: Any, **named: Any) -> Any:
            try:
                return super().__call__(*arguments, **named)
            except TypeError as error:
                fields: tuple[str, ...] = cls.__struct_fields__
                unknown = [name for name in named if name not in fields]
                if not unknown and not str(error).startswith(_WRONG_ARGUMENTS):
                    raise  # `__post_init__` raised the error
                problem = f"there is no argument {unknown[0]!r}" if unknown else str(error)
                hint = _suggest(unknown[0] if unknown else "", fields)
                raise ConfigurationError(f"{cls.__name__}(): {problem}; {hint}") from error


def check_names(where: str, arguments: Iterable[str], known_names: Iterable[str]) -> None:
    """Raises ConfigurationError for a keyword argument that does not exist. The message suggests the nearest name."""
    names = tuple(known_names)
    for name in arguments:
        if name not in names:
            raise ConfigurationError(f"{where} has no argument {name!r}; {_suggest(name, names)}")


def _suggest(name: str, names: Sequence[str]) -> str:
    from difflib import get_close_matches  # lazy: only for mistakes

    matches = get_close_matches(name, names, n=1)
    return f"did you mean {matches[0]!r}?" if matches else f"it has {', '.join(names)}"


def is_positive_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def replace_fields(value: S, changes: Mapping[str, Any]) -> S:
    """Returns a copy with other values. Raises ConfigurationError for a field that does not exist."""
    try:
        return msgspec.structs.replace(value, **changes)
    except TypeError as error:
        name = type(value).__name__
        raise ConfigurationError(f"{name}.replace(): {error}; it has {', '.join(value.__struct_fields__)}") from error


_WRONG_ARGUMENTS = ("Missing required argument", "Extra positional arguments", "Argument ")

MAX_NESTING = 100  # levels; later code walks the inputs and the metadata of calls recursively


def is_too_deep(value: Any) -> bool:
    """Returns whether a JSON value has more than MAX_NESTING levels."""
    level: list[Any] = [value]
    for _ in range(MAX_NESTING):
        level = [inner for outer in level for inner in _child_values(outer)]
    return bool(level)


def find_json_problem(value: object) -> str:
    """Returns why a value cannot be stored as JSON, or "". Half of a surrogate pair is not a problem: it is replaced
    when it is stored, and tools report it to the model."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        pass
    except (TypeError, ValueError, RecursionError) as error:
        return f"that are not JSON: {error}"
    return f"that are nested deeper than {MAX_NESTING} levels" if is_too_deep(value) else ""


def _child_values(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("JsonObject", value).values()
    return cast("list[Any]", value) if isinstance(value, list | tuple) else ()


def convert(value: Any, cls: type[S]) -> S:
    """Converts plain data to `cls`. Fields that a newer version has added are preserved: the result is then an instance
    of a subclass with these fields. Raises PartValidationError that names the field."""
    try:
        return msgspec.convert(value, cls)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, PartValidationError):  # from a nested part; its message is more precise
            raise error.__cause__ from None
        unknown = _unknown_fields(value, cls)
        if not unknown:
            raise validation_error(error, cls.__name__) from error
        return convert(value, _with_fields(cls, unknown))


_CONTAINERS = (dict, list, tuple)


def tuples_to_lists(value: Any) -> Any:
    """Converts tuples to lists, recursively, so that plain data equals what JSON decoding returns."""
    if isinstance(value, dict):
        items = cast("JsonObject", value).items()
        return {name: tuples_to_lists(item) if isinstance(item, _CONTAINERS) else item for name, item in items}
    if isinstance(value, list | tuple):
        return [tuples_to_lists(item) for item in cast("list[Any] | tuple[Any, ...]", value)]
    return value


def validation_error(error: msgspec.ValidationError, subject: str) -> PartValidationError:
    text = str(error)
    field = ""
    if missing := _MISSING.search(text):
        field = ".".join(word for word in (missing["path"], missing["field"]) if word)
    elif location := _AT.search(text):
        field = location["path"]
    return PartValidationError(f"{subject}: {text[:1].lower()}{text[1:]}", field=field)


def _unknown_fields(value: Any, cls: type[msgspec.Struct]) -> tuple[str, ...]:
    if not is_object(value) or not cls.__struct_config__.forbid_unknown_fields:
        return ()
    known_names = {*cls.__struct_encode_fields__, cls.__struct_config__.tag_field}
    return tuple(sorted(name for name in value if name not in known_names and name.isidentifier()))


@lru_cache(maxsize=256)
def _with_fields(cls: type[S], names: tuple[str, ...]) -> type[S]:
    # `msgspec.defstruct` fails for a class with a custom metaclass.
    config = cls.__struct_config__
    create_class = cast("Callable[..., type[S]]", type(cls))
    namespace = {"__annotations__": dict.fromkeys(names, Any), "__module__": cls.__module__}
    options = {"tag_field": config.tag_field, "tag": config.tag, "frozen": config.frozen}
    return create_class(cls.__name__, (cls,), namespace, kw_only=True, forbid_unknown_fields=True, **options)


def check_mode(mode: str | None, whose: str) -> None:
    """Raises ConfigurationError if the mode is unknown; `whose` names its owner in the message."""
    if mode is not None and mode not in MODES:
        raise ConfigurationError(f"{whose} has the unknown mode {mode!r}; modes: {', '.join(MODES)}")


def check_level(level: str | None, whose: str) -> None:
    """Raises ConfigurationError if the approval level is unknown; `whose` names its owner in the message."""
    if level is not None and level not in APPROVAL_LEVELS:
        levels = ", ".join(APPROVAL_LEVELS)
        raise ConfigurationError(f"{whose} has the unknown approval level {level!r}; levels: {levels}")
