"""Prices and context windows of models of different vendors."""

from decimal import Decimal

import pytest

from outrider import Engine
from outrider.models.clients import CatalogPricing, shared_client
from outrider.providers.catalog import ModelCatalog
from outrider.providers.local.prompt import LOCAL_TOOL_PROMPT
from outrider.sessions.memory_store import MemoryStore
from outrider.testing import Simulator
from outrider.types.agents import Agent, Provider
from outrider.types.parts import Tokens


def test_an_embedded_model_costs_nothing():
    tariff = CatalogPricing(ModelCatalog(), {"local": Provider("local", "local", options={"context": 4096})})
    agent = Agent("one", "", "0.5b", "local")
    assert tariff.cost(agent, "0.5b", Tokens(1000, 10)) == Decimal(0)
    price = tariff.price(agent)
    assert price is not None
    assert (price.input, price.output) == (0, 0)
    assert tariff.context_limit(agent) == 4096


def test_the_embedded_model_is_sent_the_ends_of_a_long_result():
    tariff = CatalogPricing(
        ModelCatalog(), {"local": Provider("local", "local"), "anthropic": Provider("anthropic", "anthropic")}
    )
    sent = LOCAL_TOOL_PROMPT.clip_result("x" * 100_000)
    limit = tariff.result_limit(Agent("one", "", "0.5b", "local"))
    assert limit is not None
    assert limit <= len(sent) < limit + 100  # a note names the rest
    assert tariff.result_limit(Agent("two", "", "claude-sonnet-4-5", "anthropic")) is None


def catalog_with(limit: int) -> ModelCatalog:
    return ModelCatalog.from_config({"claude-sonnet-4-5": {"output_limit": limit}})


async def test_engines_in_one_loop_with_separate_catalogs_have_separate_limits():
    agent = Agent("writer", "You write.", "claude-sonnet-4-5", "simulator", reasoning=False)
    async with Simulator(["one", "two"]) as server:
        for limit in (1000, 2000):
            provider, catalog = server.provider("anthropic"), catalog_with(limit)
            async with Engine([agent], [provider], catalog=catalog, store=MemoryStore()) as engine:
                await engine.prompt(await engine.create(), "go")
        assert [request.body["max_tokens"] for request in server.requests] == [1000, 2000]


class OwnCatalog(ModelCatalog):
    pass


@pytest.mark.parametrize(
    ("catalog", "is_shared"), [(catalog_with(1), True), (catalog_with(2), False), (OwnCatalog(), False)]
)
async def test_equal_catalogs_share_a_client(catalog: ModelCatalog, is_shared: bool):
    provider = Provider("anthropic", "anthropic", "key")
    async with shared_client(provider, catalog_with(1)) as one, shared_client(provider, catalog) as other:
        assert (one is other) is is_shared
