"""Keeps all agents of an engine together below a provider's requests and tokens per minute, in order of asking."""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

import msgspec

_MINUTE = 60.0


class RateLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """None is no limit. A call larger than `tokens_per_minute` waits for a full minute's allowance, then goes."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


class Reservation:
    """Tokens that one call may use. Settle it with what the call did use; a second settlement changes nothing."""

    __slots__ = ("_limiter", "_tokens")

    def __init__(self, limiter: "RateLimiter", tokens: float) -> None:
        self._limiter = limiter
        self._tokens: float | None = tokens

    def settle(self, used: int | None) -> None:
        """`used` is None when nobody knows; then the estimate stands."""
        if used is not None and self._tokens is not None:
            self._limiter.give_back(self._tokens - used)
        self._tokens = None


class RateLimiter:
    """First come, first served: who waits for much is not overtaken by those who need little."""

    def __init__(self, limit: RateLimit, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._requests = _Bucket(limit.requests_per_minute, clock())
        self._tokens = _Bucket(limit.tokens_per_minute, clock())
        self._held_until = 0.0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._wake = asyncio.Event()

    async def reserve(self, tokens: int) -> Reservation:
        """Wait for room. Cancelling gives up the place in the queue."""
        await self._reach_the_front()
        try:
            while (wait := self._wait(tokens)) > 0:
                await self._sleep(wait)
            self._requests.take(1)
            self._tokens.take(tokens)
        finally:
            self._let_next()
        return Reservation(self, tokens)

    def hold(self, seconds: float) -> None:
        """The provider asked for a pause; it counts for everybody."""
        self._held_until = max(self._held_until, self._clock() + seconds)

    def give_back(self, tokens: float) -> None:
        """More (or, if negative, less) room than was thought."""
        self._tokens.take(-tokens)
        self._wake.set()

    async def _reach_the_front(self) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        if self._queue[0] is place:
            return
        try:
            await place
        except asyncio.CancelledError:
            if self._queue[0] is place:
                self._let_next()
            else:
                self._queue.remove(place)
            raise

    def _let_next(self) -> None:
        self._queue.popleft()
        if self._queue and not self._queue[0].done():
            self._queue[0].set_result(None)

    def _wait(self, tokens: int) -> float:
        now = self._clock()
        return max(self._held_until - now, self._requests.wait(1, now), self._tokens.wait(tokens, now))

    async def _sleep(self, seconds: float) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return


class _Bucket:
    """Fills evenly, holds one minute's worth, and may go below zero when a call used more than it reserved."""

    __slots__ = ("_full", "_level", "_rate", "_since")

    def __init__(self, per_minute: float | None, now: float) -> None:
        self._full = per_minute
        self._rate = (per_minute or 0.0) / _MINUTE
        self._level = per_minute or 0.0
        self._since = now

    def wait(self, amount: float, now: float) -> float:
        """Seconds until there is room for the amount; 0 when there is."""
        if self._full is None:
            return 0.0
        self._level = min(self._full, self._level + (now - self._since) * self._rate)
        self._since = now
        missing = min(amount, self._full) - self._level
        return missing / self._rate if missing > 1e-9 else 0.0

    def take(self, amount: float) -> None:
        if self._full is not None:
            self._level = min(self._full, self._level - amount)
