"""The HTTP model client, which combines a wire format with a transport."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from outrider.errors import ProviderError
from outrider.http.client import HttpClient
from outrider.http.transport import HttpTransport
from outrider.providers.provider import ModelClient, WireFormat
from outrider.providers.stream_filters.stream_filter import StreamFilter, apply_filter
from outrider.providers.transport.rate_limit import RateLimiter
from outrider.providers.transport.retry import JitterBackoff, ProviderRoute, RequestAttempts, RetrySchedule
from outrider.types.deltas import Delta, Retry
from outrider.types.request import Request, RetryPolicy


class WireClient:
    """Streams answers over HTTP and retries errors that are marked as retryable.

    An answer that breaks off is requested again; a Retry delta withdraws its parts. `create_filter` returns the stream
    filter for one answer.
    """

    repeats_requests = True

    def __init__(
        self,
        name: str,
        wire: WireFormat,
        transport: HttpTransport | None = None,
        *,
        retry: RetryPolicy | None = None,
        limiter: RateLimiter | None = None,
        create_filter: Callable[[Request], StreamFilter] | None = None,
    ) -> None:
        self.name = name
        self._create_filter = create_filter
        backoff = JitterBackoff(retry or RetryPolicy())
        self._route = ProviderRoute(name, wire, transport or HttpClient(), backoff, limiter)

    def model_family(self, model: str) -> str:
        return self._route.wire.model_family(model)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        attempts = RequestAttempts(self._route, request)
        stream_filter = self._create_filter(request) if self._create_filter else None
        try:
            while (deltas := await attempts.read()) is not None:
                for delta in deltas if stream_filter is None else apply_filter(stream_filter, deltas):
                    yield delta
        except ProviderError:
            for delta in stream_filter.close() if stream_filter else ():  # emit text that the filter still buffers
                yield delta
            raise
        finally:
            attempts.close()
        for delta in stream_filter.close() if stream_filter else ():
            yield delta

    async def aclose(self) -> None:
        await self._route.transport.aclose()


class RepeatingClient:
    """Repeats the requests of a client that does not do so itself, by the rules of `WireClient`."""

    repeats_requests = True

    def __init__(self, client: ModelClient) -> None:
        self.name = client.name
        self._client = client

    def model_family(self, model: str) -> str:
        return self._client.model_family(model)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        schedule, attempt = RetrySchedule(request, JitterBackoff(RetryPolicy())), 0
        while True:
            attempt += 1
            deltas = self._client.stream(request)
            try:
                async for delta in deltas:
                    yield delta
            except ProviderError as error:
                failure = error
            else:
                return
            finally:
                await deltas.aclose()
            wait = schedule.next_wait(attempt, failure)
            if wait is None:
                raise failure
            yield Retry(attempt, round(wait * 1000), str(failure), schedule.policy.attempts)
            await asyncio.sleep(wait)

    async def aclose(self) -> None:
        await self._client.aclose()
