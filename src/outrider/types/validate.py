"""Checked conversion of plain data into values, with errors that name the field."""

import re
from functools import lru_cache
from typing import Any, TypeGuard, TypeVar, cast

import msgspec

from outrider.errors import PartValidationError

JsonObject = dict[str, Any]
S = TypeVar("S", bound=msgspec.Struct)

_MISSING = re.compile(r"missing required field `(?P<field>[^`]+)`(?: - at `\$\.?(?P<path>[^`]*)`)?")
_AT = re.compile(r"at `\$\.?(?P<path>[^`]*)`")


def is_object(value: object) -> TypeGuard[JsonObject]:
    """Returns whether the value was a JSON object, whose keys are always strings."""
    return isinstance(value, dict)


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


def listed(value: Any) -> Any:
    """Converts tuples to lists, recursively, so that plain data equals what JSON decoding returns."""
    if isinstance(value, dict):
        return {name: listed(item) for name, item in cast("JsonObject", value).items()}
    if isinstance(value, list | tuple):
        return [listed(item) for item in cast("list[Any] | tuple[Any, ...]", value)]
    return value


def validation_error(error: msgspec.ValidationError, what: str) -> PartValidationError:
    text = str(error)
    field = ""
    if missing := _MISSING.search(text):
        field = ".".join(word for word in (missing["path"], missing["field"]) if word)
    elif at := _AT.search(text):
        field = at["path"]
    return PartValidationError(f"{what}: {text[:1].lower()}{text[1:]}", field=field)


def _unknown_fields(value: Any, cls: type[msgspec.Struct]) -> tuple[str, ...]:
    if not is_object(value) or not cls.__struct_config__.forbid_unknown_fields:
        return ()
    known = {*cls.__struct_encode_fields__, cls.__struct_config__.tag_field}
    return tuple(sorted(name for name in value if name not in known and name.isidentifier()))


@lru_cache(maxsize=256)
def _with_fields(cls: type[S], names: tuple[str, ...]) -> type[S]:
    fields: list[tuple[str, Any]] = [(name, Any) for name in names]
    return msgspec.defstruct(  # pyright: ignore[reportReturnType]  a struct with bases=(cls,) is a cls
        cls.__name__,
        fields,
        bases=(cls,),
        module=cls.__module__,
        tag_field=cls.__struct_config__.tag_field,
        tag=cls.__struct_config__.tag,
        frozen=cls.__struct_config__.frozen,
        kw_only=True,
        forbid_unknown_fields=True,
    )
