"""What is stored of a value: the fields that say something, without those that its row knows."""

from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from outrider.types.tool_state import ToolState

# Session and message are the row's (and would be wrong in a fork); parts have rows of their own.
_KNOWN = frozenset({"session_id", "message_id", "parts"})
_STATES = get_args(ToolState)
_STRUCT = type(msgspec.Struct)


def stored_form(value: msgspec.Struct) -> msgspec.Struct:
    """The value in the shape in which it is written. Raises msgspec.ValidationError where a field has a wrong type."""
    return msgspec.convert(value, _form_of(value.__class__), from_attributes=True)


@cache
def _form_of(kind: type[msgspec.Struct], *, brief: bool = True) -> type[msgspec.Struct]:
    """A class of the same fields; a brief one leaves out those that hold what they hold when nothing was said. Whatever
    is read into it is looked at, down to the smallest value: who made the value may not have cared."""
    config = kind.__struct_config__
    return msgspec.defstruct(
        kind.__name__,
        [_field(field) for field in msgspec.structs.fields(kind) if not brief or field.name not in _KNOWN],
        kw_only=True,
        omit_defaults=brief,
        tag_field=config.tag_field,
        tag=config.tag,
    )


def _field(field: msgspec.structs.FieldInfo) -> tuple[str, Any] | tuple[str, Any, Any]:
    """An id is made up anew each time, and so always says something."""
    kind = _formed(field.type)
    if field.required or field.name == "id":
        return (field.name, kind)
    if field.default is not msgspec.NODEFAULT:
        return (field.name, kind, msgspec.field(default=field.default))
    return (field.name, kind, msgspec.field(default_factory=field.default_factory))


def _formed(kind: Any) -> Any:
    """States of calls are brief as well; smaller values are written whole."""
    generic: Any = get_origin(kind)
    if generic in (Union, UnionType):
        return Union[tuple(map(_formed, get_args(kind)))]  # noqa: UP007  made while running
    if generic is tuple:
        return tuple[_formed(get_args(kind)[0]), ...]
    if not isinstance(kind, _STRUCT) or _is_told_apart_by_class(kind):
        return kind
    return _form_of(kind, brief=kind in _STATES)


def _is_told_apart_by_class(kind: Any) -> bool:
    """One of several that carries no word of its own that says which: it stays what it is."""
    config = kind.__struct_config__
    return config.tag is not None and not hasattr(kind, config.tag_field)
