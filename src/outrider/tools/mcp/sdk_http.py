"""HTTP transports of the SDK, with limits on response size and rate, and with secrets removed from log records."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from outrider.errors import ConfigurationError, NetworkError, StalledStreamError
from outrider.http.client import HttpClient
from outrider.http.http1 import HttpHeaders
from outrider.http.transport import HttpRequest, HttpResponse, HttpTimeouts
from outrider.tools.mcp.config import HIDDEN_SECRET, HttpServer, ServerLimits, hide_secrets
from outrider.tools.mcp.connection import ConnectionLifetime, McpHost
from outrider.tools.mcp.sdk_stdio import TokenBucket

if TYPE_CHECKING:
    from outrider.tools.mcp.sdk_oauth import ServerAuth

CONNECT_TIMEOUT = 10.0  # seconds
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
            transport=_HttpClientTransport(HttpClient(self._timeouts(), proxy=self._proxy)),
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


class _HttpClientTransport(httpx2.AsyncBaseTransport):
    """Sends the requests of the SDK with our client. The SDK's protocol code is tied to the interface of httpx2, but
    not to its connections."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        given = HttpRequest(str(request.url), dict(request.headers.items()), body, request.method)
        try:
            response = await self._client.send(given)
        except (ConfigurationError, NetworkError) as error:
            raise _to_httpx_error(error) from error
        headers = response.headers
        pairs = headers.pairs if isinstance(headers, HttpHeaders) else list(headers.items())
        return httpx2.Response(response.status, headers=pairs, stream=_ResponseStream(response))

    async def aclose(self) -> None:
        await self._client.aclose()


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
    def __init__(self, stream: Any, limits: ServerLimits, most: int | None) -> None:
        self._stream = stream
        self._bytes = TokenBucket(limits.bytes_per_second)
        self._messages = TokenBucket(limits.messages_per_second)
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if self._most is not None and size > self._most:
                raise httpx2.StreamError(f"the server's answer is longer than {self._most:,} bytes")
            await self._bytes.spend(len(chunk))
            await self._messages.spend(chunk.count(b"\n\n") + chunk.count(b"\n\r\n"))
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
