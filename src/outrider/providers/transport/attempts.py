"""One request, pursued over as many attempts as may help."""

import asyncio

import msgspec

from outrider.errors import ProviderError, RateLimitError
from outrider.providers.provider import HttpCall, Learning, Wire
from outrider.providers.secrets import without_secrets
from outrider.providers.transport.exchange import Exchange
from outrider.providers.transport.rate_limit import RateLimiter, Reservation
from outrider.providers.transport.retry import Backoff, Showing
from outrider.providers.transport.transport import Transport
from outrider.types.request import Request
from outrider.types.stream import Delta, Retry, UsageReport

_BYTES_PER_TOKEN = 4
_LESSONS = 8  # a wire format that never has enough is not asked again


class Route(msgspec.Struct, frozen=True):
    """All that requests to one provider share."""

    name: str
    wire: Wire
    transport: Transport
    backoff: Backoff
    limiter: RateLimiter | None = None


class Attempts:
    """`read` gives what has arrived; None is the good end. Close it, whatever happens."""

    def __init__(self, route: Route, request: Request) -> None:
        self._route = route
        self._request = request
        self._call: HttpCall = route.wire.call(request)
        self._count = 0
        self._lessons = 0
        self._showing = Showing()
        self._exchange: Exchange | None = None
        self._reservation: Reservation | None = None
        self._used: int | None = None
        self._pause = 0.0

    async def read(self) -> list[Delta] | None:
        while True:
            pause, self._pause = self._pause, 0.0
            if pause:
                await asyncio.sleep(pause)
            try:
                return await self._read()
            except ProviderError as error:
                retry = self._recover(error)
            if retry is not None:
                return [retry]

    def close(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
        if self._reservation is not None:
            self._reservation.settle(self._used)
            self._reservation = None

    async def _read(self) -> list[Delta] | None:
        deltas = await (self._exchange or await self._start()).read()
        if deltas is None:
            return None
        if self._reservation is not None:
            self._note_usage(deltas)
        return deltas if self._showing.begun else self._showing.pass_on(deltas)

    async def _start(self) -> Exchange:
        route = self._route
        self._count += 1
        self._showing = Showing()
        if route.limiter is not None:
            self._reservation = await route.limiter.reserve(len(self._call.body) // _BYTES_PER_TOKEN)
        self._exchange = exchange = Exchange(route.wire, self._request)
        await exchange.open(route.transport, self._call)
        return exchange

    def _recover(self, error: ProviderError) -> Retry | None:
        """What is told before the next attempt, None when nothing needs telling; raises when there can be none."""
        self.close()
        self._explain(error)
        if self._learnt(error):
            return None
        wait = None if self._showing.begun else self._route.backoff.wait(self._count, error)
        if wait is None:
            raise error
        self._pause = wait
        return Retry(self._count, round(wait * 1000), str(error), self._route.backoff.policy.attempts)

    def _learnt(self, error: ProviderError) -> bool:
        """Whether the refusal taught how to write this request so that it may be accepted."""
        wire = self._route.wire
        if self._showing.begun or self._lessons >= _LESSONS or not isinstance(wire, Learning):
            return False
        if not wire.learn(self._request, error):
            return False
        self._lessons += 1
        self._count -= 1  # it was another request
        self._call = wire.call(self._request)
        return True

    def _explain(self, error: ProviderError) -> None:
        """Whose error it is; and a provider that repeats our key does not bring it into logs."""
        route = self._route
        error.provider = error.provider or route.name
        error.message = without_secrets(error.message, self._call)
        error.args = (error.message,)
        if route.limiter is not None and isinstance(error, RateLimitError) and error.retry_after:
            route.limiter.hold(min(error.retry_after, route.backoff.policy.longest_wait))

    def _note_usage(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            if type(delta) is UsageReport:
                self._used = delta.tokens.total
