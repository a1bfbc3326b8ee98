"""The HTTP model client, which combines a wire format with a transport, and its retries: which errors are retried, how
long to wait, and the loop over the attempts of one request. A rate limit is shared by all agents of an engine.
"""

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import lru_cache
from time import monotonic
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from outrider.errors import (
    AuthenticationError,
    ConfigurationError,
    InvalidRequestError,
    ProviderError,
    RateLimitError,
    StalledStreamError,
)
from outrider.http.client import HttpClient, is_loopback
from outrider.http.transport import HttpRequest, HttpTransport
from outrider.providers.http_exchange import HttpExchange
from outrider.providers.provider import AdaptiveWireFormat, ModelClient, WireFormat
from outrider.providers.stream_filters import StreamFilter, apply_filter
from outrider.types.request import AnswerStart, Delta, Request, Retry, RetryPolicy, UsageReport
from outrider.types.validate import ArgumentsMeta, is_positive_number

_MINUTE = 60.0


class RateLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=ArgumentsMeta):
    """The limits of a provider; None means unlimited.

    A request larger than `tokens_per_minute` waits until the bucket is full and is then sent.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not is_positive_number(value):  # requests would wait forever
                raise ConfigurationError(f"RateLimit({name}={value!r}): it is a number above 0, or None for no limit")


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


_GOLDEN_RATIO_STEP = 0.6180339887498949
_INVISIBLE_DELTAS = frozenset({AnswerStart, Retry, UsageReport})


class JitterBackoff:
    """Full jitter, spread evenly over all sessions that share one provider.

    Independent random draws cluster. Steps of the golden ratio from a random start stay evenly spaced for any number
    of waiters, so sessions that were rate limited together do not retry together.
    """

    def __init__(self, policy: RetryPolicy, start: float | None = None) -> None:
        self.policy = policy
        self._phase = int.from_bytes(os.urandom(4), "big") / 2**32 if start is None else start

    def next_wait(self, attempt: int, error: ProviderError, policy: RetryPolicy | None = None) -> float | None:
        """Returns the seconds to wait after failed attempt number `attempt` (from 1); None when it must not retry."""
        policy = policy or self.policy
        requested_wait = error.retry_after or 0.0
        if not error.retryable or attempt >= policy.attempts or requested_wait > policy.longest_wait:
            return None
        window = min(policy.first_window * 2 ** (attempt - 1), policy.largest_window)
        self._phase = (self._phase + _GOLDEN_RATIO_STEP) % 1.0
        return requested_wait + window * self._phase


class RetrySchedule:
    """The waits between the attempts of one request, within the attempts and the time of its policy."""

    def __init__(self, request: Request, backoff: JitterBackoff) -> None:
        self.policy = _effective_policy(request, backoff.policy)
        self._backoff = backoff
        self._failing_since: float | None = None

    def next_wait(self, attempt: int, error: ProviderError) -> float | None:
        """Returns the seconds to wait after failed attempt number `attempt` (from 1); None if it was the last one."""
        now = monotonic()
        if self._failing_since is None:
            self._failing_since = now
        wait = self._backoff.next_wait(attempt, error, self.policy)
        return None if wait is None or now + wait - self._failing_since > self.policy.total else wait


_BYTES_PER_TOKEN = 4
_MAX_ADAPTATIONS = 8  # stops a wire format that adapts without end
_UNSTREAMED_PATIENCE = 5.0
_LOCAL_PATIENCE = 2.5
_MAX_TIMEOUT_FACTOR = 10.0


@runtime_checkable
class RecordedTransport(Protocol):
    """A transport that plays a recording, and states whether a request was sent again when it was recorded."""

    def expects(self, request: HttpRequest) -> bool: ...


class RequestSigner(Protocol):
    """Adds a key that can change to requests."""

    async def sign(self, request: HttpRequest) -> HttpRequest:
        """Returns the request with the current key. Raises AuthenticationError if there is none."""
        ...

    def reject(self, request: HttpRequest) -> None:
        """Forgets the key of a signed request, which the server refused."""
        ...


class ProviderRoute(msgspec.Struct, frozen=True):
    """What all requests to one provider share. `timeout_factors` has the factors of the stall timeouts that models
    needed so far, `adaptation_counts` how often the wire format was adapted to an error of a model."""

    name: str
    wire: WireFormat
    transport: HttpTransport
    backoff: JitterBackoff
    limiter: RateLimiter | None = None
    timeout_factors: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    signer: RequestSigner | None = None
    adaptation_counts: dict[str, int] = msgspec.field(default_factory=dict[str, int])


@lru_cache(maxsize=64)
def _is_local(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


class RequestAttempts:
    """Runs one request with retries. `read` returns the next deltas, None at the end; the caller must call `close`.

    A Retry delta withdraws the deltas before it. The caller must not act on an answer before its end."""

    def __init__(self, route: ProviderRoute, request: Request) -> None:
        self._route = route
        self._request = request
        self._schedule = RetrySchedule(request, route.backoff)
        self._http_request: HttpRequest = route.wire.build_request(request)
        self._timeout_factor = route.timeout_factors.get(request.model, 1.0)
        self._count = 0
        self._adaptations = 0
        self._adaptation_count = route.adaptation_counts.get(request.model, 0)
        self._has_output = False
        self._exchange: HttpExchange | None = None
        self._reservation: TokenReservation | None = None
        self._used_tokens: int | None = None
        self._pause = 0.0
        self._signed: HttpRequest | None = None
        self._has_new_key = False
        self._report_body()

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
        if not self._has_output:
            self._has_output = any(type(delta) not in _INVISIBLE_DELTAS for delta in deltas)
        if self._reservation is not None:
            self._record_usage(deltas)
        return deltas

    async def _start_attempt(self) -> HttpExchange:
        route = self._route
        self._count += 1
        self._has_output = False
        if route.limiter is not None:
            self._reservation = await route.limiter.reserve(len(self._http_request.body) // _BYTES_PER_TOKEN)
        self._exchange = exchange = HttpExchange(route.wire, self._request)
        signed = self._http_request
        if route.signer is not None:
            self._signed = None
            signed = self._signed = await route.signer.sign(self._http_request)
        await exchange.open(route.transport, self._with_patience(signed))
        return exchange

    def _with_patience(self, request: HttpRequest) -> HttpRequest:
        """Returns the request with longer timeouts where an answer may take longer to start: without streaming it
        arrives when it is complete, and a server on this machine first has to read a long prompt."""
        start = 1.0 if self._request.stream else _UNSTREAMED_PATIENCE
        start = max(start, _LOCAL_PATIENCE) if _is_local(request.url) else start
        if start == self._timeout_factor == 1.0:
            return request
        return replace(request, patience=self._timeout_factor, start_patience=start)

    def _plan_retry(self, error: ProviderError) -> Retry | None:
        """Prepares the next attempt and returns the delta that reports it, None for an adapted request.

        Raises the error when no further attempt is allowed.
        """
        resumed = self._exchange.resume_request(self._http_request) if self._exchange else None
        self.close()
        self._complete_error(error)
        if self._adapt_request(error) or self._replace_key(error):
            return None
        wait = self._next_wait(error)
        if wait is None:
            raise error
        if isinstance(error, StalledStreamError):
            self._timeout_factor = self._route.timeout_factors[self._request.model] = min(
                self._timeout_factor * 2, _MAX_TIMEOUT_FACTOR
            )
        self._pause = wait
        self._http_request = resumed or self._http_request
        attempts = self._schedule.policy.attempts
        return Retry(self._count, round(wait * 1000), str(error), attempts, resumed=resumed is not None)

    def _next_wait(self, error: ProviderError) -> float | None:
        """Returns the seconds to wait before the next attempt; None if there is none."""
        transport = self._route.transport
        if isinstance(transport, RecordedTransport) and not transport.expects(self._http_request):
            return None
        return self._schedule.next_wait(self._count, error)

    def _adapt_request(self, error: ProviderError) -> bool:
        """Rebuilds the request if the wire format learned from the error, or from the error of another request since
        this one was built; returns whether it did."""
        wire, counts, model = self._route.wire, self._route.adaptation_counts, self._request.model
        if self._has_output or self._adaptations >= _MAX_ADAPTATIONS or not isinstance(wire, AdaptiveWireFormat):
            return False
        if wire.adapt_to_error(self._request, error):
            counts[model] = counts.get(model, 0) + 1
        elif not isinstance(error, InvalidRequestError) or counts.get(model, 0) == self._adaptation_count:
            return False
        self._adaptation_count = counts[model]
        self._adaptations += 1
        self._count -= 1  # an adapted request is not a retry of the same one
        self._http_request = wire.build_request(self._request)
        self._report_body()
        return True

    def _report_body(self) -> None:
        report, layout = self._request.on_sent, self._http_request.layout
        if report is not None and layout is not None:
            report(self._http_request.body, layout)

    def _replace_key(self, error: ProviderError) -> bool:
        """Forgets a key that was refused; returns whether the request is sent again with a new one, once."""
        signer, signed = self._route.signer, self._signed
        if signer is None or signed is None or self._has_new_key or not isinstance(error, AuthenticationError):
            return False
        signer.reject(signed)
        self._has_new_key = True
        self._count -= 1
        return True

    def _complete_error(self, error: ProviderError) -> None:
        """Adds the provider's name and redacts keys, which some providers repeat in their messages."""
        from outrider.providers.error_mapping import redact_secrets  # lazy: only for errors

        route = self._route
        error.provider = error.provider or route.name
        error.message = redact_secrets(error.message, self._signed or self._http_request)
        error.args = (error.message,)
        if route.limiter is not None and isinstance(error, RateLimitError) and error.retry_after:
            route.limiter.pause_requests(min(error.retry_after, self._schedule.policy.longest_wait))

    def _record_usage(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            if type(delta) is UsageReport:
                self._used_tokens = delta.tokens.total


def _effective_policy(request: Request, provider_policy: RetryPolicy) -> RetryPolicy:
    policy = request.retry or provider_policy
    if not request.has_fallback:
        return policy
    return replace(policy, attempts=min(policy.attempts, policy.attempts_before_fallback))


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
        signer: RequestSigner | None = None,
    ) -> None:
        self.name = name
        self._create_filter = create_filter
        backoff = JitterBackoff(retry or RetryPolicy())
        self._route = ProviderRoute(name, wire, transport or HttpClient(), backoff, limiter, signer=signer)

    def model_family(self, model: str) -> str:
        """Returns the name of the group of models that accept each other's private state."""
        return self._route.wire.model_family(model)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Yields the deltas of one answer, and a Retry for each failed attempt. Raises ProviderError."""
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
        """Closes all connections of the client."""
        await self._route.transport.aclose()


class RepeatingClient:
    """Repeats failed requests of a client that does not do so itself, with the same rules as `WireClient`."""

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
