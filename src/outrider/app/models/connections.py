"""Clients for calls that stand alone: their connections live as long as the event loop, and close with it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cached_property

from outrider.app.build import model_client
from outrider.providers.catalog import Catalog
from outrider.providers.provider import ModelClient
from outrider.types.agents import Provider
from outrider.types.request import Request
from outrider.types.stream import Delta

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
