"""Names the concrete parts and puts them together. What belongs to one kind of provider is loaded with the first of it:
most programs have one, and loading all of them takes longer than asking it."""

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import msgspec

from outrider.app.config.environment import filled_in, proxy_for
from outrider.errors import ConfigurationError
from outrider.providers.catalog import Catalog
from outrider.providers.client import WireClient
from outrider.providers.fallback import Candidate, FallbackClient
from outrider.providers.provider import ModelClient, Wire
from outrider.providers.stages.stage import Stage
from outrider.providers.transport.http import HttpClient
from outrider.providers.transport.rate_limit import RateLimit, RateLimiter
from outrider.providers.transport.retry import RetryPolicy
from outrider.providers.transport.transport import Timeouts, Transport
from outrider.types.agents import Provider, ProviderKind
from outrider.types.request import Request

Settings = TypeVar("Settings", bound=msgspec.Struct)


def model_client(provider: Provider, *, catalog: Catalog | None = None) -> ModelClient:
    """The client of a provider. What it leaves open comes from the environment; its `options` may hold `timeouts`,
    `retry` and `rate_limit`, each with the fields of the struct of that name, `cassette` (a Deck or its options), and
    `text_tools`: whether its models get tools as text, since they have no calls of their own."""
    match provider.kind:
        case "scripted":
            from outrider.providers.scripted import scripted_client

            return scripted_client(provider)
        case "local":
            from outrider.app.local.models import local_client

            return local_client(provider)
        case "outrider":
            from outrider.providers.outrider.wire import PeerWire

            return _wired(provider, PeerWire(provider))
        case "openai":
            return _chat(filled_in(provider))
        case "openai-responses":
            from outrider.providers.openai.responses.wire import ResponsesWire

            filled = filled_in(provider)
            return _wired(filled, ResponsesWire(filled))
        case "google":
            from outrider.providers.google.wire import GoogleWire

            filled = filled_in(provider)
            return _wired(filled, GoogleWire(filled))
        case "anthropic":
            filled = filled_in(provider)
            return _wired(filled, _anthropic(filled, catalog or Catalog()))
        case unknown:  # pyright: ignore[reportUnnecessaryComparison]  values are not checked when they are made
            known = ", ".join(get_args(ProviderKind))
            raise ConfigurationError(f"the provider {provider.name!r}: no such kind as {unknown!r}; known: {known}")


def fallback_client(
    models: list[tuple[Provider, str | None]],
    *,
    catalog: Catalog | None = None,
) -> FallbackClient:
    """An ordered list of providers and models. Who has somebody to fall back on gives up sooner."""
    last = len(models) - 1
    return FallbackClient(
        [
            Candidate(
                model_client(_impatient(provider) if place < last else provider, catalog=catalog),
                model,
            )
            for place, (provider, model) in enumerate(models)
        ]
    )


def _wired(provider: Provider, wire: Wire, stage: Callable[[Request], Stage] | None = None) -> WireClient:
    limit = _options(provider, "rate_limit", RateLimit)
    return WireClient(
        provider.name,
        wire,
        _transport(provider),
        retry=_options(provider, "retry", RetryPolicy),
        limiter=RateLimiter(limit) if limit != RateLimit() else None,
        stage=stage,
    )


def _transport(provider: Provider) -> Transport:
    network = HttpClient(_options(provider, "timeouts", Timeouts), proxy=proxy_for)
    given = provider.options.get("cassette")
    if given is None:
        return network
    from outrider.providers.cassettes.deck import Deck, DeckOptions

    deck = given if isinstance(given, Deck) else Deck(_options(provider, "cassette", DeckOptions))
    return deck.over(network)


def _chat(provider: Provider) -> ModelClient:
    from outrider.providers.openai.chat.wire import ChatWire
    from outrider.providers.stages.think_tags import think_tags

    client = _wired(provider, ChatWire(provider), think_tags)
    if not provider.options.get("text_tools"):
        return client
    from outrider.providers.stages.text_tools import TextToolsClient

    return TextToolsClient(client)


def _anthropic(provider: Provider, catalog: Catalog) -> Wire:
    from outrider.providers.anthropic.wire import AnthropicWire

    def output_limit(model: str) -> int | None:
        return catalog.output_limit(provider.kind, model, base_url=provider.base_url)

    return AnthropicWire(provider, output_limit, catalog.notes(provider.kind, base_url=provider.base_url))


def _impatient(provider: Provider) -> Provider:
    if provider.kind == "scripted":
        return provider
    retry = {"attempts": 2} | provider.options.get("retry", {})
    return msgspec.structs.replace(provider, options=provider.options | {"retry": retry})


def _options(provider: Provider, name: str, kind: type[Settings]) -> Settings:
    given: Any = provider.options.get(name, {})
    try:
        return given if isinstance(given, kind) else msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"options of the provider {provider.name!r}: {name}: {error}") from error
