"""A wire format and a transport, put together: the client that asks a provider's models over HTTP."""

from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec

from outrider.errors import ConfigurationError, ContentFilterError, InvalidRequestError, ProviderError
from outrider.providers.provider import ModelClient, Wire
from outrider.providers.stream_filters.base import Stage, through
from outrider.providers.transport.http_client import HttpClient
from outrider.providers.transport.rate_limit import RateLimiter
from outrider.providers.transport.retry import Attempts, Backoff, RetryPolicy, Route
from outrider.providers.transport.transport import Transport
from outrider.types.deltas import AnswerStart, Delta, Retry, UsageReport
from outrider.types.request import Request


class WireClient:
    """Asks again while nothing of an answer was shown and the error says that it may help.

    Once something was shown, a failure is raised: the reader keeps what arrived, and nothing is shown twice. Every
    answer runs through a `stage` of its own, where there is one.
    """

    def __init__(
        self,
        name: str,
        wire: Wire,
        transport: Transport | None = None,
        *,
        retry: RetryPolicy | None = None,
        limiter: RateLimiter | None = None,
        stage: Callable[[Request], Stage] | None = None,
    ) -> None:
        self.name = name
        self._stage = stage
        backoff = Backoff(retry or RetryPolicy())
        self._route = Route(name, wire, transport or HttpClient(), backoff, limiter)

    def family(self, model: str) -> str:
        return self._route.wire.family(model)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        attempts = Attempts(self._route, request)
        stage = self._stage(request) if self._stage else None
        try:
            while (deltas := await attempts.read()) is not None:
                for delta in deltas if stage is None else through(stage, deltas):
                    yield delta
        except ProviderError:
            for delta in stage.close() if stage else ():  # what arrived is not lost with the connection
                yield delta
            raise
        finally:
            attempts.close()
        for delta in stage.close() if stage else ():
            yield delta

    async def aclose(self) -> None:
        await self._route.transport.aclose()


_OWN_FAULT = (InvalidRequestError, ContentFilterError)


class Candidate(msgspec.Struct, frozen=True):
    """`model` is None for the model that the request names."""

    client: ModelClient
    model: str | None = None

    def request(self, request: Request) -> Request:
        return request if self.model is None else msgspec.structs.replace(request, model=self.model)


class FallbackClient:
    """Once something of an answer was shown, its failure is raised like any other."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        if not candidates:
            raise ConfigurationError("a list of fallback models needs at least one model")
        self.name = candidates[0].client.name
        self._candidates = tuple(candidates)

    def family(self, model: str) -> str:
        first = self._candidates[0]
        return first.client.family(first.model or model)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        shown = False
        for candidate in self._candidates:
            deltas = candidate.client.stream(candidate.request(request))
            try:
                async for delta in deltas:
                    shown = shown or not isinstance(delta, AnswerStart | Retry | UsageReport)
                    yield delta
                return
            except ProviderError as error:
                if shown or isinstance(error, _OWN_FAULT) or candidate is self._candidates[-1]:
                    raise
            finally:
                await deltas.aclose()

    async def aclose(self) -> None:
        for candidate in self._candidates:
            await candidate.client.aclose()
