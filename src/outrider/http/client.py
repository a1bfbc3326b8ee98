"""The HTTP/1.1 client: a connection pool, one request per call, and timeouts on every response; then
redirects, bounded bodies, and the check for public IP addresses."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from time import monotonic
from urllib.parse import urljoin, urlsplit

import msgspec

from outrider.errors import ConfigurationError, NetworkError, StalledStreamError
from outrider.http.connection import (
    AddressFilter,
    HttpConnection,
    IpAddress,
    close_connections,
    open_connection,
    open_unix_connection,
    read_head,
)
from outrider.http.http1 import (
    BodyReader,
    HttpAddress,
    PoolKey,
    RequestTarget,
    ResponseHead,
    create_body_reader,
    load_parser,
)
from outrider.http.transport import HttpRequest, HttpResponse, HttpTimeouts, HttpTransport, ProxySelector

_MIN_RECHECK_SECONDS = 0.01


class ResponseWatchdog:
    """Enforces the timeouts of one response with the timer of its connection.

    A received chunk only updates numbers, which the timer checks when it fires."""

    __slots__ = ("_connection", "_idle", "_max_total", "_next_idle", "_quiet", "_timeouts", "_total", "_waiting_since")

    def __init__(self, timeouts: HttpTimeouts, connection: HttpConnection, *, has_body: bool) -> None:
        self._timeouts = timeouts
        self._connection: HttpConnection | None = connection  # None after the response, when another request may use it
        self._idle = timeouts.idle if has_body else timeouts.first_byte
        self._next_idle = timeouts.idle
        self._max_total = timeouts.total
        self._total = 0.0
        self._quiet = 0.0  # seconds waited since the last delta
        self._waiting_since = 0.0  # start of the current read; 0 while the reader does not wait
        connection.timer.set(self._shortest_limit(), self._check_limits)

    def start_wait(self) -> None:
        self._waiting_since = monotonic()

    def mark_progress(self) -> None:
        self._quiet = 0.0

    def end_wait(self) -> None:
        waited = monotonic() - self._waiting_since
        self._waiting_since = 0.0
        self._quiet += waited
        self._total += waited
        self._idle = self._next_idle

    def expect_end(self) -> None:
        self._idle = self._next_idle = min(self._next_idle, self._timeouts.closing)
        self._check_limits()

    def limit_remaining(self, seconds: float) -> None:
        self._max_total = min(self._max_total, self._total + seconds)
        self._check_limits()

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.timer.clear()
            self._connection = None

    def _shortest_limit(self) -> float:
        return min(self._idle, self._next_idle, self._timeouts.quiet, self._max_total - self._total)

    def _check_limits(self) -> None:
        if self._connection is None:
            return
        seconds, problem = (
            self._time_left() if self._waiting_since else (max(self._shortest_limit(), _MIN_RECHECK_SECONDS), "")
        )
        if seconds > 0:
            self._connection.timer.set(seconds, self._check_limits)
        else:
            self._connection.fail(StalledStreamError(problem, type="stalled"))

    def _time_left(self) -> tuple[float, str]:
        """Returns the seconds until the first timeout, and its error message."""
        waited = monotonic() - self._waiting_since
        quiet, max_total = self._timeouts.quiet, self._max_total
        return min(
            (self._idle - waited, f"the server sent nothing for {self._idle:g} s"),
            (quiet - self._quiet - waited, f"the server sent only keep-alives for {quiet:g} s"),
            (max_total - self._total - waited, f"the answer was not complete after {max_total:g} s"),
        )


_IDLE_CONNECTION_SECONDS = 60.0
_MAX_CACHED_TARGETS = 64  # a conversation sends all requests to one URL


class HttpClient:
    """Sends requests over pooled connections.

    It does not follow redirects, because an API key must not reach another host; `send_with_redirects` does.

    - `timeouts`: the timeouts of every request.
    - `proxy`: selects the proxy per URL.
    - `is_allowed`: decides on each resolved IP address before a connection to it is opened. It excludes a proxy, which
      would resolve the name again.
    - `max_body_bytes`: for callers that cut long bodies.
    - `unix_socket`: all connections go to this socket, whatever the URL says.
    """

    def __init__(
        self,
        timeouts: HttpTimeouts | None = None,
        *,
        proxy: ProxySelector | None = None,
        is_allowed: AddressFilter | None = None,
        max_body_bytes: int | None = None,
        unix_socket: Path | None = None,
    ) -> None:
        if proxy is not None and is_allowed is not None:
            raise ConfigurationError("a client that checks IP addresses connects directly; configure no proxy for it")
        self.timeouts = timeouts or HttpTimeouts()
        self._proxy = proxy or _no_proxy
        self._is_allowed = is_allowed
        self._max_body_bytes = max_body_bytes
        self._unix_socket = unix_socket
        self._get_target = lru_cache(maxsize=_MAX_CACHED_TARGETS)(self._create_target)
        self._idle: dict[PoolKey, list[tuple[float, HttpConnection]]] = {}
        self._busy: set[HttpConnection] = set()

    async def send(self, request: HttpRequest) -> HttpResponse:
        target = self._get_target(request.url)
        encoded = target.encode_request(request)
        connection = self._take_idle(target.pool_key) or await self._open_connection(target)
        self._busy.add(connection)
        timeouts = self.timeouts.scaled_for(request)
        try:
            connection.timer.set(timeouts.first_byte, lambda: connection.fail(_first_byte_timeout(timeouts.first_byte)))
            await connection.send(encoded)
            load_parser()  # import it while the server prepares the response
            head, first = await read_head(connection)
            body = create_body_reader(head, method=request.method, max_bytes=self._max_body_bytes)
        except BaseException:
            self.drop_connection(connection)
            raise
        return _SocketResponse(self, target.pool_key, connection, head, body, first, timeouts)

    async def aclose(self) -> None:
        connections = [connection for idle in self._idle.values() for _, connection in idle] + list(self._busy)
        self._idle.clear()
        self._busy.clear()
        await close_connections(connections)

    def _create_target(self, url: str) -> RequestTarget:
        return RequestTarget(url, self._proxy(url))

    async def _open_connection(self, target: RequestTarget) -> HttpConnection:
        try:
            async with asyncio.timeout(self.timeouts.connect):
                if self._unix_socket is not None:
                    return await open_unix_connection(self._unix_socket)
                return await open_connection(target.address, target.proxy, is_allowed=self._is_allowed)
        except TimeoutError:
            limit = self.timeouts.connect
            host = target.address.authority_with_port
            raise NetworkError(f"no connection to {host} within {limit:g} s", type="connect") from None

    def _take_idle(self, pool_key: PoolKey) -> HttpConnection | None:
        """Takes the most recently used idle connection, which is the most likely one to be still open."""
        idle = self._idle.get(pool_key, [])
        while idle:
            since, connection = idle.pop()
            if connection.is_reusable and monotonic() - since < _IDLE_CONNECTION_SECONDS:
                return connection
            connection.abort()
        return None

    def release_connection(self, pool_key: PoolKey, connection: HttpConnection) -> None:
        """Returns a connection to the pool, unless the client was closed meanwhile."""
        if connection in self._busy:
            self._busy.discard(connection)
            self._idle.setdefault(pool_key, []).append((monotonic(), connection))

    def drop_connection(self, connection: HttpConnection) -> None:
        self._busy.discard(connection)
        connection.abort()


class _SocketResponse:
    __slots__ = (
        "_body",
        "_client",
        "_connection",
        "_failure",
        "_first",
        "_pool_key",
        "_reuse",
        "_watchdog",
        "headers",
        "status",
    )

    def __init__(
        self,
        client: HttpClient,
        pool_key: PoolKey,
        connection: HttpConnection,
        head: ResponseHead,
        body: BodyReader,
        first: bytes,
        timeouts: HttpTimeouts,
    ) -> None:
        self.status = head.status
        self.headers = head.headers
        self._client = client
        self._pool_key = pool_key
        self._connection: HttpConnection | None = connection
        self._body = body
        self._reuse = head.keeps_alive
        self._first = first
        self._failure: Exception | None = None
        self._watchdog = ResponseWatchdog(timeouts, connection, has_body=bool(first))
        if body.ended:
            self._end_body()

    async def read(self) -> bytes:
        while self._connection is not None:
            chunk = await self._read_chunk(self._connection)
            if chunk:
                return chunk
        if self._failure is not None:
            raise self._failure
        return b""

    def mark_progress(self) -> None:
        self._watchdog.mark_progress()

    def expect_end(self) -> None:
        self._watchdog.expect_end()

    def limit_remaining(self, seconds: float) -> None:
        self._watchdog.limit_remaining(seconds)

    def close(self) -> None:
        self._watchdog.stop()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._client.drop_connection(connection)

    async def _read_chunk(self, connection: HttpConnection) -> bytes:
        """Returns decoded body bytes, perhaps b"" although the body continues; releases the connection at its end."""
        try:
            data = self._first or await self._receive(connection)
            self._first = b""
            chunk = self._body.feed(data) if data else b""
        except NetworkError as error:
            return self._fail(error)
        if not data or self._body.ended:
            self._end_body(disconnected=not data)
        return chunk

    def _fail(self, failure: NetworkError) -> bytes:
        """Stores the failure; `read` raises it after all body bytes received before it."""
        self._failure = failure
        self.close()
        return b""

    async def _receive(self, connection: HttpConnection) -> bytes:
        self._watchdog.start_wait()
        try:
            return await connection.receive()
        finally:
            self._watchdog.end_wait()

    def _end_body(self, *, disconnected: bool = False) -> None:
        self._watchdog.stop()
        try:
            self._body.close()
        except NetworkError as error:
            self._fail(error)
            return
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if (
            self._reuse
            and not disconnected
            and not self._body.has_surplus
            and not self._first
            and connection.is_reusable
        ):
            self._client.release_connection(self._pool_key, connection)
        else:
            self._client.drop_connection(connection)


def _first_byte_timeout(limit: float) -> StalledStreamError:
    return StalledStreamError(f"the server sent no response within {limit:g} s", type="stalled")


def _no_proxy(url: str) -> None:
    return None


REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
COMPRESSED = "gzip, deflate"
"""The Accept-Encoding of requests whose response need not arrive event by event."""

# Another origin gets only headers that cannot contain a credential; API keys have many header names.
_HEADERS_FOR_OTHER_ORIGINS = frozenset({"accept", "accept-encoding", "accept-language", "range", "user-agent"})
_BODY_HEADERS = frozenset({"content-encoding", "content-type"})

FollowRule = Callable[[str, str], bool]
"""Returns whether a redirect from the first URL to the second one is followed."""


def is_no_downgrade(url: str, target: str) -> bool:
    """Returns whether a redirect stays on https if it starts there; the rule for most requests."""
    return HttpAddress.parse(target).is_secure or not HttpAddress.parse(url).is_secure


async def send_with_redirects(
    client: HttpTransport, request: HttpRequest, *, max_redirects: int, may_follow: FollowRule = is_no_downgrade
) -> tuple[HttpResponse, str]:
    """Sends a request, follows redirects, and returns the last response with its URL.

    Credentials are not sent to another origin. A redirect that the rule rejects is returned as the response. Raises
    NetworkError after too many redirects.
    """
    for _ in range(max_redirects + 1):
        response = await client.send(request)
        target = redirect_target(response, request.url)
        try:
            follows = target is not None and may_follow(request.url, target)
        except BaseException:
            response.close()
            raise
        if target is None or not follows:
            return response, request.url
        response.close()
        request = redirected_request(request, response.status, target)
    raise NetworkError(f"more than {max_redirects} redirects, the last one to {request.url}", type="redirects")


def redirect_target(response: HttpResponse, url: str) -> str | None:
    """Returns the absolute URL of a redirect, None for another response. The URL may have any scheme."""
    location = response.headers.get("location") if response.status in REDIRECT_STATUSES else None
    return urljoin(url, location) if location else None


def redirected_request(request: HttpRequest, status: int, target: str) -> HttpRequest:
    """Returns the request for the target of a redirect: without credentials if the origin differs, and as GET where
    browsers do so (RFC 9110, 15.4)."""
    headers = {name: value for name, value in request.headers.items() if not name.lower().startswith("proxy-")}
    if not _same_origin(HttpAddress.parse(request.url), HttpAddress.parse(target)):
        forwarded_names = _HEADERS_FOR_OTHER_ORIGINS | (_BODY_HEADERS if request.body else frozenset[str]())
        headers = {name: value for name, value in headers.items() if name.lower() in forwarded_names}
    if request.method != "HEAD" and (status == 303 or (status in (301, 302) and request.method == "POST")):
        headers = {name: value for name, value in headers.items() if name.lower() not in _BODY_HEADERS}
        return HttpRequest(target, headers, method="GET")
    return msgspec.structs.replace(request, url=target, headers=headers)


def _same_origin(address: HttpAddress, other: HttpAddress) -> bool:
    return (address.scheme, address.host, address.port) == (other.scheme, other.host, other.port)


async def read_body(response: HttpResponse, max_bytes: int) -> tuple[bytes, bool]:
    """Returns the body, cut at `max_bytes`, and whether it is longer than that. Closes the response."""
    body = bytearray()
    try:
        while len(body) <= max_bytes and (chunk := await response.read()):
            body += chunk
    finally:
        response.close()
    return bytes(body[:max_bytes]), len(body) > max_bytes


async def send_single_request(
    request: HttpRequest, *, seconds: float, max_bytes: int, proxy: ProxySelector | None = None
) -> tuple[int, bytes]:
    """Sends one request on a separate connection, and returns the status and at most `max_bytes` of the body.
    `proxy` is not used for a server on this machine. Redirects are not followed. Raises NetworkError, or TimeoutError
    after `seconds`."""
    selector = None if is_loopback(urlsplit(request.url).hostname or "") else proxy
    async with asyncio.timeout(seconds), aclosing(HttpClient(proxy=selector)) as client:
        response = await client.send(request)
        body, _ = await read_body(response, max_bytes)
    return response.status, body


def is_loopback(host: str) -> bool:
    """Returns whether a host is `localhost` or a loopback address. Other names are not resolved."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))


def is_public(address: IpAddress) -> bool:
    """Returns True for a public address. Checks an IPv4 address that is embedded in an IPv6 address, too."""
    if isinstance(address, IPv6Address):
        inner = _embedded_ipv4(address)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def is_other_machine(address: IpAddress) -> bool:
    """Returns True for an address that is neither this machine's nor link-local, as cloud metadata services are.
    This includes private networks."""
    inner = _embedded_ipv4(address) if isinstance(address, IPv6Address) else None
    if inner is not None:
        return is_other_machine(inner)
    return not (address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified)


def _embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in _NAT64):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None
