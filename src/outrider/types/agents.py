"""Agent, Provider, Limits, and the messages that agents send each other."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from decimal import Decimal
from functools import lru_cache
from math import isnan
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypedDict, TypeVar, Unpack, cast, get_args

import msgspec

from outrider.errors import ConfigurationError
from outrider.types.modes import REASONING_EFFORTS, Mode, ReasoningEffort, VendorTool
from outrider.types.parts import ModelRef
from outrider.types.request import RetryPolicy
from outrider.types.tool_state import Attachment
from outrider.types.validate import ArgumentsMeta, JsonObject, replace_fields

ProviderKind = Literal["anthropic", "openai", "openai-responses", "google", "local", "outrider", "scripted", "custom"]


class Credential(msgspec.Struct, frozen=True, metaclass=ArgumentsMeta):
    """A key or token that is valid for `seconds` from now, or for an unknown time if they are None. A function that is
    the `api_key` of a provider may return it; the function is called again before the time is over."""

    value: str
    seconds: float | None = None

    def __post_init__(self) -> None:
        seconds: Any = self.seconds
        if not isinstance(self.value, str) or not (seconds is None or (_is_number(seconds) and seconds >= 0)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                "a Credential has a string and a number of seconds: Credential(token, seconds=3600)"
            )

    def __repr__(self) -> str:
        """Omits the value, because this text appears in logs and tracebacks."""
        return f"Credential(seconds={self.seconds!r})"


CredentialFunction = Callable[[], "str | Credential | Awaitable[str | Credential]"]


class Provider(msgspec.Struct, frozen=True, metaclass=ArgumentsMeta):
    """A configured way to reach models. Without `api_key` and `base_url` the vendor's usual environment variables
    apply.

    - `name`: the name by which agents refer to the provider.
    - `kind`: the API.
    - `api_key`: the key, or a plain or async function that returns the key or a `Credential`. The function is called
      before the first request, and again when the key expires or is rejected.
    - `base_url`: the address in the form that the vendor's SDK takes: OpenAI's ends in /v1, Anthropic's and Google's
      have no version.
    - `headers`: additional headers of each request.
    - `options`: options of the kind.
    - `credentials`: the function, if `api_key` is a function.
    """

    name: str
    kind: ProviderKind
    api_key: str | None = None
    base_url: str | None = None
    headers: dict[str, str] = {}
    options: dict[str, Any] = {}
    credentials: Any = None

    if TYPE_CHECKING:

        def __init__(
            self,
            name: str,
            kind: ProviderKind,
            api_key: str | CredentialFunction | None = None,
            base_url: str | None = None,
            headers: dict[str, str] = {},  # noqa: B006  msgspec copies it
            options: dict[str, Any] = {},  # noqa: B006  msgspec copies it
            credentials: CredentialFunction | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_provider(self)
        api_key: Any = self.api_key
        if not isinstance(self.name, str) or not self.name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"a provider needs a name, got {self.name!r}; write Provider('openai', kind=…)")
        if api_key is not None and not isinstance(api_key, str) and not callable(api_key):
            raise ConfigurationError(
                f"provider {self.name!r}: api_key must be a string or a function that returns one, got "
                f"{type(api_key).__name__}"
            )
        if callable(api_key):
            msgspec.structs.force_setattr(self, "api_key", None)
            msgspec.structs.force_setattr(self, "credentials", api_key)

    def __repr__(self) -> str:
        """Omits the key and the headers, because this text appears in logs and tracebacks."""
        key = "given" if self.api_key or self.credentials else "not given"
        return f"Provider(name={self.name!r}, kind={self.kind!r}, base_url={self.base_url!r}, api_key: {key})"

    def __rich_repr__(self) -> Any:
        yield repr(self)

    @property
    def vendor(self) -> str:
        """The well-known name of the vendor of the models, as in the OpenTelemetry conventions. For an unknown host it
        is the vendor of the API; for a kind without a vendor it is the name of the provider."""
        if self.base_url and (vendor := _find_vendor(self.base_url)):
            return vendor
        is_vertex = self.kind in ("anthropic", "google") and "project" in self.options
        return "gcp.vertex_ai" if is_vertex else _VENDORS.get(self.kind, self.name)


@lru_cache(maxsize=64)
def _find_vendor(base_url: str) -> str:
    """Returns the vendor of a host, "" if it is not known."""
    address = base_url.partition("://")[2] or base_url
    host = address.partition("/")[0].rpartition("@")[2].partition(":")[0].lower()
    return next((vendor for ending, vendor in _VENDOR_HOSTS if f".{host}".endswith(ending)), "")


_PROVIDER_KINDS: tuple[str, ...] = get_args(ProviderKind)
_HTTP_OPTIONS = ("retry", "rate_limit", "timeouts", "cassette")
_PROVIDER_OPTIONS: dict[str, tuple[str, ...]] = {
    "anthropic": (*_HTTP_OPTIONS, "version", "betas", "caching", "cache_ttl", "project", "region"),
    "openai": (*_HTTP_OPTIONS, "dialect", "text_tools", "query", "api_version"),
    "openai-responses": (*_HTTP_OPTIONS, "query", "api_version"),
    "google": (*_HTTP_OPTIONS, "project", "location", "api_version"),
}


def _check_provider(provider: Provider) -> None:
    """Raises ConfigurationError for a value of a wrong type, and for an unknown option: a misspelled option would have
    no effect."""
    if provider.kind not in _PROVIDER_KINDS:
        raise ConfigurationError(
            f"the provider {provider.name!r} has the unknown kind {provider.kind!r}; use one of: "
            f"{', '.join(_PROVIDER_KINDS)}"
        )
    url, headers, options = cast("tuple[Any, Any, Any]", (provider.base_url, provider.headers, provider.options))
    if not isinstance(url, str | None):
        raise ConfigurationError(
            f"provider {provider.name!r}: base_url must be a string, such as 'https://…/v1', got {url!r}"
        )
    if not isinstance(options, dict):
        raise ConfigurationError(f"provider {provider.name!r}: options must be a dict, got {type(options).__name__}")
    if not isinstance(headers, dict) or not all(
        isinstance(text, str) for item in cast("JsonObject", headers).items() for text in item
    ):
        raise ConfigurationError(
            f"provider {provider.name!r}: headers must be a dict of strings, such as {{'x-team': 'a'}}"
        )
    option_names = _PROVIDER_OPTIONS.get(provider.kind)
    for name in provider.options if option_names else ():
        if option_names and name not in option_names:
            raise ConfigurationError(
                f"provider {provider.name!r}: there is no option {name!r} for the kind {provider.kind!r}; there are "
                f"{', '.join(option_names)}"
            )


_VENDORS: dict[str, str] = {
    "anthropic": "anthropic", "openai": "openai", "openai-responses": "openai", "google": "gcp.gemini",
}  # fmt: skip
_VENDOR_HOSTS = (
    (".ai.azure.com", "azure.ai.inference"), (".azure.com", "azure.ai.openai"), (".amazonaws.com", "aws.bedrock"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai"), (".googleapis.com", "gcp.gemini"), (".anthropic.com", "anthropic"),
    (".openai.com", "openai"), (".deepseek.com", "deepseek"), (".groq.com", "groq"), (".mistral.ai", "mistral_ai"),
    (".cohere.ai", "cohere"), (".cohere.com", "cohere"), (".perplexity.ai", "perplexity"), (".x.ai", "x_ai"),
    (".ml.cloud.ibm.com", "ibm.watsonx.ai"), (".moonshot.ai", "moonshot_ai"), (".moonshot.cn", "moonshot_ai"),
)  # fmt: skip


class Limits(msgspec.Struct, frozen=True, kw_only=True, metaclass=ArgumentsMeta):
    """Limits of a run, shared by all of its agents. None means unlimited.

    - `turns`: model answers.
    - `seconds`: duration.
    - `tokens`: tokens of all requests and answers.
    - `cost`: cost in US dollars.
    - `depth`: levels of agents that call each other.
    - `parallel_calls`: tool calls that run at the same time.
    - `calls_per_answer`: tool calls of one answer that run; the model reads that the others did not run.
    - `repeats`: equal calls with equal results in a row. Then the turn ends with the reason "repetition"; the model is
      warned before. Calls whose results differ never end a turn. `Tool(repeats=…)` replaces the number for one tool.
    """

    turns: int | None = 100
    seconds: float | None = None
    tokens: int | None = None
    cost: Decimal | None = None
    depth: int = 8
    parallel_calls: int = 16
    calls_per_answer: int = 256
    repeats: int | None = 24

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            turns: int | None = 100,
            seconds: float | None = None,
            tokens: int | None = None,
            cost: Decimal | float | None = None,
            depth: int = 8,
            parallel_calls: int = 16,
            calls_per_answer: int = 256,
            repeats: int | None = 24,
        ) -> None: ...

    def __post_init__(self) -> None:
        for name, lowest in _LOWEST_LIMITS.items():
            _check_limit(name, getattr(self, name), lowest)
        if isinstance(self.cost, int | float):
            msgspec.structs.force_setattr(self, "cost", Decimal(str(self.cost)))


_LOWEST_LIMITS = {
    "turns": 0, "seconds": 0, "tokens": 0, "cost": 0, "depth": 0,
    "parallel_calls": 1, "calls_per_answer": 1, "repeats": 1,
}  # fmt: skip


def _check_limit(name: str, value: Any, lowest: int) -> None:
    required = name in ("depth", "parallel_calls", "calls_per_answer")
    if value is None and not required:
        return
    kinds, number = ((int, float, Decimal), "a number") if name in ("seconds", "cost") else ((int,), "a whole number")
    if not isinstance(value, kinds) or isinstance(value, bool) or not float(value) >= lowest:
        alternative = "" if required else ", or None for no limit"
        raise ConfigurationError(f"Limits({name}={value!r}): it must be {number} of at least {lowest}{alternative}")


if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Deps = TypeVarWithDefault("Deps", default=Any)
else:
    Deps = TypeVar("Deps")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not isnan(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in cast("Sequence[Any]", value))


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


_AGENT_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda value: isinstance(value, str), "a string"),
    "provider": (lambda value: isinstance(value, str), "the name of a provider that is passed to run(providers=[…])"),
    "reasoning": (lambda value: isinstance(value, bool), "True, False or None; the effort is reasoning_effort"),
    "stream": (lambda value: isinstance(value, bool), "True or False"),
    "extra": (lambda value: isinstance(value, dict), "a dict of fields for the request"),
    "role": (lambda value: isinstance(value, str), "a string"),
    "fallback_models": (_are_texts, "a tuple of names, such as ('other', 'provider/model')"),
    "temperature": (_is_number, "a number"),
    "max_output_tokens": (_is_count, "a whole number of at least 1"),
    "reasoning_budget": (lambda value: type(value) is int and value >= 0, "a whole number of tokens"),
    "reasoning_effort": (lambda value: value in REASONING_EFFORTS, f"one of {', '.join(REASONING_EFFORTS)}"),
    "tools": (lambda value: not isinstance(value, str), "a tuple of names, such as ('search',)"),
    "limits": (lambda value: isinstance(value, Limits), "Limits(…)"),
    "retry": (lambda value: isinstance(value, RetryPolicy), "RetryPolicy(…)"),
    "vendor_tools": (
        lambda value: not isinstance(value, str) and all(tool in get_args(VendorTool) for tool in value),
        f"a tuple of {', '.join(get_args(VendorTool))}",
    ),
    "permissions": (
        lambda value: (
            isinstance(value, dict)
            and not value.keys() - {"allow", "ask", "deny"}
            and all(map(_are_texts, cast("JsonObject", value).values()))
        ),
        'rules by effect, such as {"deny": ("shell",)}; the effects are allow, ask and deny',
    ),
}


class SessionContext(msgspec.Struct, Generic[Deps], frozen=True, kw_only=True, metaclass=ArgumentsMeta):
    """The session for which a function of the program is called: a function that writes instructions, validates an
    output, or creates the dependencies of a session.

    - `deps`: the value of `run(deps=…)`, or of the factory of `Engine(deps=…)`; None without one.
    - `session_id`: the session of the agent that answers.
    - `root_session_id`: the session of the entry agent.
    - `owner`, `metadata`: the values with which the session was created; a called agent has those of its caller.
    - `agent`: the name of the agent that answers.
    """

    deps: Deps = cast("Any", None)
    session_id: str = ""
    root_session_id: str = ""
    owner: str = ""
    metadata: dict[str, Any] = {}
    agent: str = ""


if TYPE_CHECKING:
    Instructions = str | Callable[[SessionContext[Any]], str | Awaitable[str]]
else:
    Instructions = str  # the decoded type


class AgentKeywords(TypedDict, total=False):
    """The fields of an agent, for `Agent.replace`."""

    name: str
    instructions: Instructions
    model: str | Sequence[str]
    provider: str
    max_output_tokens: int | None
    reasoning: bool | None
    reasoning_effort: ReasoningEffort
    reasoning_budget: int | None
    temperature: float | None
    extra: dict[str, Any]
    role: str
    mode: Mode
    tools: tuple[str, ...] | None
    permissions: dict[str, tuple[str, ...]]
    limits: Limits
    stream: bool
    fallback_models: tuple[str, ...]
    retry: RetryPolicy | None
    vendor_tools: tuple[VendorTool, ...]


class _AgentMeta(ArgumentsMeta):
    """Checks the rules of agents that programs create. Agents that the engine creates are not checked, because their
    permissions may contain rules of a caller with another version."""

    if not TYPE_CHECKING:

        def __call__(cls, *arguments: Any, **named: Any) -> Any:
            agent = super().__call__(*arguments, **named)
            _check_permissions(agent)
            return agent


def _check_permissions(agent: "Agent") -> None:
    if agent.permissions:
        from outrider.types.tool_declaration import check_rules  # lazy: most agents have no rules

        check_rules(agent.permissions, f"agent {agent.name!r}: permissions")


class Agent(msgspec.Struct, frozen=True, metaclass=_AgentMeta):
    """A named agent: instructions, a model and permissions.

    - `name`: the name by which programs and other agents refer to it.
    - `instructions`: a string, or a plain or async function that takes a `SessionContext` and returns one. It is called
      once per turn; a text that differs from that of the previous turn is added to the prompt after the conversation.
    - `model`: the name of the model, or a list of names: on an overload, an exhausted quota or an outage the next model
      continues the step. A name in the list is a model of `provider`, or PROVIDER/MODEL.
    - `provider`: the name of the provider.
    - `max_output_tokens`: limits the tokens of one answer.
    - `reasoning`: None requests reasoning from models that support it, True always, False never.
    - `reasoning_effort`: how much the model reasons; "none" turns reasoning off where the API allows it.
    - `reasoning_budget`: limits the reasoning tokens, for APIs that support it.
    - `temperature`: the sampling temperature.
    - `extra`: fields that are added to the body of each request.
    - `role`: what the agent is for, which other agents read.
    - `mode`: the mode of its sessions.
    - `tools`: the names of its tools; None gives it every tool of the run.
    - `permissions`: rules by effect, such as `{"deny": ("shell",)}`.
    - `limits`: limits of a run in which it is the entry agent.
    - `stream`: False requests answers without streaming, for models and gateways that do not support it.
    - `fallback_models`: the further models of a list in `model`.
    - `retry`: replaces the retry policy of the provider.
    - `vendor_tools`: tools that the vendor runs, for models that have them.
    """

    name: str
    instructions: Instructions
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
            instructions: Instructions,
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
        model: Any = self.model
        if not isinstance(model, str):
            names: list[Any] = list(model) if isinstance(model, list | tuple) else [model]  # pyright: ignore[reportUnknownArgumentType]
            if not names or not all(isinstance(name, str) and name for name in names):
                raise ConfigurationError(
                    f"agent {self.name!r}: the model must be a name or a list of at least one name, got {model!r}"
                )
            msgspec.structs.force_setattr(self, "model", names[0])
            msgspec.structs.force_setattr(self, "fallback_models", (*names[1:], *self.fallback_models))
        self._check_fields()

    def _check_fields(self) -> None:
        instructions: Any = self.instructions
        if not isinstance(instructions, str) and not callable(instructions):
            raise ConfigurationError(
                f"agent {self.name!r}: the instructions must be a string or a function, got "
                f"{type(instructions).__name__}"
            )
        for field, (matches, expected) in _AGENT_FIELDS.items():
            value: Any = getattr(self, field)
            if value is not None and not matches(value):
                raise ConfigurationError(f"agent {self.name!r}: {field} must be {expected}, got {value!r}")
        if not self.name.strip():
            raise ConfigurationError("an agent needs a name, such as Agent('helper', …)")
        for tool in self.tools or ():
            name: Any = tool
            if not isinstance(name, str):
                called = getattr(name, "name", None) or getattr(name, "__name__", repr(name))
                raise ConfigurationError(
                    f"agent {self.name!r}: `tools` has the names of tools; write {called!r} and pass the function to "
                    "run(tools=[…]) or Engine(…, tools=[…])"
                )

    def replace(self, **changes: Unpack[AgentKeywords]) -> Self:
        """Returns a copy of the agent with these values."""
        agent = replace_fields(self, changes)
        if "permissions" in changes:
            _check_permissions(agent)
        return agent

    @property
    def fixed_instructions(self) -> str:
        """The instructions; "" if a function writes them."""
        return self.instructions if isinstance(self.instructions, str) else ""

    def select_listed_model(self, providers: Collection[str]) -> Self:
        """Returns the agent with the provider that the first name of its list of models starts with. Returns the same
        agent if that name does not start with one of `providers`."""
        provider, slash, model = self.model.partition("/")
        if not self.fallback_models or not slash or provider not in providers:
            return self
        return self.replace(provider=provider, model=model)

    @property
    def model_ref(self) -> ModelRef:
        """The model of the agent. Its `str()` is PROVIDER/MODEL."""
        return ModelRef(self.provider, self.model)

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
