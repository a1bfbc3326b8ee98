"""One POST over HTTP: sent within limits, read as its bytes arrive, cut when it goes silent."""

import asyncio
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from time import monotonic

from outrider.errors import NetworkError, StalledStreamError
from outrider.providers.provider import HttpCall
from outrider.providers.transport import http1 as head
from outrider.providers.transport.connection import Connection, default_security, dial, let_go
from outrider.providers.transport.http1 import Body, Head, RequestTarget, Route, body_of
from outrider.providers.transport.transport import HttpAnswer, Timeouts

_SOON = 0.01


class Watchdog:
    """Looks after one answer by the alarm of its connection: a byte that arrives only moves a number."""

    __slots__ = ("_connection", "_idle", "_most", "_next_idle", "_quiet", "_timeouts", "_total", "_waiting")

    def __init__(self, timeouts: Timeouts, connection: Connection) -> None:
        self._timeouts = timeouts
        self._connection: Connection | None = connection  # until the answer is over: then others may use it
        self._idle = timeouts.first_byte
        self._next_idle = timeouts.idle
        self._most = timeouts.total
        self._total = 0.0
        self._quiet = 0.0  # seconds waited since the answer last made progress
        self._waiting = 0.0  # since when the reader waits; 0 while it does not
        connection.alarm.set(self._shortest(), self._look)

    def wait(self) -> None:
        self._waiting = monotonic()

    def progress(self) -> None:
        self._quiet = 0.0

    def heard(self) -> None:
        waited = monotonic() - self._waiting
        self._waiting = 0.0
        self._quiet += waited
        self._total += waited
        self._idle = self._next_idle

    def settle(self) -> None:
        self._idle = self._next_idle = min(self._next_idle, self._timeouts.closing)
        self._look()

    def hurry(self, seconds: float) -> None:
        self._most = min(self._most, self._total + seconds)
        self._look()

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.alarm.call_off()
            self._connection = None

    def _shortest(self) -> float:
        return min(self._idle, self._next_idle, self._timeouts.quiet, self._most - self._total)

    def _look(self) -> None:
        if self._connection is None:
            return
        left, problem = self._left() if self._waiting else (max(self._shortest(), _SOON), "")
        if left > 0:
            self._connection.alarm.set(left, self._look)
        else:
            self._connection.fail(StalledStreamError(problem, type="stalled"))

    def _left(self) -> tuple[float, str]:
        """Seconds until the first limit is reached, and what is to be said then."""
        waited = monotonic() - self._waiting
        quiet, most = self._timeouts.quiet, self._most
        return min(
            (self._idle - waited, f"the provider sent nothing for {self._idle:g} s"),
            (quiet - self._quiet - waited, f"the provider sent nothing of an answer for {quiet:g} s"),
            (most - self._total - waited, f"the answer was not whole after {most:g} s"),
        )


_IDLE_CONNECTION_SECONDS = 60.0
_WAYS = 64  # a conversation calls one address again and again

ProxyChoice = Callable[[str], str | None]
"""The proxy for an address, or None for the direct way."""


class HttpClient:
    """Connections to one provider, opened by the first call. Redirects are not followed: a key stays home."""

    def __init__(self, timeouts: Timeouts | None = None, *, proxy: ProxyChoice | None = None) -> None:
        self.timeouts = timeouts or Timeouts()
        self._proxy = proxy or _no_proxy
        self._way = lru_cache(maxsize=_WAYS)(self._found)
        self._security = cache(default_security)
        self._idle: dict[Route, list[tuple[float, Connection]]] = {}
        self._busy: set[Connection] = set()

    async def send(self, call: HttpCall) -> HttpAnswer:
        way = self._way(call.url)
        request = way.request(call)
        connection = self._reused(way.route) or await self._dialled(way)
        self._busy.add(connection)
        try:
            connection.alarm.set(self.timeouts.first_byte, lambda: connection.fail(self._late()))
            await connection.send(request)
            answered, rest = await _head_of(connection)
            body = body_of(answered)
        except BaseException:
            self.drop(connection)
            raise
        return _Answer(self, way.route, connection, answered, body, rest)

    async def aclose(self) -> None:
        connections = [connection for idle in self._idle.values() for _, connection in idle] + list(self._busy)
        self._idle.clear()
        self._busy.clear()
        await let_go(connections)

    def _found(self, url: str) -> RequestTarget:
        return RequestTarget(url, self._proxy(url))

    def _late(self) -> StalledStreamError:
        limit = self.timeouts.first_byte
        return StalledStreamError(f"the provider did not begin to answer within {limit:g} s", type="stalled")

    async def _dialled(self, way: RequestTarget) -> Connection:
        try:
            async with asyncio.timeout(self.timeouts.connect):
                return await dial(way.place, way.proxy, self._security)
        except TimeoutError:
            raise NetworkError("the provider did not accept a connection in time", type="connect") from None

    def _reused(self, route: Route) -> Connection | None:
        """The connection that was used last: the likeliest to be still open."""
        idle = self._idle.get(route, [])
        while idle:
            since, connection = idle.pop()
            if connection.usable and monotonic() - since < _IDLE_CONNECTION_SECONDS:
                return connection
            connection.abort()
        return None

    def give_back(self, route: Route, connection: Connection) -> None:
        """For the next call; a client that was closed meanwhile takes none."""
        if connection in self._busy:
            self._busy.discard(connection)
            self._idle.setdefault(route, []).append((monotonic(), connection))

    def drop(self, connection: Connection) -> None:
        self._busy.discard(connection)
        connection.abort()


class _Answer:
    __slots__ = (
        "_body",
        "_client",
        "_connection",
        "_failure",
        "_first",
        "_reuse",
        "_route",
        "_watchdog",
        "headers",
        "status",
    )

    def __init__(
        self, client: HttpClient, route: Route, connection: Connection, answered: Head, body: Body, first: bytes
    ) -> None:
        self.status = answered.status
        self.headers: Mapping[str, str] = answered.headers
        self._client = client
        self._route = route
        self._connection: Connection | None = connection
        self._body = body
        self._reuse = answered.stays_open
        self._first = first
        self._failure: Exception | None = None
        self._watchdog = Watchdog(client.timeouts, connection)
        if body.ended:
            self._end()

    async def read(self) -> bytes:
        while self._connection is not None:
            piece = await self._piece(self._connection)
            if piece:
                return piece
        if self._failure is not None:
            raise self._failure
        return b""

    def progress(self) -> None:
        self._watchdog.progress()

    def settle(self) -> None:
        self._watchdog.settle()

    def hurry(self, seconds: float) -> None:
        self._watchdog.hurry(seconds)

    def close(self) -> None:
        self._watchdog.stop()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._client.drop(connection)

    async def _piece(self, connection: Connection) -> bytes:
        """Some of the body, perhaps nothing yet; at its end the connection is given back."""
        try:
            data = self._first or await self._received(connection)
            self._first = b""
            piece = self._body.feed(data) if data else b""
        except NetworkError as broken:
            return self._broken(broken)
        if not data or self._body.ended:
            self._end(hung_up=not data)
        return piece

    def _broken(self, failure: NetworkError) -> bytes:
        """Told after all that arrived before it."""
        self._failure = failure
        self.close()
        return b""

    async def _received(self, connection: Connection) -> bytes:
        self._watchdog.wait()
        try:
            return await connection.receive()
        finally:
            self._watchdog.heard()

    def _end(self, *, hung_up: bool = False) -> None:
        self._watchdog.stop()
        try:
            self._body.close()
        except NetworkError as broken:
            self._broken(broken)
            return
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._reuse and not hung_up and not self._body.rest and not self._first and connection.usable:
            self._client.give_back(self._route, connection)
        else:
            self._client.drop(connection)


async def _head_of(connection: Connection) -> tuple[Head, bytes]:
    """The head of the answer, and what of its body came with it; preliminary answers are passed over."""
    data = bytearray()
    while True:
        while (end := head.end_of(data)) < 0:
            piece = await connection.receive()
            if not piece:
                raise NetworkError("the provider closed the connection without an answer", type="disconnected")
            data += piece
        answered = head.read(bytes(data[:end]))
        del data[:end]
        if answered.status >= 200 or answered.status == 101:
            return answered, bytes(data)


def _no_proxy(url: str) -> None:
    return None
