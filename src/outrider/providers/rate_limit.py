"""Limits requests and tokens per minute to one provider, shared by all agents of an engine, first in first out."""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

import msgspec

_MINUTE = 60.0


class RateLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a provider; None means unlimited.

    A request larger than `tokens_per_minute` waits until the bucket is full and is then sent.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


class TokenReservation:
    """The estimated tokens of one request. `settle` corrects the estimate; a second call has no effect."""

    __slots__ = ("_limiter", "_tokens")

    def __init__(self, limiter: "RateLimiter", tokens: float) -> None:
        self._limiter = limiter
        self._tokens: float | None = tokens

    def settle(self, used: int | None) -> None:
        """Returns the difference to the actual usage to the limiter; None leaves the estimate in place."""
        if used is not None and self._tokens is not None:
            self._limiter.return_tokens(self._tokens - used)
        self._tokens = None


class RateLimiter:
    """A token bucket per minute with a FIFO queue, so that small requests do not starve large ones."""

    def __init__(self, limit: RateLimit, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._requests = _MinuteBucket(limit.requests_per_minute, clock())
        self._tokens = _MinuteBucket(limit.tokens_per_minute, clock())
        self._paused_until = 0.0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._wake = asyncio.Event()

    async def reserve(self, tokens: int) -> TokenReservation:
        """Waits until the request fits into the limits. A cancelled waiter leaves the queue."""
        await self._wait_in_queue()
        try:
            while (wait := self._required_wait(tokens)) > 0:
                await self._sleep_until_woken(wait)
            self._requests.consume(1)
            self._tokens.consume(tokens)
        finally:
            self._wake_next()
        return TokenReservation(self, tokens)

    def pause_requests(self, seconds: float) -> None:
        """Pauses all requests, as the provider asked with Retry-After."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)

    def return_tokens(self, tokens: float) -> None:
        """Puts unused tokens back; a negative number takes more."""
        self._tokens.consume(-tokens)
        self._wake.set()

    async def _wait_in_queue(self) -> None:
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(ticket)
        if self._queue[0] is ticket:
            return
        try:
            await ticket
        except asyncio.CancelledError:
            if self._queue[0] is ticket:
                self._wake_next()
            else:
                self._queue.remove(ticket)
            raise

    def _wake_next(self) -> None:
        self._queue.popleft()
        if self._queue and not self._queue[0].done():
            self._queue[0].set_result(None)

    def _required_wait(self, tokens: int) -> float:
        now = self._clock()
        return max(
            self._paused_until - now, self._requests.seconds_until(1, now), self._tokens.seconds_until(tokens, now)
        )

    async def _sleep_until_woken(self, seconds: float) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return


class _MinuteBucket:
    """A token bucket with the capacity of one minute. Its level is negative after a request used more than reserved."""

    __slots__ = ("_capacity", "_level", "_rate", "_updated_at")

    def __init__(self, per_minute: float | None, now: float) -> None:
        self._capacity = per_minute
        self._rate = (per_minute or 0.0) / _MINUTE
        self._level = per_minute or 0.0
        self._updated_at = now

    def seconds_until(self, amount: float, now: float) -> float:
        """Returns the seconds until the amount is available; 0 when it is."""
        if self._capacity is None:
            return 0.0
        self._level = min(self._capacity, self._level + (now - self._updated_at) * self._rate)
        self._updated_at = now
        missing = min(amount, self._capacity) - self._level
        return missing / self._rate if missing > 1e-9 else 0.0

    def consume(self, amount: float) -> None:
        if self._capacity is not None:
            self._level = min(self._capacity, self._level - amount)
