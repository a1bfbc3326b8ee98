"""What a model answers: deltas while it streams, and the answer that they add up to.

A part of the answer is named by its `index`, unique within the answer, in the order of first appearance:

    Retry* · AnswerStart · (PartStart · TextDelta* | ReasoningDelta* | InputDelta* · PartEnd)* · UsageReport* · Finish

A PartStart whose index was started before begins that part anew, perhaps as another kind: text that only its end showed
to be reasoning. What was shown of it before no longer counts.
"""

from decimal import Decimal
from typing import Any, Literal

import msgspec

from outrider.types.events import Event
from outrider.types.messages import Message
from outrider.types.usage import Tokens

FinishReason = Literal["stop", "tool_use", "length", "refusal", "other"]
PartKind = Literal["text", "reasoning", "tool", "file"]


class AnswerStart(msgspec.Struct, frozen=True, tag="AnswerStart"):
    """The provider's own name for the answer, and the model that really answers."""

    response_id: str = ""
    model: str = ""


class PartStart(msgspec.Struct, frozen=True, tag="PartStart"):
    """`call_id` and `tool` are for calls; a provider that gives no id gets one made up by the decoder."""

    index: int
    kind: PartKind
    call_id: str = ""
    tool: str = ""


class TextDelta(msgspec.Struct, frozen=True, tag="TextDelta"):
    index: int
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, tag="ReasoningDelta"):
    index: int
    text: str


class InputDelta(msgspec.Struct, frozen=True, tag="InputDelta"):
    """A piece of a call's input as the model writes it: JSON text, not yet whole."""

    index: int
    text: str


class PartEnd(msgspec.Struct, frozen=True, tag="PartEnd"):
    """The part is whole. `state` becomes a reasoning part's provider_state or goes into another part's metadata
    under the family's name; `url` and `mime` are for files that the model made."""

    index: int
    state: dict[str, Any] = {}
    mime: str = ""
    url: str = ""


class Retry(msgspec.Struct, frozen=True, tag="Retry"):
    """The request failed before anything was shown, and is made again after `delay_ms`."""

    attempt: int
    delay_ms: int
    error: str
    max_attempts: int | None = None


class UsageReport(msgspec.Struct, frozen=True, tag="UsageReport"):
    """Counts so far; a later report replaces an earlier one. A peer also says what it cost, and how many answers of
    models it took: it asks several, and knows its prices."""

    tokens: Tokens
    cost: Decimal | None = None
    turns: int = 1


class RemoteEvent(msgspec.Struct, frozen=True, tag="Happened"):
    """What an agent of another process did on the way to its answer: heard, and kept by its own process only. Without
    a session it was the one that answers, otherwise one that was called there."""

    event: Event


class Finish(msgspec.Struct, frozen=True, tag="Finish"):
    """`raw` is the provider's own word. `paused`: asked again with this answer, the provider goes on with it."""

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
    """The name under which a delta is stored and sent. It never changes, whatever its class is called."""
    return str(delta.__struct_config__.tag)


class Answer(msgspec.Struct, frozen=True):
    """One model answer, whole: `message` is the assistant's, with its calls as pending ToolParts.

    `cost` is None when no price is known for the model."""

    message: Message
    finish: FinishReason
    finish_raw: str
    tokens: Tokens
    cost: Decimal | None = None
