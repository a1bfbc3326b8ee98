"""Prices and context windows of models of different vendors."""

from decimal import Decimal

from outrider.models.clients import CatalogPricing
from outrider.providers.catalog import ModelCatalog
from outrider.providers.local.prompt import LOCAL_TOOL_PROMPT
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
