"""Retries: which errors are retried, how long to wait, and the loop over the attempts of one request."""

import asyncio
import random

import msgspec

from outrider.errors import ProviderError, RateLimitError
from outrider.http.transport import HttpRequest, HttpTransport
from outrider.providers.error_mapping import redact_secrets
from outrider.providers.provider import AdaptiveWireFormat, WireFormat
from outrider.providers.transport.exchange import HttpExchange
from outrider.providers.transport.rate_limit import RateLimiter, TokenReservation
from outrider.types.deltas import AnswerStart, Delta, PartStart, Retry, UsageReport
from outrider.types.request import Request

_GOLDEN_RATIO_STEP = 0.6180339887498949
_INVISIBLE_DELTAS = frozenset({AnswerStart, Retry, UsageReport})


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of attempts and the backoff windows in seconds.

    The wait is drawn from a window that starts at `first_window`, doubles with each attempt and is capped at
    `largest_window`. When the provider asks for more than `longest_wait`, the error is raised without a retry.
    """

    attempts: int = 4
    first_window: float = 1.0
    largest_window: float = 30.0
    longest_wait: float = 60.0


class JitterBackoff:
    """Full jitter, spread evenly over all sessions that share one provider.

    Independent random draws cluster. Steps of the golden ratio from a random start stay evenly spaced for any number
    of waiters, so sessions that were rate limited together do not retry together.
    """

    def __init__(self, policy: RetryPolicy, start: float | None = None) -> None:
        self.policy = policy
        self._phase = random.random() if start is None else start

    def next_wait(self, attempt: int, error: ProviderError) -> float | None:
        """Returns the seconds to wait after failed attempt number `attempt` (from 1); None when it must not retry."""
        policy = self.policy
        requested_wait = error.retry_after or 0.0
        if not error.retryable or attempt >= policy.attempts or requested_wait > policy.longest_wait:
            return None
        window = min(policy.first_window * 2 ** (attempt - 1), policy.largest_window)
        self._phase = (self._phase + _GOLDEN_RATIO_STEP) % 1.0
        return requested_wait + window * self._phase


class FirstOutputGate:
    """Tracks whether an attempt has emitted visible output, after which a retry would show it twice.

    Buffers the start of a text part until its first text: the start shows nothing, but it cannot be withdrawn.
    """

    __slots__ = ("_held", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._held: list[Delta] = []

    def filter_deltas(self, deltas: list[Delta]) -> list[Delta]:
        """Returns the deltas that may be emitted now, in order."""
        passed: list[Delta] = []
        for position, delta in enumerate(deltas):
            if type(delta) in _INVISIBLE_DELTAS:
                passed.append(delta)
            elif type(delta) is PartStart and delta.kind in ("text", "reasoning"):
                self._held.append(delta)
            else:
                self.is_open = True
                return [*passed, *self._held, *deltas[position:]]
        return passed


_BYTES_PER_TOKEN = 4
_MAX_ADAPTATIONS = 8  # stops a wire format that adapts without end


class ProviderRoute(msgspec.Struct, frozen=True):
    """What all requests to one provider share."""

    name: str
    wire: WireFormat
    transport: HttpTransport
    backoff: JitterBackoff
    limiter: RateLimiter | None = None


class RequestAttempts:
    """Runs one request with retries. `read` returns the next deltas, None at the end; the caller must call `close`."""

    def __init__(self, route: ProviderRoute, request: Request) -> None:
        self._route = route
        self._request = request
        self._http_request: HttpRequest = route.wire.build_request(request)
        self._count = 0
        self._adaptations = 0
        self._gate = FirstOutputGate()
        self._exchange: HttpExchange | None = None
        self._reservation: TokenReservation | None = None
        self._used_tokens: int | None = None
        self._pause = 0.0

    async def read(self) -> list[Delta] | None:
        while True:
            pause, self._pause = self._pause, 0.0
            if pause:
                await asyncio.sleep(pause)
            try:
                return await self._read_deltas()
            except ProviderError as error:
                retry = self._plan_retry(error)
            if retry is not None:
                return [retry]

    def close(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
        if self._reservation is not None:
            self._reservation.settle(self._used_tokens)
            self._reservation = None

    async def _read_deltas(self) -> list[Delta] | None:
        deltas = await (self._exchange or await self._start_attempt()).read()
        if deltas is None:
            return None
        if self._reservation is not None:
            self._record_usage(deltas)
        return deltas if self._gate.is_open else self._gate.filter_deltas(deltas)

    async def _start_attempt(self) -> HttpExchange:
        route = self._route
        self._count += 1
        self._gate = FirstOutputGate()
        if route.limiter is not None:
            self._reservation = await route.limiter.reserve(len(self._http_request.body) // _BYTES_PER_TOKEN)
        self._exchange = exchange = HttpExchange(route.wire, self._request)
        await exchange.open(route.transport, self._http_request)
        return exchange

    def _plan_retry(self, error: ProviderError) -> Retry | None:
        """Prepares the next attempt and returns the delta that reports it, None for an adapted request.

        Raises the error when no further attempt is allowed.
        """
        self.close()
        self._complete_error(error)
        if self._adapt_request(error):
            return None
        wait = None if self._gate.is_open else self._route.backoff.next_wait(self._count, error)
        if wait is None:
            raise error
        self._pause = wait
        return Retry(self._count, round(wait * 1000), str(error), self._route.backoff.policy.attempts)

    def _adapt_request(self, error: ProviderError) -> bool:
        """Rebuilds the request if the wire format learned from the error; returns whether it did."""
        wire = self._route.wire
        if self._gate.is_open or self._adaptations >= _MAX_ADAPTATIONS or not isinstance(wire, AdaptiveWireFormat):
            return False
        if not wire.adapt_to_error(self._request, error):
            return False
        self._adaptations += 1
        self._count -= 1  # an adapted request is not a retry of the same one
        self._http_request = wire.build_request(self._request)
        return True

    def _complete_error(self, error: ProviderError) -> None:
        """Adds the provider's name and redacts keys, which some providers repeat in their messages."""
        route = self._route
        error.provider = error.provider or route.name
        error.message = redact_secrets(error.message, self._http_request)
        error.args = (error.message,)
        if route.limiter is not None and isinstance(error, RateLimitError) and error.retry_after:
            route.limiter.pause_requests(min(error.retry_after, route.backoff.policy.longest_wait))

    def _record_usage(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            if type(delta) is UsageReport:
                self._used_tokens = delta.tokens.total
