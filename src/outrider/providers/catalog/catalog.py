"""The catalog: configuration first, then up-to-date prices where they are installed, then the bundled listing."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from outrider.errors import ConfigurationError
from outrider.providers.catalog.facts import Capabilities, ModelFacts
from outrider.providers.catalog.names import home_of, offers
from outrider.providers.catalog.quotes import Quotes
from outrider.types.usage import Tokens

if TYPE_CHECKING:
    from outrider.providers.catalog.listing import Listing


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
        from outrider.providers.catalog.listing import Listing

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
