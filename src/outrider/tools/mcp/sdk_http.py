"""HTTP transports of the SDK, with limits on response size and rate, and with secrets removed from log records."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from outrider.errors import ConfigurationError, NetworkError, StalledStreamError
from outrider.http.client import HttpClient, is_other_machine, is_public
from outrider.http.connection import AddressFilter
from outrider.http.http1 import HttpAddress, HttpHeaders
from outrider.http.transport import HttpRequest, HttpResponse, HttpTimeouts, ProxySelector
from outrider.tools.mcp.config import HIDDEN_SECRET, HttpServer, ServerLimits, hide_secrets
from outrider.tools.mcp.connection import ConnectionLifetime, ConnectionListener, McpHost
from outrider.tools.mcp.sdk_stdio import TokenBucket

if TYPE_CHECKING:
    from outrider.tools.mcp.sdk_oauth import ServerAuth

CONNECT_TIMEOUT = 10.0  # seconds
REVOCATION_SECONDS = 5.0  # for an authorization server to revoke the tokens of a login
_OK = 200
_LOGGERS_WITH_URLS = ("httpx2", "mcp.client.streamable_http", "mcp.client.sse")
READ_TIMEOUT_MARGIN = 30.0  # seconds added to the call limit before an idle connection times out


@asynccontextmanager
async def http_transport(config: HttpServer, host: McpHost, life: ConnectionLifetime) -> AsyncGenerator[Any, None]:
    auth = _make_auth(config, host, life)
    client, limits = _BoundedClientFactory(config, host, life, auth), host.limits
    with _quiet_logs(config, auth):
        if config.transport == "sse":
            patience = limits.call + READ_TIMEOUT_MARGIN
            async with sse_client(
                config.url, httpx_client_factory=client.make_client, sse_read_timeout=patience
            ) as streams:
                yield streams
            return
        async with (
            client.make_client() as http,
            streamable_http_client(config.url, http_client=http, max_sse_event_size=limits.message) as streams,
        ):
            yield streams


def _make_auth(config: HttpServer, host: McpHost, life: ConnectionLifetime) -> "ServerAuth | None":
    """Returns the login of a server that has none in its configuration."""
    if host.logins is None or any(name.lower() == "authorization" for name in config.headers):
        return None
    from outrider.tools.mcp.sdk_oauth import ServerAuth

    def report(problem: str, affected: Literal["server", "call"]) -> None:
        life.last_problem = problem
        if affected == "server":
            life.login_problem = problem

    return ServerAuth(config, host.logins, report=report, redirect=host.redirect)


async def end_login(config: HttpServer, host: McpHost) -> str:
    """Deletes the login at a server and revokes its tokens at the authorization server. Returns why they were not
    revoked, or "". The login is deleted in any case."""
    life = ConnectionLifetime(_UNUSED_LISTENER)
    auth, logins = _make_auth(config, host, life), host.logins
    if auth is None or logins is None:
        return "the server has no login"
    problem = "the authorization server has no address for that"
    requests: list[httpx2.Request] = []
    try:
        requests = auth.revocation_requests()
    except OAuthFlowError as error:
        problem = str(error)
    with _quiet_logs(config, auth):
        logins.write_login(config.url, None)
        if not requests:
            return problem
        try:
            async with asyncio.timeout(REVOCATION_SECONDS):
                return await _send_revocations(requests, _BoundedClientFactory(config, host, life, None).make_client())
        except TimeoutError:
            return f"the authorization server did not answer within {REVOCATION_SECONDS:g} s"
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            return str(error)


async def _ignore(*_: object) -> None:
    """Does nothing: a connection that only ends a login has no listener."""


_UNUSED_LISTENER = ConnectionListener(_ignore, lambda: None, lambda _: None, lambda _: None)


async def _send_revocations(requests: Sequence[httpx2.Request], client: httpx2.AsyncClient) -> str:
    """Returns why a token was not revoked. A server may be unable to revoke access tokens, which end soon."""
    async with client:
        for number, request in enumerate(requests):
            response = await client.send(request)
            is_refused_kind = number > 0 and b"unsupported_token_type" in response.content
            if response.status_code != _OK and not is_refused_kind:
                return f"the authorization server answered {response.status_code} {response.reason_phrase}".strip()
    return ""


@contextmanager
def _quiet_logs(config: HttpServer, auth: "ServerAuth | None") -> Generator[None]:
    """Removes secrets from log records: the SDK and its HTTP library log URLs, which may contain a key."""

    def without_keys(record: logging.LogRecord) -> bool:
        text = hide_secrets(record.getMessage(), config)
        for secret in auth.secret_values() if auth else ():
            text = text.replace(secret, HIDDEN_SECRET)
        record.msg, record.args = text, ()
        return True

    loggers = [logging.getLogger(name) for name in _LOGGERS_WITH_URLS]
    for logger in loggers:
        logger.addFilter(without_keys)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(without_keys)


class _BoundedClientFactory:
    """Creates HTTP clients that check and limit each response before it is read."""

    def __init__(self, config: HttpServer, host: McpHost, life: ConnectionLifetime, auth: "ServerAuth | None") -> None:
        self._auth = auth
        self._config = config
        self._limits = host.limits
        self._proxy = host.proxy
        self._life = life

    def make_client(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        """Has the signature that the SDK requires. The parameters `headers` and `timeout` are ignored, because the
        configuration sets them."""
        return httpx2.AsyncClient(
            headers=self._config.headers | {"Accept-Encoding": "identity"},
            transport=HttpClientTransport(self._config.url, self._timeouts(), self._proxy, self._life),
            auth=auth or self._auth,
            event_hooks={"response": [self._bound_response]},
        )

    def _timeouts(self) -> HttpTimeouts:
        # A stream of events may stay open for days; the SDK reconnects after an idle timeout.
        idle = self._limits.call + READ_TIMEOUT_MARGIN
        return HttpTimeouts(connect=CONNECT_TIMEOUT, first_byte=idle, idle=idle, quiet=inf, total=inf)

    async def _bound_response(self, response: httpx2.Response) -> None:
        if response.request.method == "POST" or self._config.transport == "sse":
            refused = f"it answered {response.status_code} {response.reason_phrase}".strip()
            self._life.last_problem = refused if response.status_code >= 400 else ""
        if response.headers.get("content-encoding", "identity") != "identity":
            # A small compressed response can expand to gigabytes.
            await response.aclose()
            raise httpx2.StreamError("the server compressed its answer although it was asked not to")
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        response.stream = _BoundedStream(response.stream, self._limits, None if is_stream else self._limits.message)


class HttpClientTransport(httpx2.AsyncBaseTransport):
    """Sends the requests of the SDK with our client. The SDK's protocol code is tied to the interface of httpx2, but
    not to its connections.

    A request to another origin than the server's is part of a login. The server chose its address, so it must not reach
    a network that is closer to this machine than the server.
    """

    def __init__(
        self, server: str, timeouts: HttpTimeouts, proxy: ProxySelector | None, life: ConnectionLifetime
    ) -> None:
        self._server = HttpAddress.parse(server)
        self._life = life
        self._timeouts = timeouts
        self._proxy = proxy
        self._client = HttpClient(timeouts, proxy=proxy)
        self._login_client: HttpClient | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        http_request = HttpRequest(str(request.url), dict(request.headers.items()), body, request.method)
        try:
            response = await (await self._client_for(http_request.url)).send(http_request)
        except (ConfigurationError, NetworkError) as error:
            if not self._is_server(http_request.url):
                self._life.last_problem = f"the login failed: {error.message}"
            raise _to_httpx_error(error) from error
        headers = response.headers
        pairs = headers.pairs if isinstance(headers, HttpHeaders) else list(headers.items())
        return httpx2.Response(response.status, headers=pairs, stream=_ResponseStream(response))

    async def aclose(self) -> None:
        await self._client.aclose()
        if self._login_client is not None:
            await self._login_client.aclose()

    async def _client_for(self, url: str) -> HttpClient:
        if self._is_server(url):
            return self._client
        if self._server.scheme == "https" and not url.startswith("https://"):
            raise NetworkError(f"the server names {url}, which is not encrypted", type="refused")
        if self._proxy is not None and self._proxy(url) is not None:
            return self._client  # the proxy resolves the name, and decides what can be reached
        if self._login_client is None:
            self._login_client = HttpClient(self._timeouts, is_allowed=await self._find_filter())
        return self._login_client

    def _is_server(self, url: str) -> bool:
        try:
            target = HttpAddress.parse(url)
        except ConfigurationError:
            return False
        return (target.scheme, target.host, target.port) == (self._server.scheme, self._server.host, self._server.port)

    async def _find_filter(self) -> AddressFilter:
        """Returns the filter of IP addresses for requests to other origins."""
        try:
            resolved = await asyncio.get_running_loop().getaddrinfo(self._server.host, self._server.port)
        except (OSError, ValueError):
            return is_public
        addresses = [ip_address(str(info[4][0]).partition("%")[0]) for info in resolved]
        if all(address.is_loopback for address in addresses):
            return lambda address: address.is_loopback or is_other_machine(address)
        return is_public if any(is_public(address) for address in addresses) else is_other_machine


class _ResponseStream(httpx2.AsyncByteStream):
    def __init__(self, response: HttpResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while chunk := await self._response.read():
                yield chunk
        except NetworkError as error:
            raise _to_httpx_error(error) from error

    async def aclose(self) -> None:
        self._response.close()


def _to_httpx_error(error: ConfigurationError | NetworkError) -> httpx2.TransportError:
    """Returns the exception that the SDK expects of its HTTP library."""
    match error:
        case StalledStreamError():
            return httpx2.ReadTimeout(error.message)
        case NetworkError(type="connect" | "certificate"):
            return httpx2.ConnectError(error.message)
        case NetworkError():
            return httpx2.ReadError(error.message)
        case _:
            return httpx2.UnsupportedProtocol(error.message)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, limits: ServerLimits, max_bytes: int | None) -> None:
        self._stream = stream
        self._bytes = TokenBucket(limits.bytes_per_second)
        self._messages = TokenBucket(limits.messages_per_second)
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if self._max_bytes is not None and size > self._max_bytes:
                raise httpx2.StreamError(f"the server's answer is longer than {self._max_bytes:,} bytes")
            await self._bytes.spend(len(chunk))
            await self._messages.spend(chunk.count(b"\n\n") + chunk.count(b"\n\r\n"))
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
