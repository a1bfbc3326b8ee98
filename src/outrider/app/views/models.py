"""The models that somebody may switch to, and how much they can hold."""

from collections.abc import Iterable

from outrider.app.local.models import limits_of
from outrider.app.local.weights import KNOWN
from outrider.app.models.tariff import known_models
from outrider.types.agents import Provider
from outrider.types.parts import ModelRef


def models_of(providers: Iterable[Provider]) -> list[ModelRef]:
    """Every model that is listed for the providers, by name; those of a server of one's own are not known."""
    return [
        ModelRef(provider.name, name)
        for provider in providers
        if provider.kind not in ("scripted", "outrider")
        for name in _names(provider)
    ]


def context_limit(providers: Iterable[Provider], model: ModelRef) -> int | None:
    """How many tokens a model holds; None where nobody knows."""
    provider = next((found for found in providers if found.name == model.provider), None)
    if provider is None or provider.kind in ("scripted", "outrider"):
        return None
    if provider.kind == "local":
        return limits_of(provider).context
    return known_models().context_limit(provider.kind, model.model, base_url=provider.base_url)


def _names(provider: Provider) -> Iterable[str]:
    if provider.kind == "local":
        return [weights.name for weights in KNOWN]
    return known_models().models(provider.kind, base_url=provider.base_url)
