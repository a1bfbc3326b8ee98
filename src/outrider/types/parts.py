"""The parts of a message: twelve kinds that are stored, and the two into which a tool call is split for a model."""

from decimal import Decimal
from typing import Any, ClassVar, Literal, Self, get_args
from urllib.parse import unquote

import msgspec
from msgspec.structs import force_setattr, replace

from outrider.types.ids import new_id
from outrider.types.tool_state import (
    ASKS,
    REPEATABLE,
    Attachment,
    ToolCompleted,
    ToolError,
    ToolPending,
    ToolRunning,
    ToolState,
    move,
)
from outrider.types.usage import Tokens
from outrider.types.validate import convert, listed

DisplayStatus = Literal["generating", "generated", "calling", "done", "canceled", "errored"]
_ENDS = (ToolCompleted, ToolError)


class PartTime(msgspec.Struct, frozen=True):
    start: int
    end: int | None = None


class RetryTime(msgspec.Struct, frozen=True):
    created: int


class TextRange(msgspec.Struct, frozen=True):
    """The words of a prompt that stand for a mention, and where they stood."""

    value: str
    start: int
    end: int


class FileSource(msgspec.Struct, frozen=True, tag_field="type", tag="file"):
    path: str
    text: TextRange | None = None


class SymbolSource(msgspec.Struct, frozen=True, tag_field="type", tag="symbol"):
    path: str
    name: str
    kind: int = 0
    range: dict[str, Any] = {}
    text: TextRange | None = None


class ResourceSource(msgspec.Struct, frozen=True, tag_field="type", tag="resource"):
    """A resource of an MCP server."""

    uri: str
    client_name: str = ""
    text: TextRange | None = None


Source = FileSource | SymbolSource | ResourceSource


class PartBase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every part has. The two owner ids are empty until the part is added to a message of a session."""

    type: ClassVar[str] = ""
    id: str = msgspec.field(default_factory=new_id)
    session_id: str = ""
    message_id: str = ""

    @property
    def part_type(self) -> str:
        return self.type

    def to_dict(self) -> dict[str, Any]:
        return listed(msgspec.to_builtins(self))

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        return convert(value, cls)

    def adopt(self, message_id: str, session_id: str) -> None:
        """Fill in the owners when the part enters a message: the one late initialisation of a frozen value."""
        force_setattr(self, "message_id", message_id)
        force_setattr(self, "session_id", session_id)


class TextPart(PartBase, frozen=True, tag_field="type", tag="text"):
    """`synthetic` text was written by the program for the model; `ignored` text is for people only."""

    type: ClassVar[Literal["text"]] = "text"
    text: str
    synthetic: bool = False
    ignored: bool = False
    time: PartTime | None = None
    metadata: dict[str, Any] = {}

    def to_api_format(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text, **self.metadata.get("anthropic", {})}


class ReasoningPart(PartBase, frozen=True, tag_field="type", tag="reasoning"):
    """`provider_state` is what the provider wants back word for word (a signature, encrypted content, a whole
    opaque block); it is replayed only to the model family that `provider_state["family"]` names."""

    type: ClassVar[Literal["reasoning"]] = "reasoning"
    text: str
    time: PartTime | None = None
    metadata: dict[str, Any] = {}
    provider_state: dict[str, Any] = {}

    def to_api_format(self) -> dict[str, Any]:
        state = self.provider_state
        if "block" in state:
            return state["block"]
        block = {"type": "thinking", "thinking": self.text}
        return block | {"signature": state["signature"]} if "signature" in state else block


class ToolPart(PartBase, frozen=True, tag_field="type", tag="tool"):
    type: ClassVar[Literal["tool"]] = "tool"
    call_id: str
    tool: str
    state: ToolState = ToolPending()
    metadata: dict[str, Any] = {}

    @property
    def display_status(self) -> DisplayStatus:
        """The six words that people see."""
        match self.state:
            case ToolPending(phase="streaming"):
                return "generating"
            case ToolPending():
                return "generated"
            case ToolRunning():
                return "calling"
            case ToolCompleted():
                return "done"
            case ToolError(reason="canceled" | "denied" | "rejected"):
                return "canceled"
            case ToolError():
                return "errored"

    @property
    def ended(self) -> bool:
        return isinstance(self.state, _ENDS)

    @property
    def repeatable(self) -> bool:
        """Whether its tool said, when it began, that it is safe to run it twice."""
        return self.metadata.get(REPEATABLE) is True

    @property
    def asks(self) -> bool:
        """Whether it does nothing but wait for a person's answer."""
        return self.metadata.get(ASKS) is True

    def with_state(self, state: ToolState) -> "ToolPart":
        """The part after a move; repeating a move gives the part back, an illegal one raises."""
        moved = move(self.state, state)
        return self if moved is self.state else replace(self, state=moved)

    def update_state(self, state: ToolState) -> "ToolPart":
        """The part with another value of the same status (a new phase, title or progress)."""
        if state.status != self.state.status:
            return self.with_state(state)
        return replace(self, state=state)

    def use(self) -> "ToolUsePart":
        return ToolUsePart(
            tool_id=self.call_id,
            tool_name=self.tool,
            tool_input=self.state.input,
            metadata=self.metadata,
            session_id=self.session_id,
            message_id=self.message_id,
        )

    def to_api_format(self) -> dict[str, Any]:
        return self.use().to_api_format()


class FilePart(PartBase, frozen=True, tag_field="type", tag="file"):
    """`url` is a data:, file: or https: address. What goes to a model is data: or https:."""

    type: ClassVar[Literal["file"]] = "file"
    mime: str
    url: str
    filename: str | None = None
    source: Source | None = None
    metadata: dict[str, Any] = {}

    def to_api_format(self) -> dict[str, Any]:
        return file_block(self.mime, self.url, self.filename) | self.metadata.get("anthropic", {})


class StepStartPart(PartBase, frozen=True, tag_field="type", tag="step-start"):
    type: ClassVar[Literal["step-start"]] = "step-start"
    snapshot: str | None = None


class StepFinishPart(PartBase, frozen=True, tag_field="type", tag="step-finish"):
    type: ClassVar[Literal["step-finish"]] = "step-finish"
    reason: str
    snapshot: str | None = None
    cost: Decimal | None = None
    tokens: Tokens = Tokens()


class SnapshotPart(PartBase, frozen=True, tag_field="type", tag="snapshot"):
    type: ClassVar[Literal["snapshot"]] = "snapshot"
    snapshot: str


class PatchPart(PartBase, frozen=True, tag_field="type", tag="patch"):
    type: ClassVar[Literal["patch"]] = "patch"
    hash: str
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "files", tuple(self.files))


class AgentPart(PartBase, frozen=True, tag_field="type", tag="agent"):
    """A mention of an agent in the user's words."""

    type: ClassVar[Literal["agent"]] = "agent"
    name: str
    source: TextRange | None = None


class ModelRef(msgspec.Struct, frozen=True):
    provider: str
    model: str


class SubtaskPart(PartBase, frozen=True, tag_field="type", tag="subtask"):
    type: ClassVar[Literal["subtask"]] = "subtask"
    agent: str
    description: str = ""
    prompt: str = ""
    model: ModelRef | None = None
    child_session_id: str | None = None


class RetryPart(PartBase, frozen=True, tag_field="type", tag="retry"):
    type: ClassVar[Literal["retry"]] = "retry"
    attempt: int
    error: str
    time: RetryTime


class CompactionPart(PartBase, frozen=True, tag_field="type", tag="compaction"):
    """Stands for all that came before `tail_start_id` (a message): `summary` takes its place in the prompt."""

    type: ClassVar[Literal["compaction"]] = "compaction"
    auto: bool = False
    overflow: bool = False
    summary: str = ""
    tail_start_id: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None


class ToolUsePart(PartBase, frozen=True, tag_field="type", tag="tool_use"):
    """A call, as a model sees it."""

    type: ClassVar[Literal["tool_use"]] = "tool_use"
    tool_id: str
    tool_name: str
    tool_input: dict[str, Any] = {}
    metadata: dict[str, Any] = {}

    def to_api_format(self) -> dict[str, Any]:
        return {
            "type": "tool_use",
            "id": self.tool_id,
            "name": self.tool_name,
            "input": self.tool_input,
            **self.metadata.get("anthropic", {}),
        }


class ToolResultPart(PartBase, frozen=True, tag_field="type", tag="tool_result"):
    """The end of a call, as a model sees it."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    tool_use_id: str
    content: str = ""
    is_error: bool = False
    attachments: tuple[Attachment, ...] = ()
    tool_name: str = ""
    metadata: dict[str, Any] = {}

    def __post_init__(self) -> None:
        force_setattr(self, "attachments", tuple(self.attachments))

    def to_api_format(self) -> dict[str, Any]:
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": self.tool_use_id}
        content = self.metadata.get("content", result_content(self.content, self.attachments))
        if content is not None:
            block["content"] = content
        return block | ({"is_error": True} if self.is_error else {}) | self.metadata.get("anthropic", {})


Part = (
    TextPart
    | ReasoningPart
    | ToolPart
    | FilePart
    | StepStartPart
    | StepFinishPart
    | SnapshotPart
    | PatchPart
    | AgentPart
    | SubtaskPart
    | RetryPart
    | CompactionPart
)
ModelPart = TextPart | ReasoningPart | FilePart | ToolUsePart | ToolResultPart
STORED_KINDS: tuple[type[Part], ...] = get_args(Part)


def tool_result(call: ToolPart, call_id: str | None = None) -> ToolResultPart | None:
    """The result of a call as a model sees it, under the call's id; None while the call is open."""
    state = call.state
    match state:
        case ToolCompleted() | ToolError():
            return ToolResultPart(
                id=call.id,
                tool_use_id=call_id or call.call_id,
                content=state.text,
                is_error=isinstance(state, ToolError),
                attachments=getattr(state, "attachments", ()),
                tool_name=call.tool,
                metadata=state.metadata.get("result", {}),
            )
        case ToolPending() | ToolRunning():
            return None


def file_block(mime: str, url: str, filename: str | None = None) -> dict[str, Any]:
    """The neutral content block of a file: an image, or a document with its name."""
    block: dict[str, Any] = {
        "type": "image" if mime.startswith("image/") else "document",
        "source": _source(mime, url),
    }
    if filename and block["type"] == "document":
        block["title"] = filename
    return block


def result_content(text: str, attachments: tuple[Attachment, ...]) -> str | list[dict[str, Any]]:
    """The content of a tool result: plain text, or blocks once there is more than text."""
    if not attachments:
        return text
    return [*([{"type": "text", "text": text}] if text else []), *map(attachment_block, attachments)]


def attachment_block(attachment: Attachment) -> dict[str, Any]:
    url = attachment.url or f"data:{attachment.mime_type};base64,{attachment.data}"
    return file_block(attachment.mime_type, url, attachment.name)


def _source(mime: str, url: str) -> dict[str, Any]:
    if url.startswith("file-id:"):
        return {"type": "file", "file_id": url.removeprefix("file-id:")}
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    head, _, payload = url.removeprefix("data:").partition(",")
    if not head.endswith(";base64"):
        return {"type": "text", "media_type": mime, "data": unquote(payload)}
    return {"type": "base64", "media_type": mime, "data": payload}
