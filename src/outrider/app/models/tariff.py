"""What is known about the models of a run's agents, from the catalog, by the names of their providers."""

from collections.abc import Mapping
from decimal import Decimal
from functools import cache, lru_cache

from outrider.agents.limits import Price
from outrider.providers.catalog import Catalog
from outrider.types.agents import Agent, Provider
from outrider.types.usage import Tokens

_MILLION = 1_000_000


@cache
def known_models() -> Catalog:
    """What is known of models does not change while a program runs, so it is read once."""
    return Catalog()


class CatalogTariff:
    """Answers are remembered: a catalog's look-up is too slow for every step."""

    def __init__(self, catalog: Catalog, providers: Mapping[str, Provider]) -> None:
        self._catalog = catalog
        self._providers = providers
        self._look_up = lru_cache(maxsize=256)(self._find)

    def price(self, agent: Agent) -> Price | None:
        return self._look_up(agent.provider, agent.model)[0]

    def context_limit(self, agent: Agent) -> int | None:
        return self._look_up(agent.provider, agent.model)[1]

    def output_limit(self, agent: Agent) -> int | None:
        return self._look_up(agent.provider, agent.model)[2]

    def cost(self, agent: Agent, model: str, tokens: Tokens) -> Decimal | None:
        """By the model that answered, else by the one that was asked: some give themselves names of their own."""
        price = self.price(agent)
        if not tokens.total or price is None or price.by_bill:
            return None
        place = self._providers[agent.provider]
        if place.kind == "local":
            return Decimal(0)
        for name in dict.fromkeys((model, agent.model)):
            cost = self._catalog.cost_of(place.kind, name, tokens, base_url=place.base_url) if name else None
            if cost is not None:
                return cost
        return None

    def _find(self, provider: str, model: str) -> tuple[Price | None, int | None, int | None]:
        place, catalog = self._providers[provider], self._catalog
        if place.kind == "scripted":
            return None, None, None
        if place.kind == "outrider":
            return Price(by_bill=True), None, None
        if place.kind == "local":
            from outrider.app.local.models import limits_of
            from outrider.providers.local.client import LARGEST_ANSWER

            return Price(), limits_of(place).context, LARGEST_ANSWER
        read = catalog.cost_of(place.kind, model, Tokens(input=_MILLION), base_url=place.base_url)
        write = catalog.cost_of(place.kind, model, Tokens(output=_MILLION), base_url=place.base_url)
        price = Price(read / _MILLION, write / _MILLION) if read is not None and write is not None else None
        context = catalog.context_limit(place.kind, model, base_url=place.base_url)
        return price, context, catalog.output_limit(place.kind, model, base_url=place.base_url)
