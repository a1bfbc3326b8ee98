"""Prices from the genai-prices package, where it is installed: kept up to date, but heavy to load."""

import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

from outrider.providers.catalog.facts import ModelFacts, Prices, Tier

if TYPE_CHECKING:
    from genai_prices import types as quoted

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
