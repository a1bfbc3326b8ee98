"""Message parts: twelve kinds that are stored, and the two kinds into which a tool call is split for a model. The token
counts and costs of parts and events are here too."""

from decimal import Decimal
from typing import Any, ClassVar, Literal, Self, TypeGuard, get_args
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import force_setattr, replace

from outrider.types.ids import new_id
from outrider.types.origins import StoredOrigins
from outrider.types.tool_state import (
    ASKS,
    REPEATABLE,
    Attachment,
    ToolCompleted,
    ToolError,
    ToolPending,
    ToolRunning,
    ToolState,
    attachment_url,
    parse_data_url,
    transition,
)
from outrider.types.validate import convert, tuples_to_lists


# With `gc=False` the garbage collector visits neither these values, which cannot be part of a cycle, nor the step parts
# that contain them. A session has some of them for each of its steps.
class CacheTokens(msgspec.Struct, frozen=True, gc=False):
    """Prompt tokens that were read from or written to the provider's prompt cache."""

    read: int = 0
    write: int = 0


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """Disjoint token counts that add up to `total`: `input` excludes tokens read from or written to a cache, `output`
    excludes reasoning tokens if the provider reports them separately."""

    input: int = 0
    output: int = 0
    reasoning: int = 0
    cache: CacheTokens = CacheTokens()

    @property
    def total(self) -> int:
        """All tokens: input, cache, output and reasoning."""
        cache = self.cache
        return self.input + cache.read + cache.write + self.output + self.reasoning

    @property
    def prompt(self) -> int:
        """Tokens of the request, cached or not: the size that is limited by the context window."""
        return self.input + self.cache.read + self.cache.write

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(
            input=self.input + other.input,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
            cache=CacheTokens(self.cache.read + other.cache.read, self.cache.write + other.cache.write),
        )


class CacheMiss(msgspec.Struct, frozen=True):
    """Why a request could not use, or did not use, the provider's prompt cache.

    - `cause`: the kind of the cause.
    - `detail`: further information for the user.
    - `offset`: the first byte that differs from the previous request, or the end of that request if none differs.
    - `cached`: the share of the prompt that was read from the cache.
    - `achievable`: the share of the prompt that equals the previous request.
    """

    cause: str
    detail: str = ""
    offset: int = 0
    cached: float = 0.0
    achievable: float = 0.0

    def describe(self) -> str:
        """Returns the cause as one line of text."""
        return f"{self.cause}: {self.detail}" if self.detail else self.cause


class Usage(msgspec.Struct, frozen=True):
    """Usage of a session or a run. `total_cost` is None as soon as one answer has no known price."""

    tokens: Tokens = Tokens()
    total_cost: Decimal | None = Decimal(0)

    def plus(self, tokens: Tokens, cost: Decimal | None) -> "Usage":
        """Returns the sum. The cost is None if one of the two costs is unknown."""
        total_cost = None if self.total_cost is None or cost is None else self.total_cost + cost
        return Usage(self.tokens + tokens, total_cost)


DisplayStatus = Literal["generating", "generated", "calling", "done", "canceled", "errored"]
_ENDS = (ToolCompleted, ToolError)


class PartTime(msgspec.Struct, frozen=True):
    """When a part was started and ended, in Unix milliseconds."""

    start: int
    end: int | None = None


class RetryTime(msgspec.Struct, frozen=True):
    """When the retry was scheduled, in Unix milliseconds."""

    created: int


class TextRange(msgspec.Struct, frozen=True):
    """A mention in a prompt: its text, and its character positions."""

    value: str
    start: int
    end: int


class FileSource(msgspec.Struct, frozen=True, tag_field="type", tag="file"):
    """A file of the workspace."""

    path: str
    text: TextRange | None = None


class SymbolSource(msgspec.Struct, frozen=True, tag_field="type", tag="symbol"):
    """A symbol in a source file. `kind` and `range` have the values of the Language Server Protocol."""

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
    """Base class of parts. `session_id` and `message_id` are empty until the part is added to a message."""

    type: ClassVar[str] = ""
    id: str = msgspec.field(default_factory=new_id)
    session_id: str = ""
    message_id: str = ""

    @property
    def part_type(self) -> str:
        """The name of the kind, as in `type`."""
        return self.type

    def to_dict(self) -> dict[str, Any]:
        """Returns the part as plain values."""
        return tuples_to_lists(msgspec.to_builtins(self))

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """Reads a part from the values of `to_dict`."""
        return convert(value, cls)

    def adopt(self, message_id: str, session_id: str) -> None:
        """Sets the owner ids when the part is added to a message. These are the only fields of a frozen part that are
        set after its creation."""
        if self.message_id != message_id or self.session_id != session_id:
            force_setattr(self, "message_id", message_id)
            force_setattr(self, "session_id", session_id)


class TextPart(PartBase, frozen=True, tag_field="type", tag="text"):
    """Text. `synthetic` text was written by the program for the model; `ignored` text is not sent to the model.
    `origins` are set for text that another agent wrote: the origins of everything that it had read."""

    type: ClassVar[Literal["text"]] = "text"
    text: str
    synthetic: bool = False
    ignored: bool = False
    time: PartTime | None = None
    metadata: dict[str, Any] = {}
    origins: StoredOrigins = UNSET

    def to_api_format(self) -> dict[str, Any]:
        """Returns the part as a block of the Anthropic API."""
        return {"type": "text", "text": self.text, **self.metadata.get("anthropic", {})}


class ReasoningPart(PartBase, frozen=True, tag_field="type", tag="reasoning"):
    """Reasoning of a model. `provider_state` is opaque data that the provider requires unchanged in later requests (a
    signature, encrypted content, a block); it is sent only to the model family named by `provider_state["family"]`."""

    type: ClassVar[Literal["reasoning"]] = "reasoning"
    text: str
    time: PartTime | None = None
    metadata: dict[str, Any] = {}
    provider_state: dict[str, Any] = {}

    def to_api_format(self) -> dict[str, Any]:
        """Returns the part as a block of the Anthropic API."""
        state = self.provider_state
        if "block" in state:
            return state["block"]
        block = {"type": "thinking", "thinking": self.text}
        return block | {"signature": state["signature"]} if "signature" in state else block


def failed_status(reason: str) -> DisplayStatus:
    """Returns the status that front ends show for a call that ended with an error of this reason."""
    return "canceled" if reason in ("canceled", "denied", "rejected") else "errored"


class ToolPart(PartBase, frozen=True, tag_field="type", tag="tool"):
    """A tool call and its result in one part, so that a call without a result cannot be stored. `origins` are the
    origins of the result."""

    type: ClassVar[Literal["tool"]] = "tool"
    call_id: str
    tool: str
    state: ToolState = ToolPending()
    metadata: dict[str, Any] = {}
    origins: StoredOrigins = UNSET

    @property
    def display_status(self) -> DisplayStatus:
        """The status that front ends show."""
        match self.state:
            case ToolPending(phase="streaming"):
                return "generating"
            case ToolPending():
                return "generated"
            case ToolRunning():
                return "calling"
            case ToolCompleted():
                return "done"
            case ToolError(reason=reason):
                return failed_status(reason)

    @property
    def ended(self) -> bool:
        """Whether the call is completed or ended in error."""
        return isinstance(self.state, _ENDS)

    @property
    def repeatable(self) -> bool:
        """Whether the tool declared, when the call started, that running it twice is safe."""
        return self.metadata.get(REPEATABLE) is True

    @property
    def asks(self) -> bool:
        """Whether the call only waits for a person's answer."""
        return self.metadata.get(ASKS) is True

    def with_state(self, state: ToolState) -> "ToolPart":
        """Returns the part after a transition. Repeating a transition returns the same part. Raises
        InvalidStateTransition for a transition that is not allowed."""
        moved = transition(self.state, state)
        return self if moved is self.state else replace(self, state=moved)

    def update_state(self, state: ToolState) -> "ToolPart":
        """Returns the part with another value of the same status: a new phase, title or progress."""
        if state.status != self.state.status:
            return self.with_state(state)
        return replace(self, state=state)

    def use(self) -> "ToolUsePart":
        """Returns the call without its result."""
        return ToolUsePart(
            tool_id=self.call_id,
            tool_name=self.tool,
            tool_input=self.state.input,
            metadata=self.metadata,
            session_id=self.session_id,
            message_id=self.message_id,
        )

    def to_api_format(self) -> dict[str, Any]:
        """Returns the call, without its result, as a block of the Anthropic API."""
        return self.use().to_api_format()


class FilePart(PartBase, frozen=True, tag_field="type", tag="file"):
    """A file. `url` is a data:, file: or https: URL; requests to a model contain only data: or https: URLs."""

    type: ClassVar[Literal["file"]] = "file"
    mime: str
    url: str
    filename: str | None = None
    source: Source | None = None
    metadata: dict[str, Any] = {}
    origins: StoredOrigins = UNSET

    def to_api_format(self) -> dict[str, Any]:
        """Returns the part as a block of the Anthropic API."""
        return file_block(self.mime, self.url, self.filename) | self.metadata.get("anthropic", {})


class BodyEdit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of bytes: `text` replaces `removed` bytes at `offset`."""

    offset: int
    text: str
    removed: int = 0


class SentRequestRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What is stored about the body of a request, besides the transcript, to build the same bytes again.

    - `size`, `digest`: of the whole body.
    - `head`: the text before the messages, in which a control character represents the id of the `conversation`; empty
      if it equals the head of the previous step.
    - `form`: how messages are encoded; empty if it equals the form of the previous step.
    - `rewrite`: what changed the messages: "text-tools" or "before_request".
    - `patch`: changes the encoded messages accordingly.
    - `inserts`: texts that are added afterwards, in ascending order.
    - `conversation`: the id of the conversation.
    """

    size: int
    digest: str
    head: str = ""
    form: tuple[str, ...] = ()
    rewrite: str = ""
    patch: BodyEdit | None = None
    inserts: tuple[BodyEdit, ...] = ()
    conversation: str = ""


class StepStartPart(PartBase, frozen=True, tag_field="type", tag="step-start"):
    """Marks the start of a step, with the request to the model. `snapshot` is the `hash` of the last `PatchPart` before
    it."""

    type: ClassVar[Literal["step-start"]] = "step-start"
    snapshot: str | None = None
    request: SentRequestRecord | UnsetType = UNSET


class StepFinishPart(PartBase, frozen=True, tag_field="type", tag="step-finish"):
    """Marks the end of an answer, before its calls run, with its finish reason, tokens and cost, and why the provider's
    cache missed."""

    type: ClassVar[Literal["step-finish"]] = "step-finish"
    reason: str
    snapshot: str | None = None
    cost: Decimal | None = None
    tokens: Tokens = Tokens()
    cache_miss: CacheMiss | UnsetType = UNSET


class SnapshotPart(PartBase, frozen=True, tag_field="type", tag="snapshot"):
    """The state of the workspace's files after an undo or redo. `snapshot` is the `hash` of its `PatchPart`."""

    type: ClassVar[Literal["snapshot"]] = "snapshot"
    snapshot: str


class PatchPart(PartBase, frozen=True, tag_field="type", tag="patch"):
    """Files that were changed by a step."""

    type: ClassVar[Literal["patch"]] = "patch"
    hash: str
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "files", tuple(self.files))


class AgentPart(PartBase, frozen=True, tag_field="type", tag="agent"):
    """A mention of an agent in the user's text."""

    type: ClassVar[Literal["agent"]] = "agent"
    name: str
    source: TextRange | None = None


class ModelRef(msgspec.Struct, frozen=True):
    """The name of a model and of its provider."""

    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}".rstrip("/")


class SubtaskPart(PartBase, frozen=True, tag_field="type", tag="subtask"):
    """A task that was delegated to another agent, with the session in which that agent works."""

    type: ClassVar[Literal["subtask"]] = "subtask"
    agent: str
    description: str = ""
    prompt: str = ""
    model: ModelRef | None = None
    child_session_id: str | None = None


class RetryPart(PartBase, frozen=True, tag_field="type", tag="retry", omit_defaults=True):
    """A request that failed and was sent again. The parts of the answer that were received before are marked as
    withdrawn.

    `tokens` and `cost` belong to the failed request. They are included in the totals of the message, and estimated if
    the provider reported none. With `model`, the step continues with that model, because the first one is not
    available.
    """

    type: ClassVar[Literal["retry"]] = "retry"
    attempt: int
    error: str
    time: RetryTime
    tokens: Tokens | None = None
    cost: Decimal | None = None
    model: ModelRef | None = None


class UndoneSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The summary that a compaction had until it was undone at `time`, in Unix milliseconds."""

    summary: str
    time: int


class CompactionPart(PartBase, frozen=True, tag_field="type", tag="compaction"):
    """Replaces all messages before `tail_start_id` in the prompt with a summary.

    - `auto`: False if the user requested the compaction.
    - `overflow`: whether the prompt was too long for the model.
    - `summary`: the summary; empty if the compaction was undone, so that it has no effect.
    - `tail_start_id`: the first message that stays in the prompt; None if there is none.
    - `tokens_before`, `tokens_after`: the tokens of the prompt.
    - `origins`: the origins of the replaced messages.
    - `undone`: the summary that requests contained until the compaction was undone.
    - `instructions`: what the user requested for the summary.
    """

    type: ClassVar[Literal["compaction"]] = "compaction"
    auto: bool = False
    overflow: bool = False
    summary: str = ""
    tail_start_id: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    origins: StoredOrigins = UNSET
    undone: UndoneSummary | UnsetType = UNSET
    instructions: str | UnsetType = UNSET


WITHDRAWN = "withdrawn"
"""The metadata key of a part that was shown and then withdrawn, because its request failed and was sent again."""


def is_withdrawn(part: object) -> bool:
    """Returns whether the part belongs to a failed attempt: front ends show it struck out, and models and tools do not
    receive it."""
    return bool(getattr(part, "metadata", {}).get(WITHDRAWN))


class ToolUsePart(PartBase, frozen=True, tag_field="type", tag="tool_use"):
    """A tool call as it is sent to a model."""

    type: ClassVar[Literal["tool_use"]] = "tool_use"
    tool_id: str
    tool_name: str
    tool_input: dict[str, Any] = {}
    metadata: dict[str, Any] = {}

    def to_api_format(self) -> dict[str, Any]:
        """Returns the part as a block of the Anthropic API."""
        return {
            "type": "tool_use",
            "id": self.tool_id,
            "name": self.tool_name,
            "input": self.tool_input,
            **self.metadata.get("anthropic", {}),
        }


class ToolResultPart(PartBase, frozen=True, tag_field="type", tag="tool_result"):
    """The result of a tool call as it is sent to a model."""

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
        """Returns the part as a block of the Anthropic API."""
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
AnswerPart = TextPart | ReasoningPart | ToolPart | FilePart
"""What an answer of a model consists of."""
RecordPart = (
    StepStartPart | StepFinishPart | SnapshotPart | PatchPart | AgentPart | SubtaskPart | RetryPart | CompactionPart
)
"""What the program stores about a turn. Streams of answers leave these parts out; events report them."""
ModelPart = TextPart | ReasoningPart | FilePart | ToolUsePart | ToolResultPart
STORED_KINDS: tuple[type[Part], ...] = get_args(Part)


def is_standard_part(part: object) -> TypeGuard[Part]:
    """Returns False for a part of a registered or unknown kind, and for an imported result of a call. With a `match`
    that ends with `assert_never`, the type checker reports a new kind."""
    return type(part) in STORED_KINDS


def tool_result(call: ToolPart, call_id: str | None = None) -> ToolResultPart | None:
    """Returns the result of a call as it is sent to a model; None while the call has not ended."""
    state = call.state
    if not isinstance(state, ToolCompleted | ToolError):
        return None
    is_error = isinstance(state, ToolError)
    return ToolResultPart(
        id=call.id,
        tool_use_id=call_id or call.call_id,
        content=state.text,
        is_error=is_error,
        attachments=() if is_error else state.attachments,
        tool_name=call.tool,
        metadata=state.metadata.get("result", {}),
    )


def file_block(mime: str, url: str, filename: str | None = None) -> dict[str, Any]:
    """Returns the provider-neutral content block of a file: an image, or a document with its name."""
    block: dict[str, Any] = {
        "type": "image" if mime.startswith("image/") else "document",
        "source": _source(mime, url),
    }
    if filename and block["type"] == "document":
        block["title"] = filename
    return block


def result_content(text: str, attachments: tuple[Attachment, ...]) -> str | list[dict[str, Any]]:
    """Returns the content of a tool result: a string, or a list of blocks if there are attachments."""
    if not attachments:
        return text
    return [*([{"type": "text", "text": text}] if text else []), *map(attachment_block, attachments)]


def attachment_block(attachment: Attachment) -> dict[str, Any]:
    return file_block(attachment.mime_type, attachment_url(attachment), attachment.name)


def attachment_part(attachment: Attachment) -> "FilePart":
    """Returns the part of a message that has the file."""
    return FilePart(attachment.mime_type, attachment_url(attachment), attachment.name)


def _source(mime: str, url: str) -> dict[str, Any]:
    if url.startswith("file-id:"):
        return {"type": "file", "file_id": url.removeprefix("file-id:")}
    data = parse_data_url(url)
    if data is None:
        return {"type": "url", "url": url}
    if not data.is_base64:
        return {"type": "text", "media_type": mime, "data": unquote(data.payload)}
    return {"type": "base64", "media_type": mime, "data": data.payload}
