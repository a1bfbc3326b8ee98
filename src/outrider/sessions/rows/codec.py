"""Messages and parts as stored bytes, and back: what is unknown is kept, what is damaged is reported."""

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from outrider.errors import PartValidationError
from outrider.sessions.records import Damaged, Kept
from outrider.types.codec import AnyPart, UnknownPart, check_part, decode_part, encode_part, plain, validate_part
from outrider.types.messages import Message, Role
from outrider.types.parts import PartBase, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolState
from outrider.types.validate import convert, validation_error

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


BLOB_BYTES = 16 * 1024
_MARK = "\x00blob:"
_NAME = re.compile(rb"\\u0000blob:([0-9a-f]{64})")


def split(body: bytes) -> tuple[bytes, dict[str, bytes]]:
    """The row with every large text replaced by its name, and the texts by name; mostly there is none."""
    if len(body) < BLOB_BYTES:
        return body, {}
    blobs: dict[str, bytes] = {}

    def take(text: str) -> str:
        if len(text) < BLOB_BYTES and not text.startswith(_MARK):
            return text
        content = text.encode()
        name = hashlib.sha256(content).hexdigest()
        blobs[name] = content
        return _MARK + name

    lean = walk(msgspec.json.decode(body), take)
    return (msgspec.json.encode(lean), blobs) if blobs else (body, {})


def join(body: bytes, fetch: Callable[[str], bytes]) -> bytes:
    """The row as it was; `fetch` gives the content of a name."""

    def put(text: str) -> str:
        return fetch(text.removeprefix(_MARK)).decode() if text.startswith(_MARK) else text

    return msgspec.json.encode(walk(msgspec.json.decode(body), put))


def names_in(body: bytes) -> list[str]:
    """The names of the texts that were taken out of a row."""
    return [name.decode() for name in _NAME.findall(body)]


def walk(value: Any, change: Callable[[str], str]) -> Any:
    """Plain data with every text in it changed."""
    match value:
        case str():
            return change(value)
        case dict():
            return {key: walk(inner, change) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [walk(inner, change) for inner in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


class MessageRow(msgspec.Struct, frozen=True):
    id: str
    role: str
    created: int
    body: bytes


class PartRow(msgspec.Struct, frozen=True):
    """`outcome`, `start` and `end` are set once a call has ended: `completed`, or the reason of its error."""

    id: str
    message_id: str
    body: bytes
    tool: str | None = None
    outcome: str | None = None
    start: int | None = None
    end: int | None = None


Row = MessageRow | PartRow


def to_rows(session_id: str, values: Sequence[Kept]) -> list[Row]:
    """Rows in the order in which they are numbered. For a part that comes again the same row stands at both places.
    Raises PartValidationError for what may not be stored."""
    rows: list[Row] = []
    parts: dict[tuple[str, str], AnyPart | PartRow] = {}
    for value in values:
        if value.session_id != session_id:
            raise PartValidationError(f"{value.id} belongs to session {value.session_id!r}", field="session_id")
        if not isinstance(value, Message):
            parts[value.message_id, value.id] = value
    for value in values:
        if isinstance(value, Message):
            rows += _message_rows(value)
            continue
        name = (value.message_id, value.id)
        part = parts[name]
        if not isinstance(part, PartRow):
            part = parts[name] = part_row(part)
        rows.append(part)
    return rows


def _message_rows(message: Message) -> Iterator[Row]:
    message.validate()
    yield message_row(message)
    for part in message.parts:
        yield part_row(part)


def in_place(rows: Sequence[Row], first: int) -> Collection[tuple[int, Row]]:
    """Each row once, numbered from `first` on: at its first place, under its last number."""
    return {id(row): (number, row) for number, row in enumerate(rows, first)}.values()


def message_row(message: Message) -> MessageRow:
    created = message.time.created if message.time else 0
    return MessageRow(message.id, message.role, created, encode_message(message))


def part_row(part: AnyPart) -> PartRow:
    body = writable(part, _encode_part)
    if not isinstance(part, ToolPart):
        return PartRow(part.id, part.message_id, body)
    match part.state:
        case ToolCompleted(time=time):
            return PartRow(part.id, part.message_id, body, part.tool, "completed", time.start, time.end)
        case ToolError(time=time, reason=reason):
            return PartRow(part.id, part.message_id, body, part.tool, reason, time.start, time.end)
        case _:
            return PartRow(part.id, part.message_id, body, part.tool)


def _encode_part(part: AnyPart) -> bytes:
    """What is not a part of ours is kept in its own words."""
    if type(part).__module__ != PartBase.__module__ or not isinstance(part, PartBase):
        validate_part(part)
        return encode_part(part)
    try:
        form = stored_form(part)
    except msgspec.ValidationError as error:
        raise validation_error(error, type(part).__name__) from error
    check = check_part if getattr(part, "source", None) is None else validate_part  # a form does not look into sources
    check(part)
    return _encoder.encode(form)


def encode_message(message: Message) -> bytes:
    """The message without its parts, which have rows of their own."""
    try:
        return writable(stored_form(message), _encoder.encode)
    except msgspec.ValidationError as error:
        raise validation_error(error, "Message") from error


def writable(value: Any, encode: Callable[[Any], bytes]) -> bytes:
    """JSON. Half a surrogate pair, which UTF-8 cannot hold, becomes a question mark rather than a lost row."""
    try:
        return encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(walk(plain(value), lambda text: text.encode("utf-8", "replace").decode()))


def read_message(session_id: str, row: MessageRow) -> tuple[Message, Damaged | None]:
    """The message without parts; one that cannot be read is stood in for by what its row still tells."""
    try:
        message, damaged = _decode_message(row.body), None
    except (PartValidationError, msgspec.DecodeError) as error:
        role: Role = "user" if row.role == "user" else "assistant"
        message = Message(role, id=row.id)
        damaged = Damaged("message", row.id, row.id, str(error), row.body)
    message.session_id = session_id
    return message, damaged


def read_part(session_id: str, row: PartRow) -> tuple[AnyPart | None, Damaged | None]:
    """The part, perhaps an opaque one; None for a row that is not even an object."""
    try:
        part, damaged = decode_part(row.body), None
    except PartValidationError as error:
        damaged = Damaged("part", row.id, row.message_id, str(error), row.body)
        part = _opaque(row)
        if part is None:
            return None, damaged
    part.adopt(row.message_id, session_id)
    return part, damaged


def _opaque(row: PartRow) -> UnknownPart | None:
    try:
        raw: dict[str, Any] = msgspec.json.decode(row.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return UnknownPart(raw if raw.get("id") == row.id else raw | {"id": row.id})


def _decode_message(body: bytes) -> Message:
    try:
        return _message_decoder.decode(body)
    except msgspec.ValidationError:
        return convert(msgspec.json.decode(body), Message)


_encoder = msgspec.json.Encoder()
_message_decoder = msgspec.json.Decoder(Message)
