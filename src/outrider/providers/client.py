"""The HTTP model client, which combines a wire format with a transport, and the client that falls back to others."""

from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec

from outrider.errors import ConfigurationError, ContentFilterError, InvalidRequestError, ProviderError
from outrider.http.client import HttpClient
from outrider.http.transport import HttpTransport
from outrider.providers.provider import ModelClient, WireFormat
from outrider.providers.stream_filters.stream_filter import StreamFilter, apply_filter
from outrider.providers.transport.rate_limit import RateLimiter
from outrider.providers.transport.retry import JitterBackoff, ProviderRoute, RequestAttempts, RetryPolicy
from outrider.types.deltas import AnswerStart, Delta, Retry, UsageReport
from outrider.types.request import Request


class WireClient:
    """Streams answers over HTTP and retries errors that are marked as retryable.

    It retries only until the first visible delta. A later failure is raised, because a second attempt would repeat
    text that the reader has already received. `create_filter` returns the stream filter for one answer.
    """

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


_NO_FALLBACK_ERRORS = (InvalidRequestError, ContentFilterError)


class FallbackCandidate(msgspec.Struct, frozen=True):
    """A client to try, and the model to request from it (None: the model that the request names)."""

    client: ModelClient
    model: str | None = None

    def adapt_request(self, request: Request) -> Request:
        return request if self.model is None else msgspec.structs.replace(request, model=self.model)


class FallbackClient:
    """Tries several clients in order and moves to the next one when a provider fails before any visible delta.

    Errors that the request itself causes are raised at once, since the next provider would reject it as well.
    """

    def __init__(self, candidates: Sequence[FallbackCandidate]) -> None:
        if not candidates:
            raise ConfigurationError("the list of fallback models is empty; name at least one model")
        self.name = candidates[0].client.name
        self._candidates = tuple(candidates)

    def model_family(self, model: str) -> str:
        first = self._candidates[0]
        return first.client.model_family(first.model or model)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        visible = False
        for candidate in self._candidates:
            deltas = candidate.client.stream(candidate.adapt_request(request))
            try:
                async for delta in deltas:
                    visible = visible or not isinstance(delta, AnswerStart | Retry | UsageReport)
                    yield delta
                return
            except ProviderError as error:
                if visible or isinstance(error, _NO_FALLBACK_ERRORS) or candidate is self._candidates[-1]:
                    raise
            finally:
                await deltas.aclose()

    async def aclose(self) -> None:
        for candidate in self._candidates:
            await candidate.client.aclose()
