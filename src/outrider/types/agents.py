"""Agents, the providers they think with, their limits, and the messages that they send each other."""

from decimal import Decimal
from typing import Any, Literal

import msgspec

from outrider.types.request import ReasoningEffort
from outrider.types.tool_state import Attachment

Mode = Literal["chat", "plan", "agent", "background"]
ProviderKind = Literal["anthropic", "openai", "openai-responses", "google", "local", "outrider", "scripted"]


class Provider(msgspec.Struct, frozen=True):
    """Where a model is reached. Without `api_key` and `base_url` the vendor's usual environment variables count.

    `base_url` is what the vendor's own SDK takes: OpenAI's ends in /v1, Anthropic's and Google's have no version.
    """

    name: str
    kind: ProviderKind
    api_key: str | None = None
    base_url: str | None = None
    headers: dict[str, str] = {}
    options: dict[str, Any] = {}

    def __repr__(self) -> str:
        """Without the key and the headers: this text ends up in logs and tracebacks."""
        key = "given" if self.api_key else "not given"
        return f"Provider(name={self.name!r}, kind={self.kind!r}, base_url={self.base_url!r}, api_key: {key})"

    def __rich_repr__(self) -> Any:
        yield repr(self)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds over a run and all the agents in it; None is no bound."""

    turns: int | None = 100
    seconds: float | None = None
    tokens: int | None = None
    cost: Decimal | None = None
    depth: int = 8
    parallel_calls: int = 16


class Agent(msgspec.Struct, frozen=True):
    """An equal among agents. `tools=None` is every tool of the run; a tuple of names narrows it. `stream=False` asks
    for answers in one piece, for models and gateways that cannot do otherwise."""

    name: str
    instructions: str
    model: str
    provider: str
    max_output_tokens: int | None = None
    reasoning: bool = False
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
    """One agent's word to another: the call (forward) or what came back (return)."""

    type: Literal["forward", "return"]
    sender: str
    receiver: str
    content: str
    call_id: str
    attachments: tuple[Attachment, ...] = ()
