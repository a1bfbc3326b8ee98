"""What is stored of a value: the fields that say something, without those that its row knows."""

from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from outrider.types.tool_state import ToolState

# Session and message are the row's (and would be wrong in a fork); parts have rows of their own.
_KNOWN = frozenset({"session_id", "message_id", "parts"})
_STATES = get_args(ToolState)


def stored_form(value: msgspec.Struct) -> msgspec.Struct:
    """The value in the shape in which it is written. Raises msgspec.ValidationError where a field has a wrong type."""
    return msgspec.convert(value, _form_of(value.__class__), from_attributes=True)


@cache
def _form_of(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """A class of the same fields that leaves out those that hold what they hold when nothing was said."""
    config = kind.__struct_config__
    return msgspec.defstruct(
        kind.__name__,
        [_field(field) for field in msgspec.structs.fields(kind) if field.name not in _KNOWN],
        kw_only=True,
        omit_defaults=True,
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
    """States of calls have a form as well; smaller values are written whole."""
    if get_origin(kind) in (Union, UnionType):
        return Union[tuple(_formed(option) for option in get_args(kind))]  # noqa: UP007  made while running
    return _form_of(kind) if kind in _STATES else kind
