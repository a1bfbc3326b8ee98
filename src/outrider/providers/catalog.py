"""The catalog: configuration first, then up-to-date prices where they are installed, then the bundled listing."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from outrider.errors import ConfigurationError
from outrider.providers.models_dev import Capabilities, ModelFacts, Prices, Tier, home_of, offers
from outrider.types.usage import Tokens

if TYPE_CHECKING:
    from genai_prices import types as quoted

    from outrider.providers.models_dev import Listing


_IDS = {
    "amazon-bedrock": "aws",
    "fireworks-ai": "fireworks",
    "google-vertex": "google",
    "togetherai": "together",
    "xai": "x-ai",
}
_RATES = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cache_read": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
}


# What may follow a name without making it another model's.
_RELEASE = re.compile(r"(?:[-@:](?:\d+|v\d+|latest|default|preview|exp))*")


class Quotes:
    """What genai-prices says of the models that it names; it also takes names that merely begin alike, we do not."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock

    def facts(self, home: str, name: str) -> ModelFacts | None:
        provider = self._providers.get(_IDS.get(home, home))
        model = provider.find_model(name) if provider else None
        if model is None or not _names(model.match, name):
            return None
        prices = _prices(model.get_prices(self._clock()))
        return ModelFacts(context_limit=model.context_window or None, prices=prices)

    @cached_property
    def _providers(self) -> "dict[str, quoted.Provider]":
        try:
            from genai_prices.data_snapshot import get_snapshot
        except ImportError:
            return {}
        return {provider.id: provider for provider in get_snapshot().providers}


def _names(clause: Any, name: str) -> bool:
    """Whether a rule that the name fits is about exactly this model."""
    if either := getattr(clause, "or_", None):
        return any(_names(one, name) for one in either)
    if every := getattr(clause, "and_", None):
        return all(_names(one, name) for one in every)
    for part in ("starts_with", "contains"):
        begin = getattr(clause, part, None)
        if begin is not None:
            return clause.is_match(name) and _RELEASE.fullmatch(name.partition(begin)[2]) is not None
    return clause.is_match(name)


def _prices(price: "quoted.ModelPrice") -> Prices | None:
    """A price may have tiers where another of the same model has none."""
    found = {rate: value for rate, key in _RATES.items() if (value := getattr(price, key, None)) is not None}
    if not {"input", "output"} <= found.keys():
        return None
    starts = {tier.start for value in found.values() for tier in getattr(value, "tiers", ())}
    return Prices(
        **{rate: _at(value, 0) for rate, value in found.items()},
        tiers=tuple(
            Tier(above=start, **{rate: _at(value, start + 1) for rate, value in found.items()})
            for start in sorted(starts)
        ),
    )


def _at(value: "Decimal | quoted.TieredPrices", prompt: int) -> Decimal:
    """The price for a prompt of so many tokens."""
    if isinstance(value, Decimal):
        return value
    reached = [tier.price for tier in value.tiers if prompt > tier.start]
    return reached[-1] if reached else value.base


class Source(Protocol):
    def facts(self, home: str, name: str) -> ModelFacts | None: ...


class Catalog:
    """What is known of the models of an engine. Sources are loaded by the first question that needs them.

    Models are asked for by the provider's kind and, where the provider has one, its `base_url`: many servers speak
    OpenAI's language, and the same name costs differently at each. Overrides are named MODEL or KIND/MODEL.
    """

    def __init__(
        self, overrides: Mapping[str, ModelFacts] | None = None, *, clock: Callable[[], datetime] | None = None
    ) -> None:
        self._overrides = dict(overrides or {})
        self._quotes = Quotes(clock or (lambda: datetime.now(UTC)))
        self._notes: dict[tuple[str, str | None], dict[str, Any]] = {}
        self._found: dict[tuple[Source, str, str, str | None], ModelFacts] = {}

    @cached_property
    def _listing(self) -> "Listing":
        from outrider.providers.models_dev import Listing

        return Listing()

    @classmethod
    def from_config(cls, models: Mapping[str, Mapping[str, Any]]) -> "Catalog":
        """Overrides as a configuration file writes them: {"MODEL": {"context_limit": 8192, "prices": {…}}}."""
        try:
            return cls({name: msgspec.convert(dict(facts), ModelFacts) for name, facts in models.items()})
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"models: {error}") from error

    def cost_of(self, kind: str, model: str, tokens: Tokens, *, base_url: str | None = None) -> Decimal | None:
        """What an answer cost, in dollars, exactly. Prices that are kept up to date go before bundled ones."""
        for facts in self._facts(kind, model, base_url, *self._quoted(kind, model, base_url), self._listing):
            if facts.prices is not None:
                return facts.prices.cost(tokens)
        return None

    def context_limit(self, kind: str, model: str, *, base_url: str | None = None) -> int | None:
        found = (
            facts.context_limit
            for facts in self._facts(kind, model, base_url, self._listing, *self._quoted(kind, model, base_url))
        )
        return next((limit for limit in found if limit is not None), None)

    def output_limit(self, kind: str, model: str, *, base_url: str | None = None) -> int | None:
        found = (facts.output_limit for facts in self._facts(kind, model, base_url, self._listing))
        return next((limit for limit in found if limit is not None), None)

    def capabilities(self, kind: str, model: str, *, base_url: str | None = None) -> Capabilities | None:
        """None for a model that nothing is known of; a single ability may be unknown, too."""
        known = [facts.capabilities for facts in self._facts(kind, model, base_url, self._listing)]
        merged = {name: _first(known, name) for name in Capabilities.__struct_fields__}
        return Capabilities(**merged) if any(value is not None for value in merged.values()) else None

    def notes(self, kind: str, *, base_url: str | None = None) -> dict[str, Any]:
        """What clients of one address learnt of its models, by their names; the next client need not ask again."""
        return self._notes.setdefault((kind, base_url), {})

    def models(self, kind: str, *, base_url: str | None = None) -> list[str]:
        """The names that are listed for a provider."""
        home = home_of(kind, base_url)
        return sorted(self._listing.models(home)) if home else []

    def _quoted(self, kind: str, model: str, base_url: str | None) -> tuple[Source, ...]:
        """Quotes take long to load. At an address that nobody knows they are asked only about names that are listed."""
        if home_of(kind, base_url) is None and self._look_up(self._listing, kind, model, base_url) == ModelFacts():
            return ()
        return (self._quotes,)

    def _facts(self, kind: str, model: str, base_url: str | None, *sources: Source) -> Iterator[ModelFacts]:
        """What configuration says, then what each source says, as far as it is asked for."""
        for name in (f"{kind}/{model}", model):
            if name in self._overrides:
                yield self._overrides[name]
        for source in sources:
            yield self._look_up(source, kind, model, base_url)

    def _look_up(self, source: Source, kind: str, model: str, base_url: str | None) -> ModelFacts:
        key = (source, kind, model, base_url)
        if key not in self._found:
            answers = (source.facts(home, name) for home, name in offers(kind, model, base_url))
            self._found[key] = next((facts for facts in answers if facts is not None), ModelFacts())
        return self._found[key]


def _first(known: list[Capabilities], name: str) -> bool | None:
    return next((value for facts in known if (value := getattr(facts, name)) is not None), None)
