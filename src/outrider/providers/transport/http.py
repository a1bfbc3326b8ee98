"""One POST over HTTP: sent within limits, read as its bytes arrive, cut when it goes silent."""

import asyncio
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from time import monotonic

from outrider.errors import NetworkError, StalledStreamError
from outrider.providers.provider import HttpCall
from outrider.providers.transport.http1 import head
from outrider.providers.transport.http1.body import Body, body_of
from outrider.providers.transport.http1.connection import Connection, let_go
from outrider.providers.transport.http1.dial import default_security, dial
from outrider.providers.transport.http1.head import Head
from outrider.providers.transport.http1.way import Route, Way
from outrider.providers.transport.transport import HttpAnswer, Timeouts
from outrider.providers.transport.watchdog import Watchdog

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

    def _found(self, url: str) -> Way:
        return Way(url, self._proxy(url))

    def _late(self) -> StalledStreamError:
        limit = self.timeouts.first_byte
        return StalledStreamError(f"the provider did not begin to answer within {limit:g} s", type="stalled")

    async def _dialled(self, way: Way) -> Connection:
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
