"""Streaming deltas of a model's answer, and the complete Answer.

Each part of the answer has an `index`, unique within the answer and increasing in the order of first appearance:

    AnswerStart · (PartStart · TextDelta* | ReasoningDelta* | InputDelta* · PartEnd)* · UsageReport* · Finish

A Retry at any position withdraws all deltas before it: the request is sent again, and the answer starts anew with index
0. A second PartStart with the same index restarts that part, possibly with another kind: text that turned out to be
reasoning. Earlier deltas of that part are discarded."""

from decimal import Decimal
from typing import Any, Literal

import msgspec

from outrider.types.events import Event
from outrider.types.messages import Message
from outrider.types.usage import Tokens

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
    of the answer. `resumed`: the server continues the answer, and its next usage report includes the failed attempt."""

    attempt: int
    delay_ms: int
    error: str
    max_attempts: int | None = None
    resumed: bool = False


class UsageReport(msgspec.Struct, frozen=True, tag="UsageReport"):
    """Token counts so far; a later report replaces an earlier one. An agent of another server also reports its cost and
    the number of model answers, since it may use several models."""

    tokens: Tokens
    cost: Decimal | None = None
    turns: int = 1


class RemoteEvent(msgspec.Struct, frozen=True, tag="Happened"):
    """An event of an agent on another server, published here and stored there only, or of a model in this process.
    Without a session id it belongs to the agent that answers, otherwise to an agent that it called."""

    event: Event


class Finish(msgspec.Struct, frozen=True, tag="Finish"):
    """The answer ends. `raw` is the provider's finish reason. `paused`: the provider continues the answer if it is sent
    back in the next request."""

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
    """One complete model answer: `message` is the assistant's, with its calls as pending ToolParts.

    `cost` is None if no price is known for the model."""

    message: Message
    finish: FinishReason
    finish_raw: str
    tokens: Tokens
    cost: Decimal | None = None
