"""Agent, Provider, Limits, and the messages that agents send each other."""

from decimal import Decimal
from typing import Any, Literal

import msgspec

from outrider.types.modes import Mode, ReasoningEffort
from outrider.types.tool_state import Attachment

ProviderKind = Literal["anthropic", "openai", "openai-responses", "google", "local", "outrider", "scripted"]


class Provider(msgspec.Struct, frozen=True):
    """A configured way to reach models. Without `api_key` and `base_url` the vendor's usual environment variables
    apply.

    `base_url` has the form that the vendor's SDK takes: OpenAI's ends in /v1, Anthropic's and Google's have no version.
    """

    name: str
    kind: ProviderKind
    api_key: str | None = None
    base_url: str | None = None
    headers: dict[str, str] = {}
    options: dict[str, Any] = {}

    def __repr__(self) -> str:
        """Omits the key and the headers, because this text appears in logs and tracebacks."""
        key = "given" if self.api_key else "not given"
        return f"Provider(name={self.name!r}, kind={self.kind!r}, base_url={self.base_url!r}, api_key: {key})"

    def __rich_repr__(self) -> Any:
        yield repr(self)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a run, shared by all of its agents; None means unlimited."""

    turns: int | None = 100
    seconds: float | None = None
    tokens: int | None = None
    cost: Decimal | None = None
    depth: int = 8
    parallel_calls: int = 16


class Agent(msgspec.Struct, frozen=True):
    """A named agent: instructions, a model and permissions.

    `reasoning=None` requests reasoning from models that support it, True always, False never; `reasoning_effort="none"`
    turns it off where the API allows it. `tools=None` gives it every tool of the run; a tuple of names limits it to
    these. `stream=False` requests answers without streaming, for models and gateways that do not support it."""

    name: str
    instructions: str
    model: str
    provider: str
    max_output_tokens: int | None = None
    reasoning: bool | None = None
    reasoning_effort: ReasoningEffort = "medium"
    reasoning_budget: int | None = None
    temperature: float | None = None
    extra: dict[str, Any] = {}
    role: str = ""
    mode: Mode = "agent"
    tools: tuple[str, ...] | None = None
    permissions: dict[str, tuple[str, ...]] = {}
    limits: Limits = Limits()
    stream: bool = True


class AgentMessage(msgspec.Struct, frozen=True):
    """A message between agents: the call (`forward`) or its result (`return`)."""

    type: Literal["forward", "return"]
    sender: str
    receiver: str
    content: str
    call_id: str
    attachments: tuple[Attachment, ...] = ()
