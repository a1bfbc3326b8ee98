"""Encodes messages and parts as rows and decodes them. Unknown types stay intact; damaged rows are reported."""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from operator import attrgetter
from types import UnionType
from typing import Any, ClassVar, Union, assert_never, get_args, get_origin

import msgspec
from msgspec.structs import replace

from outrider.errors import PartValidationError
from outrider.sessions.records import DamagedRow, StoredValue
from outrider.types.codec import (
    AnyPart,
    UnknownPart,
    check_part,
    decode_part,
    encode_part,
    set_part_owner,
    to_plain_values,
    validate_part,
)
from outrider.types.messages import Message, Role
from outrider.types.origins import make_origin
from outrider.types.parts import PartBase, ReasoningPart, SentRequestRecord, StepStartPart, TextPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning, ToolState
from outrider.types.validate import convert, validation_error

# Not part of the JSON: the row has its session and message (the JSON would be wrong in a fork), and parts are rows.
_ROW_FIELDS = frozenset({"session_id", "message_id", "parts"})
_STATES = get_args(ToolState)
_STRUCT = type(msgspec.Struct)


def to_stored_form(value: msgspec.Struct) -> msgspec.Struct:
    """Converts a value to its stored class. Raises msgspec.ValidationError if a field has a wrong type."""
    return msgspec.convert(value, _stored_class(value.__class__), from_attributes=True)


@cache
def _stored_class(kind: type[msgspec.Struct], *, brief: bool = True) -> type[msgspec.Struct]:
    """Returns a class with the same fields, used to validate and encode. A `brief` class omits default values.

    Converting into it validates every nested value, which a constructor of a msgspec struct does not.
    """
    config = kind.__struct_config__
    return msgspec.defstruct(
        kind.__name__,
        [_stored_field(field) for field in msgspec.structs.fields(kind) if not brief or field.name not in _ROW_FIELDS],
        kw_only=True,
        omit_defaults=brief,
        tag_field=config.tag_field,
        tag=config.tag,
    )


def _stored_field(field: msgspec.structs.FieldInfo) -> tuple[str, Any] | tuple[str, Any, Any]:
    """Returns a field definition. An id has a random default, so it must never be omitted."""
    kind = _stored_type(field.type)
    if field.required or field.name == "id":
        return (field.name, kind)
    if field.default is not msgspec.NODEFAULT:
        return (field.name, kind, msgspec.field(default=field.default))
    return (field.name, kind, msgspec.field(default_factory=field.default_factory))


def _stored_type(kind: Any) -> Any:
    """Returns the stored type of a field. Tool states omit defaults too; other nested values are complete."""
    generic: Any = get_origin(kind)
    if msgspec.UnsetType in get_args(kind):
        return Any  # a field that is omitted while it is unset, which cannot be converted
    if generic in (Union, UnionType):
        return Union[tuple(map(_stored_type, get_args(kind)))]  # noqa: UP007  built at run time
    if generic is tuple:
        return tuple[_stored_type(get_args(kind)[0]), ...]
    if not isinstance(kind, _STRUCT) or _is_tagged_by_class(kind):
        return kind
    return _stored_class(kind, brief=kind in _STATES)


def _is_tagged_by_class(kind: Any) -> bool:
    """Returns whether the tag is the class name and not a field. Such a type cannot be converted and stays
    unchanged."""
    config = kind.__struct_config__
    return config.tag is not None and not hasattr(kind, config.tag_field)


UNREADABLE = (TypeError, KeyError, UnicodeDecodeError, msgspec.DecodeError)
"""What a damaged row, or one without its blob, raises when it is read."""
BLOB_BYTES = 16 * 1024
# The text before the messages of a request is equal in many sessions, so it is worth a blob much earlier.
_REQUEST_BLOB_BYTES = 512
_REQUEST_START = b'{"type":"step-start"'
SPLIT_CHARACTERS = 2**20
_BLOB_PREFIX = "\x00blob:"
_BLOB_NAME = re.compile(rb"\\u0000blob:([0-9a-f]{64})")


def extract_blobs(body: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Returns the row with each large string replaced with its hash, and the strings by hash. Most rows have none."""
    limit = _REQUEST_BLOB_BYTES if body.startswith(_REQUEST_START) else BLOB_BYTES
    if len(body) < limit:
        return body, {}
    blobs: dict[str, bytes] = {}

    def take(text: str) -> str:
        if len(text) < limit and not text.startswith(_BLOB_PREFIX):
            return text
        content = text.encode()
        name = hashlib.sha256(content).hexdigest()
        blobs[name] = content
        return _BLOB_PREFIX + name

    lean = map_strings(msgspec.json.decode(body), take)
    return (msgspec.json.encode(lean), blobs) if blobs else (body, {})


def split_texts(part: AnyPart) -> tuple[bytes, Mapping[str, bytes | str]] | None:
    """Returns the row of a part and its large strings by hash, as `extract_blobs` does, but without reading the row
    again. Returns None if the part has no string that is known to be large, or one that cannot be encoded."""
    if isinstance(part, StepStartPart):
        return _split_head(part, part.request) if part.request else None
    return _split_large_texts(part) if isinstance(part, PartBase) and _has_large_text(part) else None


def _split_head(part: StepStartPart, request: SentRequestRecord) -> tuple[bytes, dict[str, bytes]] | None:
    if len(request.head) < _REQUEST_BLOB_BYTES:
        return None
    try:
        name, content = _encode_head(request.head)
    except UnicodeEncodeError:
        return None  # the usual way replaces what cannot be encoded
    lean = encode_json(replace(part, request=replace(request, head=_BLOB_PREFIX + name)), _encode_part)
    return (lean, {name: content}) if len(lean) < _REQUEST_BLOB_BYTES else None  # else it has other large strings


@lru_cache(maxsize=8)
def _encode_head(head: str) -> tuple[str, bytes]:
    """Returns the name and the content of the blob of a head, which is equal in many sessions."""
    content = head.encode()
    return hashlib.sha256(content).hexdigest(), content


def _split_large_texts(part: PartBase) -> tuple[bytes, dict[str, str]] | None:
    texts: dict[str, str] = {}

    def take(text: str) -> str:
        if len(text) < BLOB_BYTES and not text.startswith(_BLOB_PREFIX):
            return text
        digest = hashlib.sha256()
        for chunk in encode_pieces(text):
            digest.update(chunk)
        texts[digest.hexdigest()] = text
        return _BLOB_PREFIX + digest.hexdigest()

    check_part(part)
    try:
        lean = map_strings(msgspec.to_builtins(to_stored_form(part)), take)
        return _encoder.encode(lean), texts
    except (msgspec.ValidationError, UnicodeEncodeError):
        return None  # `extract_blobs` reports or replaces the invalid value


def _has_large_text(part: PartBase) -> bool:
    if isinstance(part, ToolPart):
        return isinstance(part.state, ToolCompleted) and len(part.state.output) > SPLIT_CHARACTERS
    return isinstance(part, TextPart | ReasoningPart) and len(part.text) > SPLIT_CHARACTERS


def encode_pieces(text: str) -> Iterator[bytes]:
    """Yields the UTF-8 encoding of a text in chunks."""
    for start in range(0, len(text), SPLIT_CHARACTERS):
        yield text[start : start + SPLIT_CHARACTERS].encode()


def insert_blobs(body: bytes, fetch: Callable[[str], bytes]) -> bytes:
    """Returns the original row; `fetch` returns the content of a blob by name."""

    def put(text: str) -> str:
        return fetch(text.removeprefix(_BLOB_PREFIX)).decode() if text.startswith(_BLOB_PREFIX) else text

    return msgspec.json.encode(map_strings(msgspec.json.decode(body), put))


LEFT_IN_STORE = "[a long text of this conversation; it was left in the store]"
_USER_INPUT = [msgspec.to_builtins(make_origin("secret", "the user's input"))]


_MIN_LEFT_BODY = 2_000  # bytes of a row
_MIN_LEFT_TEXT = 500  # characters
_PART_OVERHEAD = 500  # bytes of memory of a part besides its texts


class TextBudget:
    """Limits the texts of a transcript that is read from its end. After the message that uses up `left` bytes, texts of
    older messages are left in the store, except for inputs of calls and texts of the user that are not blobs."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.is_spent = False
        self._message: object = None

    def abridge(self, body: bytes, message: object, role: str) -> bytes:
        """Returns a row that refers to blobs, without the blobs that are left in the store. `message` is the key of its
        message."""
        if message != self._message:
            self._message, self.is_spent = message, self.left <= 0
        return leave_texts(body, role, _note_blob) if self.is_spent else body

    def abridge_small(self, body: bytes, message: object, role: str) -> bytes:
        """Returns a row without blobs, without the texts that are left in the store, and subtracts its size from the
        budget."""
        if message != self._message:
            self._message, self.is_spent = message, self.left <= 0
        if self.is_spent and role == "assistant" and len(body) > _MIN_LEFT_BODY:
            body = leave_texts(body, role, _note_text)
        self.left -= len(body) + _PART_OVERHEAD
        return body


class OldMessageCutoff:
    """Decides how much of a long transcript is read, from its end: everything up to `text_bytes`, and all messages that
    the last compaction left in the prompt. Other messages are not part of any prompt."""

    def __init__(self, budget: TextBudget) -> None:
        self._budget = budget
        self._tail_start: str | None = None  # "" once it was read, or if the compaction left nothing

    def is_reached(self, message_id: str, role: str, parts: Iterable[bytes]) -> bool:
        """Returns whether the messages before this one, which has these rows, are left in the store."""
        if self._tail_start is None and role == "user":
            tails = (_read_tail_start(body) for body in parts if _COMPACTION_MARK in body)
            self._tail_start = next((tail_start for tail_start in tails if tail_start is not None), None)
        if self._tail_start == message_id:
            self._tail_start = ""
        return self._tail_start == "" and self._budget.left <= 0


_COMPACTION_MARK = b'"type":"compaction"'


def _read_tail_start(body: bytes) -> str | None:
    """Returns the id of the first message that a compaction left in the prompt, "" if it left none. Returns None if the
    row is not a compaction, or a compaction without effect."""
    try:
        value = msgspec.json.decode(body)
    except UNREADABLE:
        return None
    match value:
        case {"type": "compaction", "summary": str(summary)} if summary:
            return value.get("tail_start_id") or ""
        case _:
            return None


def leave_texts(body: bytes, role: str, note: Callable[[str], str]) -> bytes:
    """Returns the row of a finished text, reasoning or call with a note in place of each text that `note` replaces, and
    without attachments. Inputs of calls, files and texts of the program stay, also as references to blobs. The text of
    a user is not loaded, so it cannot be checked and is treated as if it contained a secret."""
    try:
        value = msgspec.json.decode(body)
    except UNREADABLE:
        return body  # damaged: reading the part reports it
    match value:
        case {"type": "text", "text": str(text)} if not value.get("synthetic"):
            unchecked = {"origins": _USER_INPUT} if role == "user" else {}
            value = unchecked | value | {"text": note(text)}
        case {"type": "reasoning"}:
            value = map_strings(value, note)
        case {"type": "tool", "state": {"status": "completed" | "error", "input": arguments, **rest}}:
            noted = map_strings({**rest, "attachments": []}, note)
            value = {**value, "state": {"status": value["state"]["status"], "input": arguments, **noted}}
        case _:
            pass
    return msgspec.json.encode(value)


def _note_blob(text: str) -> str:
    return LEFT_IN_STORE if text.startswith(_BLOB_PREFIX) else text


def _note_text(text: str) -> str:
    return LEFT_IN_STORE if len(text) > _MIN_LEFT_TEXT else text


def blob_names(body: bytes) -> list[str]:
    """Returns the names of the blobs that a row refers to."""
    return [name.decode() for name in _BLOB_NAME.findall(body)]


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Returns plain data with `change` applied to every string value."""
    match value:
        case str():
            return change(value)
        case dict():
            return {key: map_strings(inner, change) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [map_strings(inner, change) for inner in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


class MessageRow(msgspec.Struct, frozen=True):
    texts: ClassVar[Mapping[str, str]] = {}
    id: str
    role: str
    created: int
    body: bytes


class PartRow(msgspec.Struct, frozen=True):
    """A part as stored. A finished call has `outcome` (`completed` or the error reason), `start` and `end`."""

    id: str
    message_id: str
    body: bytes
    tool: str | None = None
    outcome: str | None = None
    start: int | None = None
    end: int | None = None
    texts: Mapping[str, bytes | str] = {}
    """Large strings by hash, if the body refers to them; see `split_texts`."""


Row = MessageRow | PartRow


def rows_size(rows: Sequence[Row]) -> int:
    """Returns the bytes of rows, approximately."""
    size = sum(map(len, map(_get_body, rows)))
    for texts in filter(None, map(_get_texts, rows)):
        size += sum(map(len, texts.values()))
    return size


_get_body: Callable[[Row], bytes] = attrgetter("body")
_get_texts: Callable[[Row], Mapping[str, bytes | str]] = attrgetter("texts")


class AppendRequest(msgspec.Struct, frozen=True):
    """The arguments of one `Store.append` call, with the values encoded as rows."""

    session_id: str
    rows: Sequence[Row]
    token: int | None
    draft: bool
    takes: Sequence[str]


def to_rows(session_id: str, values: Sequence[StoredValue], *, split: bool = False) -> list[Row]:
    """Encodes values as rows, in numbering order. A part that occurs twice yields the same row object twice. With
    `split`, the rows refer to very large strings of single parts instead of copying them.

    Raises PartValidationError for an invalid value, and for a value of another session.
    """
    last: dict[tuple[str, str], AnyPart] = {}
    for value in values:
        if value.session_id != session_id:
            raise PartValidationError(f"{value.id} belongs to session {value.session_id!r}", field="session_id")
        if not isinstance(value, Message):
            last[value.message_id, value.id] = value
    parts = {name: part_row(part, split=split) for name, part in last.items()}
    rows: list[Row] = []
    for value in values:
        if isinstance(value, Message):
            rows += _message_rows(value)
        else:
            rows.append(parts[value.message_id, value.id])
    return rows


def _message_rows(message: Message) -> list[Row]:
    message.validate()
    return [message_row(message), *map(part_row, message.parts)]


def number_rows(rows: Sequence[Row], first: int) -> Collection[tuple[int, Row]]:
    """Numbers rows from `first` on. A row that occurs twice is returned once: at its first position, with its last
    number."""
    return {id(row): (number, row) for number, row in enumerate(rows, first)}.values()


def message_row(message: Message) -> MessageRow:
    created = message.time.created if message.time else 0
    return MessageRow(message.id, message.role, created, encode_message(message))


def part_row(part: AnyPart, *, split: bool = False) -> PartRow:
    divided = split_texts(part) if split else None
    body, texts = divided or (encode_json(part, _encode_part), {})
    if not isinstance(part, ToolPart):
        return PartRow(part.id, part.message_id, body, texts=texts)
    match part.state:
        case ToolCompleted(time=time):
            return PartRow(part.id, part.message_id, body, part.tool, "completed", time.start, time.end, texts)
        case ToolError(time=time, reason=reason):
            return PartRow(part.id, part.message_id, body, part.tool, reason, time.start, time.end)
        case ToolPending() | ToolRunning():
            return PartRow(part.id, part.message_id, body, part.tool)
        case _:
            assert_never(part.state)


@cache
def _encodes_itself(kind: type[PartBase]) -> bool:
    return kind.__module__ != PartBase.__module__


def _encode_part(part: AnyPart) -> bytes:
    """Encodes a part. Registered part types of users have no stored class and encode themselves."""
    if not isinstance(part, PartBase) or _encodes_itself(part.__class__):
        validate_part(part)
        return encode_part(part)
    try:
        form = to_stored_form(part)
    except msgspec.ValidationError as error:
        raise validation_error(error, type(part).__name__) from error
    # Only `validate_part` checks sources: the stored class leaves their type open.
    check = check_part if getattr(part, "source", None) is None else validate_part
    check(part)
    return _encoder.encode(form)


def encode_message(message: Message) -> bytes:
    """Encodes a message without its parts: they are separate rows."""
    try:
        return encode_json(to_stored_form(message), _encoder.encode)
    except msgspec.ValidationError as error:
        raise validation_error(error, "Message") from error


def encode_json(value: Any, encode: Callable[[Any], bytes]) -> bytes:
    """Encodes a value as JSON. Replaces lone surrogates, which UTF-8 cannot encode, instead of losing the row."""
    try:
        return encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(
            map_strings(to_plain_values(value), lambda text: text.encode("utf-8", "replace").decode())
        )


def read_message(session_id: str, row: MessageRow) -> tuple[Message, DamagedRow | None]:
    """Decodes a message without parts. For a damaged row, returns a placeholder with its id and role, and the error."""
    try:
        message, damaged = _decode_message(row.body), None
    except Exception as error:  # noqa: BLE001  whatever a damaged row raises must not hide the rest of the session
        role: Role = "user" if row.role == "user" else "assistant"
        message = Message(role, id=row.id)
        damaged = DamagedRow("message", row.id, row.id, str(error), as_bytes(row.body))
    message.session_id = session_id
    return message, damaged


def read_part(session_id: str, row: PartRow) -> tuple[AnyPart | None, DamagedRow | None]:
    """Decodes a part. For a damaged row, returns an UnknownPart (None if it is not a JSON object) and the error."""
    try:
        part, damaged = decode_part(row.body), None
    except Exception as error:  # noqa: BLE001  as above
        damaged = DamagedRow("part", row.id, row.message_id, str(error), as_bytes(row.body))
        part = _opaque_part(row)
        if part is None:
            return None, damaged
    set_part_owner(part, row.message_id, session_id)
    return part, damaged


def as_bytes(body: object) -> bytes:
    """Returns the content of a body column. In a damaged row it may have any type of SQLite."""
    return body if isinstance(body, bytes) else str(body).encode("utf-8", "replace")


def _opaque_part(row: PartRow) -> UnknownPart | None:
    try:
        raw: dict[str, Any] = msgspec.json.decode(row.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError):
        return None
    return UnknownPart(raw if raw.get("id") == row.id else raw | {"id": row.id})


def _decode_message(body: bytes) -> Message:
    try:
        return _message_decoder.decode(body)
    except msgspec.ValidationError:  # a field of a newer version, or a wrong type
        return convert(msgspec.json.decode(body), Message)


_encoder = msgspec.json.Encoder()
_message_decoder = msgspec.json.Decoder(Message)
