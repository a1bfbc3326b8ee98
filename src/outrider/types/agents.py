"""Agent, Provider, Limits, and the messages that agents send each other."""

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from outrider.types.modes import Mode, ReasoningEffort, VendorTool
from outrider.types.request import RetryPolicy
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
    """Limits of a run, shared by all of its agents; None means unlimited. At most `calls_per_answer` calls of one
    answer run; the model reads that the others did not."""

    turns: int | None = 100
    seconds: float | None = None
    tokens: int | None = None
    cost: Decimal | None = None
    depth: int = 8
    parallel_calls: int = 16
    calls_per_answer: int = 256


class Agent(msgspec.Struct, frozen=True):
    """A named agent: instructions, a model and permissions.

    `reasoning=None` requests reasoning from models that support it, True always, False never; `reasoning_effort="none"`
    turns it off where the API allows it. `tools=None` gives it every tool of the run; a tuple of names limits it to
    these. `stream=False` requests answers without streaming, for models and gateways that do not support it. `model`
    may be a list: on an overload, an exhausted quota or an outage the next model continues the step. A name in the list
    is a model of `provider`, or PROVIDER/MODEL. `retry` replaces the retry policy of the provider. `vendor_tools` names
    tools that the vendor runs, for models that have them."""

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
    fallback_models: tuple[str, ...] = ()
    retry: RetryPolicy | None = None
    vendor_tools: tuple[VendorTool, ...] = ()

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str,
            instructions: str,
            model: str | Sequence[str],
            provider: str,
            max_output_tokens: int | None = None,
            reasoning: bool | None = None,  # noqa: FBT001
            reasoning_effort: ReasoningEffort = "medium",
            reasoning_budget: int | None = None,
            temperature: float | None = None,
            extra: dict[str, Any] = {},  # noqa: B006  msgspec copies it
            role: str = "",
            mode: Mode = "agent",
            tools: tuple[str, ...] | None = None,
            permissions: dict[str, tuple[str, ...]] = {},  # noqa: B006  msgspec copies it
            limits: Limits = Limits(),  # noqa: B008  immutable
            stream: bool = True,  # noqa: FBT001, FBT002
            fallback_models: tuple[str, ...] = (),
            retry: RetryPolicy | None = None,
            vendor_tools: tuple[VendorTool, ...] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        given: Any = self.model
        if not isinstance(given, str):
            first, *others = given
            msgspec.structs.force_setattr(self, "model", first)
            msgspec.structs.force_setattr(self, "fallback_models", (*others, *self.fallback_models))

    @property
    def provider_names(self) -> tuple[str, ...]:
        """The provider of the agent, and those that the names of its fallback models may start with."""
        return self.provider, *(name.partition("/")[0] for name in self.fallback_models if "/" in name)


class AgentMessage(msgspec.Struct, frozen=True):
    """A message between agents: the call (`forward`) or its result (`return`)."""

    type: Literal["forward", "return"]
    sender: str
    receiver: str
    content: str
    call_id: str
    attachments: tuple[Attachment, ...] = ()
