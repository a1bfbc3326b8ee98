"""Which providers there are, and what is meant by a model's name: PROVIDER/MODEL."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.config.environment import found_in, is_vendor_address, variable_names
from outrider.config.file import AgentTable, Kind, ProviderTable, closest
from outrider.context.prompts import prompt_text
from outrider.errors import ConfigurationError
from outrider.types.agents import Agent, Limits, Mode, Provider

# Known by these names without any configuration; the first one that has a key is the default.
BUILT_IN: dict[str, Kind] = {
    "anthropic": "anthropic",
    "openai": "openai",
    "google": "google",
    "openai-responses": "openai-responses",
    "local": "local",
}
DEFAULT_MODELS: dict[str, str] = {
    "anthropic": "claude-sonnet-4-6",
    "openai": "gpt-5.4",
    "openai-responses": "gpt-5.4",
    "google": "gemini-3.5-flash",
    "local": "",
}
# Programs on this machine, at their usual ports; they are asked when somebody names one, or has no model at all.
SERVERS: dict[str, ProviderTable] = {
    name: ProviderTable(kind="openai", base_url=f"http://127.0.0.1:{port}/v1")
    for name, port in (("ollama", 11434), ("llama.cpp", 8080), ("lm-studio", 1234), ("vllm", 8000))
}
NO_PROVIDER = """no model can be reached yet. There are three ways to get one:
  1. a key of a vendor: set ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY
  2. a server of your own: set OPENAI_BASE_URL (to any server that speaks OpenAI's API) and say --model openai/MODEL
  3. the embedded model, which needs no key: say --model local"""


class Providers:
    """The user's own and the built-in ones, with their keys; `usable` are those that can be asked."""

    def __init__(self, tables: Mapping[str, ProviderTable], environ: Mapping[str, str], source: str) -> None:
        self._own = tables
        self._tables = {**SERVERS, **tables}
        self._environ = environ
        self._source = source
        self.names = tuple(dict.fromkeys((*tables, *BUILT_IN, *SERVERS)))

    def usable(self) -> tuple[Provider, ...]:
        """Without the embedded model and servers on this machine, which are used when somebody names them."""
        found = (self.find(name) for name in self.names if name in self._own or name in BUILT_IN)
        return tuple(one for one in found if one.kind != "local" and self.missing(one) is None)

    def find(self, name: str) -> Provider:
        if name not in self.names:
            known = ", ".join(self.names)
            raise ConfigurationError(f"there is no provider {name!r}{closest(name, self.names)} (there are: {known})")
        table = self._tables.get(name, ProviderTable())
        kind = table.kind or BUILT_IN.get(name)
        if kind is None:
            raise ConfigurationError(
                f"{self._source}: providers.{name}.kind: is missing; {', '.join(BUILT_IN.values())}"
            )
        if table.base_url is not None and not table.base_url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"{self._source}: providers.{name}.base_url: {table.base_url!r} is no address that can be called; "
                f"write http://… or https://…"
            )
        usual_key, usual_address = found_in(self._environ, kind)
        address = table.base_url or usual_address
        return Provider(name, kind, self._key(table, kind, usual_key), address, table.headers, table.options)

    def missing(self, provider: Provider) -> str | None:
        """What a provider lacks to be asked; None if nothing."""
        if provider.kind == "local" or provider.api_key or provider.base_url or provider.headers or provider.options:
            return None
        table = self._tables.get(provider.name, ProviderTable())
        names = table.api_key_env or " or ".join(variable_names(provider.kind))
        return f"the provider {provider.name!r} has no key: set {names}"

    def keyless(self, name: str) -> str | None:
        """The variable that a provider's key should come from and does not; it is then asked without one."""
        variable = self._own[name].api_key_env if name in self._own else None
        return variable if variable and not self._environ.get(variable, "").strip() else None

    def default_model(self) -> str:
        """Of the first provider that can be asked, the user's own first; "" if there is none."""
        for provider in self.usable():
            if model := self.model_of(provider.name):
                return f"{provider.name}/{model}"
        return ""

    def model_of(self, name: str) -> str:
        if name in SERVERS and name not in self._own:
            return ""
        table = self._tables.get(name, ProviderTable())
        return table.model or DEFAULT_MODELS.get(table.kind or BUILT_IN.get(name, ""), "")

    def route(self, model: str, where: str) -> tuple[str, str]:
        """The provider and the model that `PROVIDER/MODEL` or a provider's name alone means."""
        name, slash, rest = model.strip().partition("/")
        if name not in self.names:
            hint = closest(name, self.names) or f"; write PROVIDER/MODEL, with a provider of: {', '.join(self.names)}"
            raise ConfigurationError(f"{where}: there is no provider {name!r}{hint}")
        chosen = rest if slash else self.model_of(name)
        if not chosen and name != "local" and self.find(name).kind not in ("local", "outrider"):
            raise ConfigurationError(f"{where}: {model!r} names no model; write {name}/MODEL")
        return name, chosen

    def _key(self, table: ProviderTable, kind: Kind, usual: str | None) -> str | None:
        """The vendor's own key goes to the vendor's address or to where the environment says, never to another."""
        if table.api_key_env is not None:
            return self._environ.get(table.api_key_env, "").strip() or ""
        if table.base_url is not None and not is_vendor_address(kind, table.base_url):
            return ""
        return usual


LARGEST_PROMPTS = 200_000
AGENT = "agent"


def read_prompts(folder: Path) -> dict[str, str]:
    """By name: those of tools have the tool's name; an empty file is taken at its word."""
    return {path.stem: _text(path) for path in sorted(folder.glob("*.md")) if path.is_file()}


def default_instructions(folder: Path) -> str:
    own = folder / f"{AGENT}.md"
    return _text(own) if own.is_file() else prompt_text(AGENT)


def _text(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(LARGEST_PROMPTS).removeprefix("\ufeff").strip()


DEFAULT = "outrider"
LARGEST = 200_000
_PLAIN = ("max_output_tokens", "reasoning", "reasoning_effort", "reasoning_budget", "temperature", "stream", "tools")


class AgentBuilder:
    """What agents have in common: the model, mode and limits of those that name none."""

    def __init__(
        self, providers: Providers, *, model: str, mode: Mode, limits: Limits, prompts: Path, source: str
    ) -> None:
        self._providers = providers
        self._model = model
        self._mode: Mode = mode
        self._limits = limits
        self._prompts = prompts
        self._source = source

    def build(self, tables: Mapping[str, AgentTable]) -> list[Agent]:
        return [self._agent(name, table) for name, table in tables.items()]

    def _agent(self, name: str, table: AgentTable) -> Agent:
        where = f"{self._source}: agents.{name}"
        provider, model = self._routed(table.model, f"{where}.model")
        given: dict[str, Any] = {field: value for field in _PLAIN if (value := getattr(table, field)) is not None}
        rules = {kind: found for kind in ("allow", "ask", "deny") if (found := getattr(table.permissions, kind))}
        return Agent(
            name,
            self._instructions(table, where) or default_instructions(self._prompts),
            model,
            provider,
            role=table.role,
            mode=table.mode or self._mode,
            permissions=rules,
            limits=table.limits.over(self._limits) if table.limits else self._limits,
            extra=table.extra,
            **given,
        )

    def _routed(self, model: str | None, where: str) -> tuple[str, str]:
        if model is not None:
            return self._providers.route(model, where)
        return self._providers.route(self._model, "model") if self._model else ("", "")

    def _instructions(self, table: AgentTable, where: str) -> str | None:
        if table.instructions is not None and table.instructions_file is not None:
            raise ConfigurationError(f"{where}: has both instructions and instructions_file; one of them is enough")
        if table.instructions_file is None:
            return table.instructions
        path = self._prompts.parent / Path(table.instructions_file).expanduser()
        try:
            with path.open(encoding="utf-8") as file:
                return file.read(LARGEST)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{where}.instructions_file: {path} cannot be read: {error}") from error
