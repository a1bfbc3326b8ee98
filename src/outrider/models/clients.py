"""Clients for calls that stand alone: their connections live as long as the event loop, and close with it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from functools import cache, cached_property, lru_cache
from typing import Any, TypeVar, get_args

import msgspec

from outrider.agents.budget import Price
from outrider.config.environment import filled_in, proxy_for
from outrider.errors import ConfigurationError
from outrider.providers.catalog import Catalog
from outrider.providers.client import Candidate, FallbackClient, WireClient
from outrider.providers.provider import ModelClient, Wire
from outrider.providers.stream_filters.base import Stage
from outrider.providers.transport.http_client import HttpClient
from outrider.providers.transport.rate_limit import RateLimit, RateLimiter
from outrider.providers.transport.retry import RetryPolicy
from outrider.providers.transport.transport import Timeouts, Transport
from outrider.types.agents import Agent, Provider, ProviderKind
from outrider.types.deltas import Delta
from outrider.types.request import Request
from outrider.types.usage import Tokens

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
            from outrider.models.local.weights import local_client

            return local_client(provider)
        case "outrider":
            from outrider.providers.remote_agent import PeerWire

            return _wired(provider, PeerWire(provider))
        case "openai":
            return _chat(filled_in(provider))
        case "openai-responses":
            from outrider.providers.openai.responses_client import ResponsesWire

            filled = filled_in(provider)
            return _wired(filled, ResponsesWire(filled))
        case "google":
            from outrider.providers.google.client import GoogleWire

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
    from outrider.providers.openai.chat_client import ChatWire
    from outrider.providers.stream_filters.think_tags import think_tags

    client = _wired(provider, ChatWire(provider), think_tags)
    if not provider.options.get("text_tools"):
        return client
    from outrider.providers.stream_filters.text_tools import TextToolsClient

    return TextToolsClient(client)


def _anthropic(provider: Provider, catalog: Catalog) -> Wire:
    from outrider.providers.anthropic.client import AnthropicWire

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


_MOST = 8  # providers per loop; further ones are connected to anew for each call


class _Kept:
    def __init__(self, provider: Provider, client: ModelClient, keeper: AsyncGenerator[None, None]) -> None:
        self.provider = provider
        self.client = client
        self.keeper = keeper


_kept: dict[asyncio.AbstractEventLoop, list[_Kept]] = {}


@asynccontextmanager
async def connected(provider: Provider, catalog: Catalog) -> AsyncGenerator[ModelClient, None]:
    """A handshake costs more than a short answer, so the client of an equal provider is used again."""
    loop = asyncio.get_running_loop()
    kept = _kept.get(loop) or _opened(loop)
    for known in kept:
        if known.provider == provider:
            yield known.client
            return
    client = model_client(provider, catalog=catalog)
    if len(kept) >= _MOST or provider.kind == "scripted" or "cassette" in provider.options:
        try:
            yield client
        finally:
            await client.aclose()
        return
    keeper = _keep(client, loop)
    kept.append(_Kept(provider, client, keeper))
    await anext(keeper)
    yield client


class LateClient:
    """A provider that no agent thinks with yet: what speaks to it is loaded when somebody switches to it."""

    def __init__(self, provider: Provider, catalog: Catalog) -> None:
        self.name = provider.name
        self._provider = provider
        self._catalog = catalog

    @cached_property
    def _client(self) -> ModelClient:
        return model_client(self._provider, catalog=self._catalog)

    def family(self, model: str) -> str:
        return self._client.family(model)

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        return self._client.stream(request)

    async def aclose(self) -> None:
        if "_client" in self.__dict__:
            await self._client.aclose()


async def _keep(client: ModelClient, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
    """A loop that shuts down closes the generators that are still open; this one closes the client with it."""
    try:
        yield
    finally:
        _kept.pop(loop, None)
        await client.aclose()


def _opened(loop: asyncio.AbstractEventLoop) -> list[_Kept]:
    for other in [other for other in _kept if other.is_closed()]:
        del _kept[other]
    return _kept.setdefault(loop, [])


_MILLION = 1_000_000


@cache
def known_models() -> Catalog:
    """What is known of models does not change while a program runs, so it is read once."""
    return Catalog()


class CatalogPricing:
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
            from outrider.models.local.weights import limits_of
            from outrider.providers.local.client import LARGEST_ANSWER

            return Price(), limits_of(place).context, LARGEST_ANSWER
        read = catalog.cost_of(place.kind, model, Tokens(input=_MILLION), base_url=place.base_url)
        write = catalog.cost_of(place.kind, model, Tokens(output=_MILLION), base_url=place.base_url)
        price = Price(read / _MILLION, write / _MILLION) if read is not None and write is not None else None
        context = catalog.context_limit(place.kind, model, base_url=place.base_url)
        return price, context, catalog.output_limit(place.kind, model, base_url=place.base_url)
