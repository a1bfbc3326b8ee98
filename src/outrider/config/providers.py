"""Resolves provider and model names (PROVIDER/MODEL), reads API keys, base URLs and proxies from environment variables,
and builds agents from their configuration tables."""

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from outrider.config.file import AgentTable, ProviderTable, suggest_name
from outrider.context.prompts import prompt_text
from outrider.errors import ConfigurationError
from outrider.permissions.redaction.redactor import Redactor, secret_values
from outrider.types.agents import Agent, Limits, Mode, Provider, ProviderKind
from outrider.types.modes import ReasoningEffort, VendorTool
from outrider.types.request import RetryPolicy

_KEYS_BY_KIND: dict[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openai-responses": ("OPENAI_API_KEY",),
    "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
}
_ADDRESSES_BY_KIND: dict[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_BASE_URL",),
    "openai": ("OPENAI_BASE_URL",),
    "openai-responses": ("OPENAI_BASE_URL",),
    "google": ("GOOGLE_GEMINI_BASE_URL",),
}
_VENDOR_HOSTS: dict[str, tuple[str, ...]] = {
    "anthropic": ("anthropic.com",),
    "openai": ("openai.com",),
    "openai-responses": ("openai.com",),
    "google": ("generativelanguage.googleapis.com", "aiplatform.googleapis.com"),
}


class EnvironmentVariables(dict[str, str]):
    """Environment variables whose repr shows no values, because some of them hold API keys."""

    def __repr__(self) -> str:
        return f"Environment({len(self)} variables)"

    def __rich_repr__(self) -> Any:
        yield repr(self)


KEY_VARIABLES = frozenset(name for names in _KEYS_BY_KIND.values() for name in names)


def with_environment_defaults(provider: Provider, environ: Mapping[str, str] = os.environ) -> Provider:
    """Returns the provider with a missing key or base URL filled in from the vendor's usual variables.

    A vendor address needs a key; a custom server may work without one. An empty string as key means no key, and the
    environment is not searched. Raises ConfigurationError if a required key is missing.
    """
    usual_key, usual_address = find_key_and_address(environ, provider.kind)
    key = usual_key if provider.api_key is None and provider.credentials is None else provider.api_key
    address = provider.base_url or usual_address
    if provider.kind in _KEYS_BY_KIND and not (
        key or address or provider.headers or provider.options or provider.credentials
    ):
        names = " or ".join(_KEYS_BY_KIND[provider.kind])
        raise ConfigurationError(f"the provider {provider.name!r} has no key: pass api_key, or set {names}")
    return msgspec.structs.replace(provider, api_key=key, base_url=address)


def find_key_and_address(environ: Mapping[str, str], kind: str) -> tuple[str | None, str | None]:
    """Returns the key and the base URL from the usual environment variables of a provider kind."""
    return _first_value(environ, _KEYS_BY_KIND.get(kind, ())), _first_value(environ, _ADDRESSES_BY_KIND.get(kind, ()))


def key_variable_names(kind: str) -> tuple[str, ...]:
    return _KEYS_BY_KIND.get(kind, ())


def is_vendor_address(kind: str, address: str) -> bool:
    """Returns whether a URL belongs to the vendor, so that the vendor's key may be sent to it."""
    url = urlsplit(address)
    host, domains = url.hostname or "", _VENDOR_HOSTS.get(kind, ())
    return url.scheme == "https" and any(host == domain or host.endswith(f".{domain}") for domain in domains)


def proxy_for(url: str) -> str | None:
    """Returns the proxy for a URL from the usual variables (https_proxy, all_proxy, no_proxy …) or the system settings.
    Raises ConfigurationError for a proxy that is not an HTTP proxy."""
    if sys.platform == "linux" and not any(name.lower().endswith("_proxy") for name in os.environ):
        return None  # only macOS and Windows have system proxies, and that lookup is slower than an HTTP request
    from urllib.request import getproxies, proxy_bypass

    target = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(target.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(target.netloc):
        return None
    if "://" not in proxy:
        return f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        scheme = urlsplit(proxy).scheme
        raise ConfigurationError(f"{scheme} proxies are not supported; set an http proxy, or set no_proxy")
    return proxy


def _first_value(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := environ.get(name, "").strip())), None)


def search_path(environ: Mapping[str, str] = os.environ) -> str:
    """Returns the PATH on which commands look for programs."""
    return environ.get("PATH", "")


def redactor_for(providers: Iterable[Provider], extra_secrets: Iterable[str] = ()) -> Redactor:
    """Builds a redactor for the keys of these providers, the values in `extra_secrets` and everything that matches a
    key format."""
    return Redactor.from_environment(
        os.environ, [*extra_secrets, *(secret for provider in providers for secret in _provider_secrets(provider))]
    )


def _provider_secrets(provider: Provider) -> Iterable[str]:
    if provider.api_key:
        yield provider.api_key
    yield from secret_values(provider.headers or {})
    if password := urlsplit(provider.base_url or "").password:
        yield password


_LIGHT_COLORS = {"7", "15"}  # the two white tones of the 16 ANSI colors


def has_light_background(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether COLORFGBG, which many terminals set, names a light background; the default is dark."""
    return environ.get("COLORFGBG", "").rpartition(";")[2] in _LIGHT_COLORS


# Terminals with 256 colors whose names do not say so. Most of them set COLORTERM, which SSH does not forward.
_COLOR_TERMINALS = ("alacritty", "contour", "foot", "ghostty", "konsole", "screen", "st", "tmux", "wezterm", "xterm")


def has_hidden_colors(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the terminal has 256 colors although neither TERM nor COLORTERM says so, such as `xterm`."""
    name = environ.get("TERM", "").lower().removeprefix("xterm-").partition(".")[0]
    return not environ.get("COLORTERM") and name in _COLOR_TERMINALS


# Available without configuration; the first one with a key is the default.
BUILT_IN_PROVIDERS: dict[str, ProviderKind] = {
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
    "local": "1.5b",
}
# Local model servers at their default ports. They are probed only if one is named or no other model is available.
LOCAL_SERVERS: dict[str, ProviderTable] = {
    name: ProviderTable(kind="openai", base_url=f"http://127.0.0.1:{port}/v1")
    for name, port in (("ollama", 11434), ("llama.cpp", 8080), ("lm-studio", 1234), ("vllm", 8000))
}
NO_PROVIDER_MESSAGE = """no model can be reached yet. There are three ways to get one:
  1. a vendor's API key: run `outrider login`, or set ANTHROPIC_API_KEY, OPENAI_API_KEY or GEMINI_API_KEY
  2. your own server: set OPENAI_BASE_URL (to any server with OpenAI's API) and pass --model openai/MODEL
  3. the embedded model, which needs no key: pass --model local"""


# Short names of the newest model of a family: the vendor's kind and a pattern of the models.
MODEL_ALIASES: dict[str, tuple[str, str]] = {
    "opus": ("anthropic", r"claude-opus-[\d-]+"),
    "sonnet": ("anthropic", r"claude-sonnet-[\d-]+"),
    "haiku": ("anthropic", r"claude-haiku-[\d-]+"),
    "gpt": ("openai", r"gpt-\d+(\.\d+)?"),
    "codex": ("openai", r"gpt-[\d.]+-codex"),
    "gemini": ("google", r"gemini-[\d.]+-pro(-preview)?"),
    "flash": ("google", r"gemini-[\d.]+-flash(-preview)?"),
}
# How the names of the vendors' own models begin, for names without a provider.
_MODEL_PREFIXES = {"anthropic": r"claude-", "openai": r"gpt-(?!oss)|chatgpt-|o\d|codex-", "google": r"gemini-"}
_VENDOR_OF_KIND = {"openai-responses": "openai"}


def expand_model_name(text: str, kinds: Mapping[str, str]) -> str:
    """Returns PROVIDER/MODEL for an alias such as `opus`, a model name without a provider, or PROVIDER/ALIAS.

    Other strings are returned unchanged. `kinds` are the kinds of the known providers by name, preferred ones first."""
    text = text.strip()
    provider, slash, model = text.partition("/")
    if slash and provider in kinds:
        alias = MODEL_ALIASES.get(model.lower())
        return f"{provider}/{_newest_model(*alias)}" if alias and _vendor(kinds[provider]) == alias[0] else text
    if text in kinds:
        return text
    alias = MODEL_ALIASES.get(text.lower())
    vendors = (vendor for vendor, prefix in _MODEL_PREFIXES.items() if re.match(prefix, text))
    vendor = alias[0] if alias else next(vendors, None)
    owner = next((name for name, kind in kinds.items() if _vendor(kind) == vendor), None)
    if vendor is None or owner is None:
        return text
    return f"{owner}/{_newest_model(*alias) if alias else text}"


def _vendor(kind: str) -> str:
    return _VENDOR_OF_KIND.get(kind, kind)


def _newest_model(vendor: str, pattern: str) -> str:
    from outrider.providers.catalog import ModelCatalog  # lazy: the catalog is slow to load

    return next(name for name in ModelCatalog().list_models(vendor) if re.fullmatch(pattern, name))


class ProviderRegistry:
    """The providers of the user and the built-in ones, with their keys."""

    def __init__(self, tables: Mapping[str, ProviderTable], environ: Mapping[str, str], source: str) -> None:
        self._user_tables = tables
        self._tables = {**LOCAL_SERVERS, **tables}
        self._environ = environ
        self._source = source
        self.names = tuple(dict.fromkeys((*tables, *BUILT_IN_PROVIDERS, *LOCAL_SERVERS)))

    def usable_providers(self) -> tuple[Provider, ...]:
        """Returns the providers that have credentials. The embedded model and local servers are left out: they are used
        only when named."""
        candidates = (
            self.find_provider(name) for name in self.names if name in self._user_tables or name in BUILT_IN_PROVIDERS
        )
        return tuple(
            provider for provider in candidates if provider.kind != "local" and not self.missing_credentials(provider)
        )

    def find_provider(self, name: str) -> Provider:
        """Returns the provider of that name. Raises ConfigurationError if it is unknown or misconfigured."""
        if name not in self.names:
            names = ", ".join(self.names)
            raise ConfigurationError(
                f"there is no provider {name!r}{suggest_name(name, self.names)} (there are: {names})"
            )
        table = self._tables.get(name, ProviderTable())
        kind = table.kind or BUILT_IN_PROVIDERS.get(name)
        if kind is None:
            raise ConfigurationError(
                f"{self._source}: providers.{name}.kind: is missing; {', '.join(BUILT_IN_PROVIDERS.values())}"
            )
        if table.base_url is not None and not table.base_url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"{self._source}: providers.{name}.base_url: {table.base_url!r} is not a URL; "
                f"write http://… or https://…"
            )
        usual_key, usual_address = find_key_and_address(self._environ, kind)
        address = table.base_url or usual_address
        if name == "openai" and table.kind is None and address is None:
            kind = "openai-responses"  # OpenAI's own server; compatible ones and `kind = "openai"` use Chat Completions
        return Provider(name, kind, self._api_key(table, kind, usual_key), address, table.headers, table.options)

    def missing_credentials(self, provider: Provider) -> str | None:
        """Returns a message about the key that a provider lacks, or None if requests can be sent."""
        if provider.kind == "local" or provider.api_key or provider.base_url or provider.headers or provider.options:
            return None
        table = self._tables.get(provider.name, ProviderTable())
        names = table.api_key_env or " or ".join(key_variable_names(provider.kind))
        if not names:
            needed = 'options = { script = ["…"] }' if provider.kind == "scripted" else 'base_url = "…"'
            return f"the provider {provider.name!r} of the kind {provider.kind!r} needs {needed} in {self._source}"
        login = f", or run `outrider login {provider.name}`" if provider.name in BUILT_IN_PROVIDERS else ""
        return f"the provider {provider.name!r} has no key: set {names}{login}"

    def missing_key_variable(self, name: str) -> str | None:
        """Returns the name of the `api_key_env` variable if it is configured but not set; requests are then sent
        without a key."""
        variable = self._user_tables[name].api_key_env if name in self._user_tables else None
        return variable if variable and not self._environ.get(variable, "").strip() else None

    def default_model(self) -> str:
        """Returns PROVIDER/MODEL of the first usable provider, user-configured ones first, or ""."""
        for provider in self.usable_providers():
            if model := self.model_of(provider.name):
                return f"{provider.name}/{model}"
        return ""

    def model_of(self, name: str) -> str:
        if name in LOCAL_SERVERS and name not in self._user_tables:
            return ""
        table = self._tables.get(name, ProviderTable())
        return table.model or DEFAULT_MODELS.get(table.kind or BUILT_IN_PROVIDERS.get(name, ""), "")

    def resolve_model(self, model: str, where: str) -> tuple[str, str]:
        """Splits `PROVIDER/MODEL`, a provider name alone, an alias or a model name alone into provider and model.
        Raises ConfigurationError if either is unknown."""
        name, slash, model_name = self._expand_name(model).partition("/")
        if name not in self.names:
            hint = (
                suggest_name(name, self.names) or f"; write PROVIDER/MODEL, with a provider of: {', '.join(self.names)}"
            )
            kind = "provider" if slash else "provider or model"
            raise ConfigurationError(f"{where}: there is no {kind} {name!r}{hint}")
        chosen = model_name if slash else self.model_of(name)
        if not chosen and name != "local" and self.find_provider(name).kind not in ("local", "outrider"):
            raise ConfigurationError(f"{where}: {model!r} names no model; write {name}/MODEL")
        return name, chosen

    def _expand_name(self, model: str) -> str:
        name, _, model_name = model.strip().partition("/")
        if name in self.names and model_name.lower() not in MODEL_ALIASES:
            return model.strip()
        usable = {provider.name: provider.kind for provider in self.usable_providers()}
        return expand_model_name(model, {**usable, **BUILT_IN_PROVIDERS})

    def resolve_models(self, models: str | Sequence[str], where: str) -> tuple[str, str, tuple[str, ...]]:
        """Returns provider and model of the first name, and the others as PROVIDER/MODEL. A string may list several
        names, separated by commas. Raises ConfigurationError if a provider is unknown."""
        texts = [models] if isinstance(models, str) else models
        names = [name for text in texts for name in text.split(",") if name.strip()]
        if not names:
            raise ConfigurationError(f"{where}: names no model; write PROVIDER/MODEL")
        (provider, model), *fallbacks = [self.resolve_model(name, where) for name in names]
        return provider, model, tuple(f"{name}/{fallback}" for name, fallback in fallbacks)

    def _api_key(self, table: ProviderTable, kind: ProviderKind, usual: str | None) -> str | None:
        """Returns the key of a provider. The vendor's key from the environment is never sent to another address than
        the vendor's or the one that the environment names."""
        if table.api_key_env is not None:
            return self._environ.get(table.api_key_env, "").strip() or ""
        if table.base_url is not None and not is_vendor_address(kind, table.base_url):
            return ""
        return usual


MAX_PROMPT_CHARACTERS = 200_000
AGENT_PROMPT = "agent"


def read_prompts(folder: Path) -> dict[str, str]:
    """Reads prompt overrides by name. A prompt with the name of a tool replaces the tool's description; an empty file
    is an empty prompt."""
    return {path.stem: _read_prompt(path) for path in sorted(folder.glob("*.md")) if path.is_file()}


def default_instructions(folder: Path) -> str:
    override = folder / f"{AGENT_PROMPT}.md"
    return _read_prompt(override) if override.is_file() else prompt_text(AGENT_PROMPT)


def _read_prompt(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(MAX_PROMPT_CHARACTERS).removeprefix("\ufeff").strip()


DEFAULT_AGENT = "outrider"
MAX_INSTRUCTIONS = 200_000
_COPIED_FIELDS = (
    "max_output_tokens",
    "reasoning",
    "reasoning_effort",
    "reasoning_budget",
    "temperature",
    "stream",
    "tools",
    "vendor_tools",
)


class AgentBuilder:
    """Builds agents from their tables, with default model, mode and limits."""

    def __init__(
        self,
        providers: ProviderRegistry,
        *,
        model: str | Sequence[str],
        mode: Mode,
        limits: Limits,
        prompts: Path,
        source: str,
        model_source: str = "model",
        retry: Mapping[str, Any] = {},
        retry_flags: Mapping[str, Any] = {},
        effort: ReasoningEffort | None = None,
        vendor_tools: tuple[VendorTool, ...] | None = None,
    ) -> None:
        self._retry, self._retry_flags = retry, retry_flags
        self._providers = providers
        self._model = model
        self._mode: Mode = mode
        self._limits = limits
        self._prompts = prompts
        self._source = source
        self._model_source = model_source
        self._defaults: dict[str, Any] = {"reasoning_effort": effort, "vendor_tools": vendor_tools}

    def build_agents(self, tables: Mapping[str, AgentTable]) -> list[Agent]:
        return [self._build_agent(name, table) for name, table in tables.items()]

    def _build_agent(self, name: str, table: AgentTable) -> Agent:
        where = f"{self._source}: agents.{name}"
        provider, model, fallback_models = self._resolve_models(table.model, f"{where}.model")
        fields: dict[str, Any] = {
            field: value for field in _COPIED_FIELDS if (value := getattr(table, field)) is not None
        }
        fields = {field: value for field, value in self._defaults.items() if value is not None} | fields
        rules = {kind: patterns for kind in ("allow", "ask", "deny") if (patterns := getattr(table.permissions, kind))}
        return Agent(
            name,
            self._read_instructions(table, where) or default_instructions(self._prompts),
            model,
            provider,
            role=table.role,
            mode=table.mode or self._mode,
            permissions=rules,
            limits=table.limits.apply_to(self._limits) if table.limits else self._limits,
            extra=table.extra,
            fallback_models=fallback_models,
            retry=self._retry_policy(table),
            **fields,
        )

    def _resolve_models(self, models: str | Sequence[str] | None, where: str) -> tuple[str, str, tuple[str, ...]]:
        if models is not None:
            return self._providers.resolve_models(models, where)
        return self._providers.resolve_models(self._model, self._model_source) if self._model else ("", "", ())

    def _retry_policy(self, table: AgentTable) -> RetryPolicy | None:
        """Returns the retry policy of an agent whose table sets one; None for an agent that uses its provider's
        policy."""
        overrides = table.retry.given
        return RetryPolicy(**{**self._retry, **overrides, **self._retry_flags}) if overrides else None

    def _read_instructions(self, table: AgentTable, where: str) -> str | None:
        if table.instructions is not None and table.instructions_file is not None:
            raise ConfigurationError(f"{where}: has both instructions and instructions_file; one of them is enough")
        if table.instructions_file is None:
            return table.instructions
        path = self._prompts.parent / Path(table.instructions_file).expanduser()
        try:
            with path.open(encoding="utf-8") as file:
                return file.read(MAX_INSTRUCTIONS)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{where}.instructions_file: {path} cannot be read: {error}") from error
