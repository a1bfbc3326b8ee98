"""A wire format and a transport, put together: the client that asks a provider's models over HTTP."""

from collections.abc import AsyncGenerator, Callable

from outrider.errors import ProviderError
from outrider.providers.provider import Wire
from outrider.providers.stages.stage import Stage, through
from outrider.providers.transport.attempts import Attempts, Route
from outrider.providers.transport.http import HttpClient
from outrider.providers.transport.rate_limit import RateLimiter
from outrider.providers.transport.retry import Backoff, RetryPolicy
from outrider.providers.transport.transport import Transport
from outrider.types.request import Request
from outrider.types.stream import Delta


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
