"""JSON encoding of parts: the registry of part types, lossless decoding of unknown types, and validation before parts
are stored."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeGuard, TypeVar, Union

import msgspec

from outrider.errors import ConfigurationError, PartValidationError
from outrider.types.ids import are_ids, is_id, new_id
from outrider.types.parts import (
    STORED_KINDS,
    AgentPart,
    CompactionPart,
    FilePart,
    PartBase,
    PatchPart,
    ReasoningPart,
    RetryPart,
    SnapshotPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    ToolPart,
    ToolResultPart,
    ToolUsePart,
)
from outrider.types.tool_state import ToolCompleted, ToolError, read_attachments
from outrider.types.validate import convert, tuples_to_lists, validation_error


class UnknownPart:
    """A part of a type that this version does not know, preserved exactly as it was stored."""

    __slots__ = ("raw",)

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw

    @property
    def type(self) -> str:
        """The name of the type, which this version does not know."""
        return str(self.raw.get("type", ""))

    @property
    def part_type(self) -> str:
        """The name of the type, as in `type`."""
        return self.type

    @property
    def id(self) -> str:
        """The id of the part."""
        return str(self.raw.get("id", ""))

    @property
    def session_id(self) -> str:
        """The id of the session that owns the part."""
        return str(self.raw.get("session_id", ""))

    @property
    def message_id(self) -> str:
        """The id of the message that owns the part."""
        return str(self.raw.get("message_id", ""))

    def adopt(self, message_id: str, session_id: str) -> None:
        """Sets the ids of the message and the session that own the part."""
        self.raw = self.raw | {"message_id": message_id, "session_id": session_id}

    def to_dict(self) -> dict[str, Any]:
        """Returns the stored object unchanged."""
        return self.raw

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnknownPart) and self.raw == other.raw

    __hash__ = None  # pyright: ignore[reportAssignmentType]  like every value that holds a dict

    def __repr__(self) -> str:
        return f"UnknownPart({self.raw!r})"


P = TypeVar("P")
AnyPart = PartBase | UnknownPart

_FOR_MODELS = (ToolUsePart.type, ToolResultPart.type)
_kinds: dict[str, Any] = {cls.type: cls for cls in (*STORED_KINDS, ToolUsePart, ToolResultPart)}

_plain_classes: set[type[Any]] = set()  # classes that are encoded by their own `to_dict`


def register_part_type(name: str, cls: type[Any]) -> None:
    """Registers a custom part type: a PartBase with `tag=name`, or a plain class with `from_dict` and `to_dict`, whose
    instances get `id`, `session_id` and `message_id` when they are added to a message."""
    if not isinstance(cls, type) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"register_part_type takes a name and a class, got {name!r} and {cls!r}")
    if _kinds.get(name, cls) is not cls:
        raise ConfigurationError(f"part type {name!r} is already {_kinds[name].__name__}; choose another name")
    if issubclass(cls, PartBase):
        config = cls.__struct_config__
        if config.tag != name or config.tag_field != "type":
            raise ConfigurationError(f'{cls.__name__} must be declared with tag_field="type", tag={name!r}')
    elif issubclass(cls, msgspec.Struct) or not (hasattr(cls, "from_dict") and hasattr(cls, "to_dict")):
        raise ConfigurationError(
            f"register_part_type: {cls.__name__} needs to be a PartBase, or a plain class with from_dict and to_dict"
        )
    else:
        _plain_classes.add(cls)
    if not getattr(cls, "type", ""):
        cls.type = name
    _kinds[name] = cls
    _decoders.cache_clear()


def part_types() -> dict[str, type[Any]]:
    """Returns every part class that can be decoded, by its `type`."""
    return dict(_kinds)


def read_part_type(value: dict[str, Any]) -> dict[str, Any]:
    """Returns the data of a part with the name of its type in `type`. Older formats have it in `part_type`."""
    if "type" in value or "part_type" not in value:
        return value
    return {"type": value["part_type"], **{name: item for name, item in value.items() if name != "part_type"}}


def part_from_dict(value: dict[str, Any]) -> Any:
    """Builds a part from plain data. Raises ValueError for an unknown type; stored data is read with `load_part`."""
    if not isinstance(value, dict):  # pyright: ignore[reportUnnecessaryIsInstance]  data from outside
        raise PartValidationError(f"a part is an object, got {type(value).__name__}")
    value = read_part_type(value)
    name = value.get("type")
    if name is None:
        raise PartValidationError("part: missing required field `type`", field="type")
    cls = _kinds.get(name) if isinstance(name, str) else None
    if cls is None:
        raise PartValidationError(f"unknown part type {name!r}; known: {', '.join(sorted(_kinds))}", field="type")
    if cls is ToolPart:
        value = read_attachments(value)
    return convert(value, cls) if issubclass(cls, msgspec.Struct) else cls.from_dict(value)


def set_part_owner(part: Any, message_id: str, session_id: str) -> None:
    """Sets the owner ids of a part that is added to a message; a custom class need not define these fields."""
    if isinstance(part, PartBase):
        part.adopt(message_id, session_id)
        return
    if take_owners := getattr(part, "adopt", None):
        take_owners(message_id, session_id)
        return
    if type(part) not in _kinds.values():
        hint = "write TextPart(…)" if isinstance(part, str) else "register_part_type adds custom kinds"
        raise PartValidationError(f"{type(part).__name__} is not a part; {hint}")
    owners = {"id": getattr(part, "id", "") or new_id(), "message_id": message_id, "session_id": session_id}
    for name, value in owners.items():
        object.__setattr__(part, name, value)  # works for a frozen dataclass too


def load_part(value: dict[str, Any]) -> AnyPart:
    """Builds a stored part. A part of an unknown type becomes an UnknownPart."""
    if isinstance(value.get("type"), str) and value["type"] not in _kinds:
        return UnknownPart(value)
    return part_from_dict(value)


def encode_part(part: AnyPart) -> bytes:
    """Returns a part as JSON; `decode_part` reads it."""
    return _encoder.encode(part.to_dict() if type(part) in _plain_classes else part)


def encode_parts(parts: Iterable[AnyPart]) -> bytes:
    """Returns parts as a JSON list; `decode_parts` reads it."""
    if _plain_classes:
        return _encoder.encode([part.to_dict() if type(part) in _plain_classes else part for part in parts])
    return _encoder.encode(parts if isinstance(parts, list | tuple) else list(parts))


def decode_part(data: bytes | str) -> AnyPart:
    """Decodes a stored part. Raises PartValidationError that names the field for damaged data."""
    try:
        return _decoders()[0].decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return load_part(_plain(data, dict))


def decode_parts(data: bytes | str) -> list[AnyPart]:
    """Decodes a list of stored parts in one call. Only if that fails, decodes each part separately."""
    try:
        return _decoders()[1].decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return [decode_part(raw) for raw in _plain(data, list[msgspec.Raw])]


def to_plain_values(value: Any) -> Any:
    """Converts a value that may contain parts of any type to dicts, lists, strings and numbers."""
    return tuples_to_lists(msgspec.to_builtins(value, enc_hook=_to_dict))


def encode_plain(value: Any) -> bytes:
    """Returns the JSON of `to_plain_values(value)`, without the intermediate values."""
    return _encoder.encode(value)


def validate_part(part: AnyPart) -> None:
    """Checks a part before it is stored, including the types of its fields. Raises PartValidationError that names the
    field."""
    check_part(part)
    if isinstance(part, PartBase):
        try:
            msgspec.convert(msgspec.to_builtins(part), type(part))
        except msgspec.ValidationError as error:
            raise validation_error(error, type(part).__name__) from error


def check_part(part: AnyPart) -> None:
    """Checks a part before it is stored, without the check of field types that `validate_part` does. Raises
    PartValidationError that names the field."""
    if not isinstance(part, PartBase):
        _check_ids(part)
        return
    if not are_ids(part.id, part.session_id, part.message_id):
        _check_ids(part)
    kind = part.type
    if kind not in _kinds:
        raise PartValidationError(f"part type {kind!r} is not registered (see register_part_type)", field="type")
    if kind in _FOR_MODELS:
        raise PartValidationError(f"{kind} exists only in what is sent to a model; store a ToolPart", field="type")
    if isinstance(part, ToolPart) and isinstance(part.state, ToolCompleted | ToolError):
        time = part.state.time
        if time.end < time.start:
            raise PartValidationError(
                f"tool: time.end {time.end} is before time.start {time.start}", field="state.time.end"
            )


def _check_ids(part: AnyPart) -> None:
    for field in ("id", "session_id", "message_id"):
        value = getattr(part, field, None)
        if not is_id(value):
            name = getattr(part, "type", "") or type(part).__name__
            raise PartValidationError(f"{name}: `{field}` must be a UUID, got {value!r}", field=field)


def _to_dict(value: Any) -> Any:
    try:
        return value.to_dict()
    except AttributeError:
        raise TypeError(f"{type(value).__name__} cannot be written as JSON") from None


@cache
def _decoders() -> tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]:
    """Returns the decoders for one part and for a list. The cache is cleared when a part type is registered."""
    structs = tuple(cls for cls in _kinds.values() if issubclass(cls, msgspec.Struct))
    union: Any = Union[structs]  # noqa: UP007  built at run time
    return msgspec.json.Decoder(union), msgspec.json.Decoder(list[union])


def _plain(data: bytes | str, shape: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PartValidationError(f"part: not readable as JSON: {error}") from error


_encoder = msgspec.json.Encoder(enc_hook=_to_dict)


def _guard(cls: type[P]) -> Callable[[object], TypeGuard[P]]:
    def is_kind(part: object) -> TypeGuard[P]:
        return isinstance(part, cls)

    is_kind.__doc__ = f"Returns whether a value is a {cls.__name__}; type checkers then know its type."
    return is_kind


is_text_part = _guard(TextPart)
is_reasoning_part = _guard(ReasoningPart)
is_tool_part = _guard(ToolPart)
is_file_part = _guard(FilePart)
is_step_start_part = _guard(StepStartPart)
is_step_finish_part = _guard(StepFinishPart)
is_snapshot_part = _guard(SnapshotPart)
is_patch_part = _guard(PatchPart)
is_agent_part = _guard(AgentPart)
is_subtask_part = _guard(SubtaskPart)
is_retry_part = _guard(RetryPart)
is_compaction_part = _guard(CompactionPart)
is_tool_use_part = _guard(ToolUsePart)
is_tool_result_part = _guard(ToolResultPart)
