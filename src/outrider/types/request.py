"""The provider-neutral request (prompt, tools, settings), the streaming deltas of a model's answer, and the complete
answer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Literal, overload

import msgspec

from outrider._lazy import warn_of_old_name
from outrider.errors import ConfigurationError
from outrider.types.events import Event
from outrider.types.messages import Message, Role
from outrider.types.modes import ReasoningEffort, VendorTool
from outrider.types.parts import ModelPart, Tokens
from outrider.types.validate import ArgumentsMeta


class ModelMessage(msgspec.Struct, frozen=True):
    """A message as it is sent to a model. Roles alternate. Tool results come first in the user message after the
    calls."""

    role: Role
    content: tuple[ModelPart, ...]

    def to_api_format(self) -> dict[str, Any]:
        """Returns the message in the Anthropic message format."""
        return {"role": self.role, "content": [part.to_api_format() for part in self.content]}


class Prompt(Sequence[ModelMessage]):
    """The messages of a request: an append-only list that caches encoded bytes per wire format.

    A later request encodes only the new messages and reuses the cached bytes, so its prefix is byte-identical.
    """

    __slots__ = ("_encoded", "_ends", "_messages", "_opening", "_rewritten", "_sent")

    def __init__(self, messages: Iterable[ModelMessage] = ()) -> None:
        self._messages = list(messages)
        self._encoded: dict[str, tuple[int, bytearray]] = {}
        self._ends: dict[str, list[int]] = {}
        self._sent = (0, 0)  # the number of messages of the previous request and of the last one
        self._rewritten: dict[str, Prompt] = {}
        self._opening: tuple[object, bytes] | None = None

    def append(self, message: ModelMessage) -> None:
        """Appends a message. The bytes of earlier messages do not change."""
        self._messages.append(message)

    def encoded(self, form: str, encode: Callable[[ModelMessage], bytes]) -> bytearray:
        """Returns all messages, encoded by `encode` and separated by commas. `form` is the cache key: it names
        everything that the bytes depend on. The caller copies the result and never modifies it."""
        count, buffer = self._encoded.get(form, (0, bytearray()))
        for position in range(count, len(self._messages)):
            written = encode(self._messages[position])
            if written and buffer:
                buffer += b","
            buffer += written
            self._ends.setdefault(form, []).append(len(buffer))
        self._encoded[form] = (len(self._messages), buffer)
        return buffer

    def encoded_end(self, form: str, count: int) -> int:
        """Returns where the first `count` messages end in the bytes of `encoded(form)`."""
        return self._ends[form][count - 1]

    def message_ends(self, encoded: bytes | bytearray) -> list[int]:
        """Returns where each message ends in bytes that `encoded` returned."""
        form = next(form for form, (_, buffer) in self._encoded.items() if buffer is encoded)
        return self._ends.get(form, [])

    def count_sent(self) -> int:
        """Returns how many messages the previous request had, or 0. A repeated request is not a new one."""
        if len(self._messages) != self._sent[1]:
            self._sent = (self._sent[1], len(self._messages))
        return self._sent[0]

    def opening(
        self, inputs_key: object = None, write: Callable[[], bytes] = bytes, *, made_of: object = None
    ) -> bytes:
        """Returns the bytes before the messages, cached as long as `inputs_key` is equal. `made_of` is the deprecated
        name of `inputs_key`."""
        if made_of is not None:
            warn_of_old_name("Prompt.opening(made_of=…)", "inputs_key")
            inputs_key = made_of
        cached = self._opening
        if cached is None or cached[0] != inputs_key:
            self._opening = cached = (inputs_key, write())
        return cached[1]

    def rewritten(self, form: str, rewrite: "Rewrite") -> "Prompt":
        """Returns a cached prompt with every message converted by `rewrite(message, previous)`. Messages are appended
        to it when they are appended to this prompt, so its prefix is byte-identical too."""
        other = self._rewritten.setdefault(form, Prompt())
        for position in range(len(other), len(self._messages)):
            before = self._messages[position - 1] if position else None
            other.append(rewrite(self._messages[position], before))
        return other

    def find_rewrite(self, other: "Prompt") -> str | None:
        """Returns the form in which `other` is a rewritten copy of this prompt; None if it is not a copy."""
        return next((form for form, prompt in self._rewritten.items() if prompt is other), None)

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> ModelMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[ModelMessage]: ...
    def __getitem__(self, index: int | slice) -> ModelMessage | list[ModelMessage]:
        return self._messages[index]

    def __iter__(self) -> Iterator[ModelMessage]:
        return iter(self._messages)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prompt) and self._messages == other._messages

    __hash__ = None  # pyright: ignore[reportAssignmentType]  it grows

    def __repr__(self) -> str:
        return f"Prompt({self._messages!r})"


Rewrite = Callable[[ModelMessage, ModelMessage | None], ModelMessage]


class ServerOverview(msgspec.Struct, frozen=True):
    """What front ends show of an MCP server.

    - `name`: the name in the configuration.
    - `state`: the state of the connection.
    - `error`: the cause of a failure.
    - `tools`: the number of tools.
    - `changed`: the tools whose definitions have changed since their last approval.
    - `added`, `removed`: the tools that were added and removed since the server was first ready.
    """

    name: str
    state: str
    error: str = ""
    tools: int = 0
    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The overview in one line, without the name."""
        summary = self.state
        if self.state == "ready":
            summary += f", {self.tools} tool{'' if self.tools == 1 else 's'}"
        if self.changed:
            summary += f", changed since the last approval: {', '.join(self.changed)}"
        if self.removed:
            summary += f", removed: {', '.join(self.removed)}"
        if self.added:
            summary += f", new: {', '.join(self.added)}"
        return f"{summary}: {self.error}" if self.error else summary

    @property
    def is_as_before(self) -> bool:
        """Whether it can be used, with the tools that it had when it was first ready."""
        return self.state == "ready" and not (self.changed or self.added or self.removed)


class BodyLayout(msgspec.Struct, frozen=True, eq=False):
    """How the body of a request is composed: the head, the encoded messages, and closing brackets.

    - `form`: the API and everything that the bytes of its messages depend on, so that a stored session can be encoded
      again.
    - `head`: the bytes before the messages.
    - `prompt`: the messages.
    - `messages`: the encoded messages.
    - `encode`: encodes a prompt in this form.
    - `inserts`: bytes that are added to the encoded messages, with their offsets, in ascending order.
    """

    form: tuple[str, ...]
    head: bytes
    prompt: Prompt
    messages: bytes | bytearray
    encode: Callable[[Prompt], bytes | bytearray]
    inserts: tuple[tuple[int, bytes], ...] = ()


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool definition that is sent to a model. `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool = False


class ToolChoice(msgspec.Struct, frozen=True):
    """Whether the model may call tools (auto), must (required), must not (none), or must call `tool` (tool)."""

    mode: Literal["auto", "required", "none", "tool"] = "auto"
    tool: str | None = None
    parallel: bool = True


class OutputSchema(msgspec.Struct, frozen=True):
    """The JSON schema that the answer's text must follow.

    - `schema`: the JSON schema.
    - `name`: the name that the API requires.
    - `description`: what the schema describes, for the model.
    - `strict`: whether the API must enforce the schema.
    - `from_type`: whether the schema describes a Python type; it is then adapted to what each API accepts. A schema
      that a person wrote is sent unchanged if the API accepts it.
    """

    schema: dict[str, Any]
    name: str = "answer"
    description: str = ""
    strict: bool = True
    from_type: bool = False


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=ArgumentsMeta):
    """Sampling and output settings. `max_output_tokens=None` means the model's maximum.

    `reasoning` is True (requested), None (requested if the model is known to support it) or False (nothing is sent, so
    the API's default applies). The effort "none" turns reasoning off where the API allows it. The vendor runs
    `vendor_tools`; a tool that an API does not have is left out. `extra` is merged into the request body last,
    unchanged."""

    max_output_tokens: int | None = None
    reasoning: bool | None = False
    reasoning_effort: ReasoningEffort = "medium"
    reasoning_budget: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    output: OutputSchema | None = None
    extra: dict[str, Any] = {}
    vendor_tools: tuple[VendorTool, ...] = ()

    def requests_reasoning(self, *, supported: bool) -> bool:
        """Returns whether reasoning is requested from a model. `supported` is whether the model is known to support
        it."""
        if self.reasoning_effort == "none":
            return False
        return supported if self.reasoning is None else self.reasoning


class RequestAllowance(msgspec.Struct, frozen=True, kw_only=True):
    """The remaining limits and permissions of a run, sent to an agent of another server. `depth` is the number of agent
    levels that it may open; None means unlimited."""

    mode: str = "agent"
    depth: int = 8
    turns: int | None = None
    seconds: float | None = None
    tokens: int | None = None
    cost: Decimal | None = None
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=ArgumentsMeta):
    """How often and how long a failed request is repeated. Times are in seconds.

    - `attempts`: a request is sent at most this many times.
    - `first_window`: the wait is drawn at random from a window of this length, which doubles with each attempt. The
      time that a provider asks for (Retry-After) is added.
    - `largest_window`: the longest window.
    - `longest_wait`: if a provider asks for a longer time, the error is raised without a retry.
    - `total`: no retry starts after this time.
    - `attempts_before_fallback`: a request is sent at most this many times before another model of the agent's list is
      tried.
    """

    attempts: int = 12
    first_window: float = 1.0
    largest_window: float = 60.0
    longest_wait: float = 600.0
    total: float = 1800.0
    attempts_before_fallback: int = 3

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value, lowest = getattr(self, name), 1 if name.startswith("attempts") else 0
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not value >= lowest:  # the comparison is also False for NaN
                raise ConfigurationError(f"RetryPolicy({name}={value!r}): it must be a number of at least {lowest}")


class Request(msgspec.Struct, frozen=True):
    """One request to a model, independent of the provider. `retry` replaces the provider's retry policy. With
    `has_fallback`, another model can answer if this one does not, so the request is repeated less often."""

    model: str
    prompt: Prompt
    system: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    settings: ModelSettings = ModelSettings()
    stream: bool = True
    conversation: str = ""  # a stable id of the conversation, for providers that route their cache by it
    workspace: str = ""  # used by models that run on this machine; never sent
    allowance: Callable[[], RequestAllowance] = RequestAllowance  # used only by agents of other servers
    retry: RetryPolicy | None = None
    has_fallback: bool = False
    on_sent: Callable[[bytes, BodyLayout], None] | None = None  # receives each body before it is sent


# Each part of an answer has an `index`, unique within the answer and increasing in the order of first appearance:
#
#     AnswerStart · (PartStart · TextDelta* | ReasoningDelta* | InputDelta* · PartEnd)* · UsageReport* · Finish
#
# A Retry at any position withdraws all deltas before it: the request is sent again, and the answer starts anew with
# index 0. A second PartStart with the same index restarts that part, possibly with another kind: text that turned out
# to be reasoning. Earlier deltas of that part are discarded.

FinishReason = Literal["stop", "tool_use", "length", "refusal", "other"]
PartKind = Literal["text", "reasoning", "tool", "file"]


class AnswerStart(msgspec.Struct, frozen=True, tag="AnswerStart"):
    """The provider's id of the answer, and the model that generates it."""

    response_id: str = ""
    model: str = ""


class PartStart(msgspec.Struct, frozen=True, tag="PartStart"):
    """A part starts. `call_id` and `tool` are set for tool calls; the decoder generates an id if the provider has
    none."""

    index: int
    kind: PartKind
    call_id: str = ""
    tool: str = ""


class TextDelta(msgspec.Struct, frozen=True, tag="TextDelta"):
    """A chunk of the text of the part with this index."""

    index: int
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, tag="ReasoningDelta"):
    """A chunk of the reasoning of the part with this index."""

    index: int
    text: str


class InputDelta(msgspec.Struct, frozen=True, tag="InputDelta"):
    """A chunk of a tool call's input: JSON text, not yet complete."""

    index: int
    text: str


class PartEnd(msgspec.Struct, frozen=True, tag="PartEnd"):
    """The part is complete. `state` becomes the `provider_state` of a reasoning part, or is stored in the metadata of
    another part under the family's name. `url` and `mime` are set for files that the model generated."""

    index: int
    state: dict[str, Any] = {}
    mime: str = ""
    url: str = ""


class Retry(msgspec.Struct, frozen=True, tag="Retry"):
    """The request failed and is sent again after `delay_ms`. The parts received so far are withdrawn: they are not part
    of the answer. With `resumed`, the server continues the answer, and its next usage report includes the failed
    attempt."""

    attempt: int
    delay_ms: int
    error: str
    max_attempts: int | None = None
    resumed: bool = False


class UsageReport(msgspec.Struct, frozen=True, tag="UsageReport"):
    """The token counts so far. A later report replaces an earlier one. An agent of another server also reports its cost
    and the number of model answers, since it may use several models."""

    tokens: Tokens
    cost: Decimal | None = None
    turns: int = 1


class RemoteEvent(msgspec.Struct, frozen=True, tag="Happened"):
    """An event of an agent on another server, or of a model in this process. It is published in this process; events
    of another server are stored only there. Without a session id it belongs to the agent that answers, otherwise to an
    agent that it called."""

    event: Event


class Finish(msgspec.Struct, frozen=True, tag="Finish"):
    """The answer ends. `raw` is the provider's finish reason. With `paused`, the provider continues the answer if the
    next request contains it."""

    reason: FinishReason
    raw: str = ""
    paused: bool = False


Delta = (
    AnswerStart
    | PartStart
    | TextDelta
    | ReasoningDelta
    | InputDelta
    | PartEnd
    | Retry
    | UsageReport
    | RemoteEvent
    | Finish
)


def delta_tag(delta: "Delta | type[Delta]") -> str:
    """Returns the name under which a delta is stored and sent; it is independent of the class name."""
    return str(delta.__struct_config__.tag)


class Answer(msgspec.Struct, frozen=True):
    """One complete model answer. `message` is the message of the assistant, with its calls as pending ToolParts.

    `cost` is None if no price is known for the model."""

    message: Message
    finish: FinishReason
    finish_raw: str
    tokens: Tokens
    cost: Decimal | None = None
