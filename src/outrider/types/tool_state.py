"""Tool call state machine: pending → running → completed | error, as values that have only their legal transitions.

    ToolPending ──start──▶ ToolRunning ──complete──▶ ToolCompleted
         │                      └───────fail───────▶ ToolError
         └── fail: only a call that never ran ─────────▲

After a crash a running call whose tool is safe to repeat may be reset to pending (`again`). Transitions return new
values. `transition` checks states that come from outside: repeating a transition changes nothing, and a transition that
is not in the table raises InvalidStateTransition.
"""

import os
import pathlib
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast, get_args
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec.structs import force_setattr, replace

from outrider._lazy import lazy_pattern
from outrider._sync import describe_argument
from outrider.errors import ConfigurationError, InvalidStateTransition
from outrider.types.validate import ArgumentsMeta, convert

NO_OUTPUT = "(no output)"
TodoStatus = Literal["pending", "in_progress", "completed", "cancelled"]
# Keys in a part's metadata, set when the call starts.
REPEATABLE = "repeatable"  # running the call twice is safe
ASKS = "asks"  # the call only waits for a person's answer
HAS_RUN = "has_run"  # the call has done its work and stored the outcome on the machine where it ran
DISPLAY = "display"  # how front ends show the call, if that does not follow from the name of the tool
FORWARDED_BY = "forwarded_by"  # the tool that the model called with the name and arguments of this tool as its input
LEFT_OPEN = "left_open"  # the session in which the called agent waits for an answer

ToolPhase = Literal["streaming", "ready", "awaiting_approval"]
ToolErrorReason = Literal["failed", "denied", "rejected", "canceled", "timeout", "interrupted", "invalid_input"]
ToolStatus = Literal["pending", "running", "completed", "error"]

VALID_TRANSITIONS: dict[str, tuple[str, ...]] = {
    "pending": ("running", "error"),
    "running": ("completed", "error"),
    "completed": (),
    "error": (),
}


# One entry of the agent's task list, which the call that sets it stores in its metadata. It has no docstring, because
# msgspec would add that to the schema of the tool.
class TodoItem(msgspec.Struct, frozen=True):
    content: str
    status: TodoStatus = "pending"


class RunningTime(msgspec.Struct, frozen=True):
    """When a call was started, in Unix milliseconds."""

    start: int


class EndedTime(msgspec.Struct, frozen=True):
    """The start and the end of a call, in Unix milliseconds; they are equal for a call that never ran. `compacted` is
    the time when its output was removed from the prompt."""

    start: int
    end: int
    compacted: int | None = None


class Attachment(msgspec.Struct, frozen=True, metaclass=ArgumentsMeta):
    """A file attached to a message or a tool result. It has `data` (base64 text, or bytes, which are encoded) or a
    `url` (https:, data: or file:). The file of a file: URL is read in the program that attaches it, when the attachment
    is used."""

    mime_type: str
    data: str | None = None
    url: str | None = None
    name: str | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            mime_type: str,
            data: str | bytes | bytearray | memoryview | None = None,
            url: str | None = None,
            name: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        data: Any = self.data
        texts: Any = (self.mime_type, self.url or "")
        if not all(isinstance(text, str) for text in texts):
            raise ConfigurationError(
                "the mime_type and the url of an attachment must be strings, such as "
                "Attachment('image/png', url='https://…')"
            )
        if (data is None) == (self.url is None):
            raise ConfigurationError("an attachment has either data (bytes, or base64 text) or a url")
        if isinstance(data, bytes | bytearray | memoryview):
            force_setattr(self, "data", b64encode(cast("bytes", data)).decode())
        elif data is not None and not isinstance(data, str):
            raise ConfigurationError(
                f"the data of an attachment must be bytes or base64 text, got {type(data).__name__}"
            )

    @classmethod
    def from_bytes(cls, data: bytes, mime_type: str, name: str | None = None) -> "Attachment":
        """Returns an attachment with these contents."""
        if not isinstance(data, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"Attachment.from_bytes takes bytes, got {type(data).__name__}")
        return cls(mime_type, data=data, name=name)

    @classmethod
    def from_path(cls, path: "str | os.PathLike[str]", mime_type: str | None = None) -> "Attachment":
        """Reads a file and returns an attachment with its contents. Without `mime_type`, the type follows from the name
        of the file. Raises ConfigurationError if the file cannot be read or its type is not known."""
        import mimetypes

        if not isinstance(path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"Attachment.from_path takes the path of a file, got {type(path).__name__}")
        media_type = mime_type or mimetypes.guess_type(os.fspath(path))[0]
        if media_type is None:
            raise ConfigurationError(f"the type of {os.fspath(path)!r} is not known; pass mime_type")
        try:
            with pathlib.Path(path).open("rb") as file:
                data = file.read(MAX_ATTACHMENT_BYTES + 1)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigurationError(f"the attachment {os.fspath(path)!r} cannot be read: {reason}") from error
        if len(data) > MAX_ATTACHMENT_BYTES:
            raise ConfigurationError(
                f"the attachment {os.fspath(path)!r} has more than {MAX_ATTACHMENT_BYTES >> 20} MB; use a smaller file"
            )
        return cls(media_type, data=data, name=pathlib.Path(path).name)

    def load(self) -> "Attachment":
        """Returns an attachment with the contents of the file that a file: URL names; returns other attachments
        unchanged. Only attachments of the program itself may be loaded: a third party could name any file. Raises
        ConfigurationError if the file cannot be read."""
        if self.url is None or not self.url.lower().startswith("file:"):
            return self
        from urllib.parse import urlsplit
        from urllib.request import url2pathname

        address = urlsplit(self.url)
        if address.netloc not in ("", "localhost"):
            raise ConfigurationError(f"the attachment {self.url!r} is on another machine; write file:///PATH")
        loaded = Attachment.from_path(url2pathname(address.path), self.mime_type)
        return replace(loaded, name=self.name or loaded.name)


_BASE64 = lazy_pattern(r"[A-Za-z0-9+/\s]*[=\s]*")


def check_attachments(attachments: Iterable[Any] | None) -> Sequence[Attachment]:
    """Returns the attachments. Raises ConfigurationError if one is of another type."""
    value: Any = attachments
    if value is not None and (isinstance(value, str | bytes) or not isinstance(value, Iterable)):
        raise ConfigurationError(
            f"attachments must be a list, got {describe_argument(attachments)}; write attachments=[…]"
        )
    files = list(attachments or ())
    for file in files:
        if not isinstance(file, Attachment):
            raise ConfigurationError(
                f"attachments has a value of type {type(file).__name__}; it has Attachment values, such as "
                'Attachment.from_path("a.png") or Attachment("image/png", url="https://…")'
            )
        _check_attachment(file)
    return [file.load() for file in files]


def _check_attachment(file: Attachment) -> None:
    if file.url is not None and not file.url.lower().startswith(("https:", "http:", "data:", "file:")):
        raise ConfigurationError(
            f"the url of an attachment is an https:, data: or file: URL, got {file.url[:80]!r}; "
            "Attachment.from_path reads a file"
        )
    if "/" not in file.mime_type:
        raise ConfigurationError(
            f"the mime_type of an attachment is a type such as 'image/png', got {file.mime_type!r}; "
            "Attachment.from_path detects it"
        )
    if file.data is not None and not _BASE64.fullmatch(file.data):
        raise ConfigurationError("the data of an attachment is not base64 text; pass bytes, or use from_path")


MAX_ATTACHMENT_BYTES = 100 << 20


def _as_attachment(value: Any) -> Attachment:
    """Accepts a FilePart as an attachment."""
    return value if type(value) is Attachment else _attachment_of_file(msgspec.structs.asdict(value))


def read_attachments(part: dict[str, Any]) -> dict[str, Any]:
    """Returns the data of a stored tool call in the current format. Earlier versions stored file parts as
    attachments."""
    try:
        stored = msgspec.convert(part.get("state"), _StoredAttachments).attachments
    except msgspec.ValidationError:
        return part
    if not any("mime" in fields for fields in stored):
        return part
    read = [msgspec.to_builtins(_attachment_of_file(fields)) if "mime" in fields else fields for fields in stored]
    return part | {"state": {**part["state"], "attachments": read}}


class _StoredAttachments(msgspec.Struct):
    attachments: list[dict[str, Any]]


def _attachment_of_file(fields: dict[str, Any]) -> Attachment:
    return attachment_from_url(fields["mime"], str(fields["url"]), fields.get("filename"))


class DataUrl(NamedTuple):
    """The fields of a data: URL. `payload` is base64 text, or percent-encoded text."""

    mime: str
    payload: str
    is_base64: bool


def make_data_url(mime: str, content: str) -> str:
    """Returns a data: URL of base64 text."""
    return f"data:{mime};base64,{content}"


def parse_data_url(url: str) -> DataUrl | None:
    """Returns the fields of a data: URL; None for other URLs."""
    if not url.startswith("data:"):
        return None
    head, comma, payload = url.removeprefix("data:").partition(",")
    mime, _, parameters = head.partition(";")
    return DataUrl(mime, payload, f";{parameters}".endswith(";base64")) if comma else None


def data_url_base64(url: str) -> str | None:
    """Returns the payload of a data: URL as base64; None for other URLs."""
    data = parse_data_url(url)
    if data is None or data.is_base64:
        return data and data.payload
    return b64encode(unquote_to_bytes(data.payload)).decode()


def attachment_url(attachment: Attachment) -> str:
    """Returns the URL of an attachment; a data: URL if it has data."""
    return attachment.url or make_data_url(attachment.mime_type, attachment.data or "")


def attachment_from_url(mime: str, url: str, name: str | None) -> Attachment:
    """Returns an attachment for a URL. The content of a base64 data: URL becomes its data; other URLs are stored
    unchanged."""
    data = parse_data_url(url)
    if data is not None and data.is_base64:
        return Attachment(mime, data=data.payload, name=name)
    return Attachment(mime, url=url, name=name)


def _read_time(state: msgspec.Struct, time: Any, cls: type[RunningTime] | type[EndedTime]) -> None:
    """Accepts a plain dict as a time."""
    if time.__class__ is dict:
        force_setattr(state, "time", convert(time, cls))


class ToolError(msgspec.Struct, frozen=True, tag_field="status", tag="error"):
    """The call failed, was denied, canceled or interrupted; `reason` says which."""

    status: ClassVar[ToolStatus] = "error"
    ended: ClassVar[bool] = True
    input: dict[str, Any]
    error: str
    time: EndedTime
    reason: ToolErrorReason = "failed"
    metadata: dict[str, Any] = {}

    @property
    def text(self) -> str:
        """What a model reads of it."""
        return self.error

    def __post_init__(self) -> None:
        _read_time(self, self.time, EndedTime)
        if not self.error.strip():
            force_setattr(self, "error", f"the call ended as {self.reason}; nothing else is known")


class ToolCompleted(msgspec.Struct, frozen=True, tag_field="status", tag="completed"):
    """The call returned. An empty output becomes `(no output)`, since some APIs reject empty results."""

    status: ClassVar[ToolStatus] = "completed"
    ended: ClassVar[bool] = True
    input: dict[str, Any]
    output: str
    time: EndedTime
    title: str = ""
    metadata: dict[str, Any] = {}
    attachments: tuple[Attachment, ...] = ()

    @property
    def text(self) -> str:
        """What a model reads of it."""
        return self.output

    def __post_init__(self) -> None:
        _read_time(self, self.time, EndedTime)
        if not self.output.strip():
            force_setattr(self, "output", NO_OUTPUT)
        if self.attachments.__class__ is not tuple or not all(
            type(attachment) is Attachment for attachment in self.attachments
        ):
            force_setattr(self, "attachments", tuple(_as_attachment(attachment) for attachment in self.attachments))

    def compact(self, at: int) -> "ToolCompleted":
        """Returns the state with its output removed from the prompt; the output stays in the value. Returns the same
        state if the output is already removed."""
        if self.time.compacted is not None:
            return self
        return replace(self, time=replace(self.time, compacted=at))


class ToolRunning(msgspec.Struct, frozen=True, tag_field="status", tag="running"):
    """The tool is running; `title` and `metadata` report its progress."""

    status: ClassVar[ToolStatus] = "running"
    ended: ClassVar[bool] = False
    input: dict[str, Any]
    time: RunningTime
    title: str = ""
    metadata: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _read_time(self, self.time, RunningTime)

    def progress(self, *, title: str | None = None, metadata: dict[str, Any] | None = None) -> "ToolRunning":
        """Returns the running state with another title or further metadata."""
        return replace(
            self,
            title=self.title if title is None else title,
            metadata=self.metadata if metadata is None else {**self.metadata, **metadata},
        )

    def complete(
        self,
        output: str,
        at: int,
        *,
        title: str | None = None,
        metadata: dict[str, Any] | None = None,
        attachments: tuple[Attachment, ...] = (),
    ) -> ToolCompleted:
        """Returns the completed state."""
        return ToolCompleted(
            input=self.input,
            output=output,
            time=EndedTime(self.time.start, max(at, self.time.start)),
            title=self.title if title is None else title,
            metadata={**self.metadata, **(metadata or {})},
            attachments=attachments,
        )

    def fail(
        self,
        error: str,
        at: int,
        *,
        reason: ToolErrorReason = "failed",
        metadata: dict[str, Any] | None = None,
    ) -> ToolError:
        """Returns the error state of a call that ran."""
        return ToolError(
            input=self.input,
            error=error,
            time=EndedTime(self.time.start, max(at, self.time.start)),
            reason=reason,
            metadata={**self.metadata, **(metadata or {})},
        )

    def again(self) -> "ToolPending":
        """Returns the pending state, for a call that a crash interrupted and whose tool is safe to repeat."""
        return ToolPending(input=self.input, phase="ready")

    def expired(self, limit_ms: int, at: int) -> "ToolRunning | ToolError":
        """Returns a timeout error if the call has run longer than `limit_ms`, else this state."""
        if at - self.time.start <= limit_ms:
            return self
        return self.fail(f"timed out after {limit_ms / 1000:g} s", at, reason="timeout")


class ToolPending(msgspec.Struct, frozen=True, tag_field="status", tag="pending"):
    """The call has not started. `raw` is the input text of the model, which may be incomplete or invalid JSON."""

    status: ClassVar[ToolStatus] = "pending"
    ended: ClassVar[bool] = False
    input: dict[str, Any] = {}
    raw: str = ""
    phase: ToolPhase = "streaming"

    def ready(self, input: dict[str, Any]) -> "ToolPending":
        """Returns the state of a call whose input is complete."""
        return replace(self, input=input, phase="ready")

    def await_approval(self) -> "ToolPending":
        """Returns the state in which the call waits for an approval."""
        return replace(self, phase="awaiting_approval")

    def start(
        self,
        at: int,
        *,
        input: dict[str, Any] | None = None,
        title: str = "",
        metadata: dict[str, Any] | None = None,
    ) -> ToolRunning:
        """Returns the running state."""
        return ToolRunning(
            input=self.input if input is None else input,
            time=RunningTime(at),
            title=title,
            metadata=metadata or {},
        )

    def fail(
        self,
        error: str,
        at: int,
        *,
        reason: ToolErrorReason = "failed",
        metadata: dict[str, Any] | None = None,
    ) -> ToolError:
        """Returns the error state of a call that did not start."""
        retained = {"raw": self.raw} if self.raw and not self.input else {}
        return ToolError(
            input=self.input,
            error=error,
            time=EndedTime(at, at),
            reason=reason,
            metadata={**retained, **(metadata or {})},
        )


ToolState = ToolPending | ToolRunning | ToolCompleted | ToolError
ToolEnd = ToolCompleted | ToolError
TOOL_STATES: tuple[type[ToolState], ...] = get_args(ToolState)


def transition(current: ToolState, to: ToolState) -> ToolState:
    """Returns the state after a transition from `current` to `to`; a repeated transition returns `current`."""
    if to.status == current.status:
        return current
    if to.status not in VALID_TRANSITIONS[current.status]:
        raise InvalidStateTransition(current.status, to.status, VALID_TRANSITIONS[current.status])
    return to


WAITED = "waited_ms"
"""A key in the metadata of a call: the milliseconds for which it waited for the answer of a user."""


def exit_code_of(state: ToolState) -> int | None:
    """Returns the exit code of the command that a completed call has run."""
    code: Any = state.metadata.get("exit_code") if isinstance(state, ToolCompleted) else None
    return code if isinstance(code, int) and not isinstance(code, bool) else None


def working_time(state: ToolCompleted | ToolError) -> int:
    """Returns the milliseconds that a call took, without the time in which it waited for an answer."""
    waited: Any = state.metadata.get(WAITED)
    total = state.time.end - state.time.start
    return max(total - waited, 0) if isinstance(waited, int) else total
