"""Prices and context windows of models of different vendors."""

from decimal import Decimal

from outrider.models.clients import CatalogPricing
from outrider.providers.catalog import ModelCatalog
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
