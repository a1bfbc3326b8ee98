"""When to ask again, and how long to wait before it."""

import asyncio
import random

import msgspec

from outrider.errors import ProviderError, RateLimitError
from outrider.providers.error_mapping import without_secrets
from outrider.providers.provider import HttpCall, Learning, Wire
from outrider.providers.transport.exchange import Exchange
from outrider.providers.transport.rate_limit import RateLimiter, Reservation
from outrider.providers.transport.transport import Transport
from outrider.types.deltas import AnswerStart, Delta, PartStart, Retry, UsageReport
from outrider.types.request import Request

_GOLDEN = 0.6180339887498949
_UNSEEN = frozenset({AnswerStart, Retry, UsageReport})


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Waits are drawn from a window that doubles with each attempt; seconds everywhere.

    A provider that asks for more than `longest_wait` is not waited for: the error is raised with its request.
    """

    attempts: int = 4
    first_window: float = 1.0
    largest_window: float = 30.0
    longest_wait: float = 60.0


class Backoff:
    """Full jitter without clumps, for all who share one provider.

    Independent draws leave crowds and holes. Steps of the golden ratio from a random start are spread evenly
    however many wait, so sessions that were refused together do not return together.
    """

    def __init__(self, policy: RetryPolicy, start: float | None = None) -> None:
        self.policy = policy
        self._place = random.random() if start is None else start

    def wait(self, attempt: int, error: ProviderError) -> float | None:
        """Seconds to wait after this failed attempt (the first is 1); None when asking again cannot help."""
        policy = self.policy
        asked = error.retry_after or 0.0
        if not error.retryable or attempt >= policy.attempts or asked > policy.longest_wait:
            return None
        window = min(policy.first_window * 2 ** (attempt - 1), policy.largest_window)
        self._place = (self._place + _GOLDEN) % 1.0
        return asked + window * self._place


class Showing:
    """What a failed attempt may already have given out without its repetition being seen twice.

    The start of a text is held back until there is text: it shows nothing, but it cannot be taken back.
    """

    __slots__ = ("_held", "begun")

    def __init__(self) -> None:
        self.begun = False
        self._held: list[Delta] = []

    def pass_on(self, deltas: list[Delta]) -> list[Delta]:
        """What may be given out now, in order."""
        passed: list[Delta] = []
        for position, delta in enumerate(deltas):
            if type(delta) in _UNSEEN:
                passed.append(delta)
            elif type(delta) is PartStart and delta.kind in ("text", "reasoning"):
                self._held.append(delta)
            else:
                self.begun = True
                return [*passed, *self._held, *deltas[position:]]
        return passed


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
