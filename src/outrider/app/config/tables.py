"""What a configuration file may hold, as values."""

from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec

from outrider.types.agents import Limits, Mode
from outrider.types.request import ReasoningEffort

Kind = Literal["anthropic", "openai", "openai-responses", "google", "local", "outrider", "scripted"]
Texts = tuple[str, ...]
Count = Annotated[int, msgspec.Meta(ge=1)]


class ProviderTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[providers.NAME]`. The key stays in the environment: `api_key_env` names the variable that holds it."""

    kind: Kind | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    options: dict[str, Any] = {}
    model: str | None = None


class RulesTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[rules]`, each one written as tool(pattern)."""

    allow: Texts = ()
    ask: Texts = ()
    deny: Texts = ()


class LimitsTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[limits]`: bounds over a turn and all agents in it; what is left out stays as it is."""

    turns: Count | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    tokens: Count | None = None
    cost: Decimal | Annotated[float, msgspec.Meta(ge=0)] | None = None
    depth: Annotated[int, msgspec.Meta(ge=0)] | None = None
    parallel_calls: Count | None = None

    def over(self, limits: Limits) -> Limits:
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        if isinstance(given.get("cost"), float):
            given["cost"] = Decimal(str(given["cost"]))
        return msgspec.structs.replace(limits, **given)


def lower_of(one: Limits, other: Limits) -> Limits:
    """Of two bounds the lower one; None is no bound."""
    return Limits(**{name: _lower(getattr(one, name), getattr(other, name)) for name in Limits.__struct_fields__})


def _lower(one: Any, other: Any) -> Any:
    return min((bound for bound in (one, other) if bound is not None), default=None)


class AgentTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[agents.NAME]`. Without instructions it is the default agent under another name."""

    role: str = ""
    instructions: str | None = None
    instructions_file: str | None = None
    model: str | None = None
    mode: Mode | None = None
    tools: Texts | None = None
    permissions: RulesTable = RulesTable()
    limits: LimitsTable | None = None
    max_output_tokens: int | None = None
    reasoning: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    reasoning_budget: int | None = None
    temperature: float | None = None
    stream: bool | None = None
    extra: dict[str, Any] = {}


class CompactionTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[compaction]`: whether a conversation is shortened before it fills the model's context, or only when the model
    refuses it or somebody asks for it."""

    automatic: bool = True


class RetentionTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[retention]`: sessions that nobody used for so many days are forgotten; without it none is."""

    days: Annotated[int, msgspec.Meta(ge=0)] | None = None


class SandboxTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[sandbox]`: the hosts that confined commands may reach."""

    hosts: Texts = ()


class BoundsTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[background.queues.NAME]`, `[background.providers.NAME]`: how many runs may be under way at once, over all
    workers, and how many may start in a time; what is left out is no bound."""

    at_once: Count | None = None
    starts: Count | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0)] = 60


class BackgroundTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[background]`: how many `runs` a worker has at once, and bounds for queues and for providers. A run counts for
    the provider of the agent that it begins with. Workers that share a database should agree on the bounds. `webhooks`
    are the hosts of an inner network that may be told of ends; public ones may always."""

    runs: Count = 4
    webhooks: tuple[str, ...] = ()
    queues: dict[str, BoundsTable] = {}
    providers: dict[str, BoundsTable] = {}


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file. `mcp` holds servers as `.mcp.json` writes them, `models` facts of models by their names."""

    model: str | None = None
    agent: str | None = None
    mode: Mode | None = None
    providers: dict[str, ProviderTable] = {}
    agents: dict[str, AgentTable] = {}
    rules: RulesTable = RulesTable()
    limits: LimitsTable = LimitsTable()
    compaction: CompactionTable = CompactionTable()
    retention: RetentionTable = RetentionTable()
    sandbox: SandboxTable = SandboxTable()
    background: BackgroundTable = BackgroundTable()
    mcp: dict[str, dict[str, Any]] = {}
    models: dict[str, dict[str, Any]] = {}
