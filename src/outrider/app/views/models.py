"""The models that somebody may switch to, and how much they can hold."""

from collections.abc import Iterable

from outrider.app.models.tariff import known_models
from outrider.types.agents import Provider
from outrider.types.parts import ModelRef


def models_of(providers: Iterable[Provider]) -> list[ModelRef]:
    """Every model that is listed for the providers, by name; those of a server of one's own are not known."""
    catalog = known_models()
    return [
        ModelRef(provider.name, name)
        for provider in providers
        if provider.kind != "scripted"
        for name in catalog.models(provider.kind, base_url=provider.base_url)
    ]


def context_limit(providers: Iterable[Provider], model: ModelRef) -> int | None:
    """How many tokens a model holds; None where nobody knows."""
    provider = next((found for found in providers if found.name == model.provider), None)
    if provider is None or provider.kind == "scripted":
        return None
    return known_models().context_limit(provider.kind, model.model, base_url=provider.base_url)
