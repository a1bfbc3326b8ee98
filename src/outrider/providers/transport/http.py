"""One POST over HTTP: sent within limits, read as its bytes arrive, cut when it goes silent."""

import asyncio
import io
import socket
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from outrider.errors import ConfigurationError, NetworkError, StalledStreamError
from outrider.providers.provider import HttpCall
from outrider.providers.transport.transport import HttpAnswer, Timeouts
from outrider.providers.transport.watchdog import Watchdog

if TYPE_CHECKING:
    import aiohttp

_LARGE_BODY = 1024 * 1024
_IDLE_CONNECTION_SECONDS = 60.0
_READ_BUFFER = 256 * 1024

ProxyChoice = Callable[[str], str | None]
"""The proxy for an address, or None for the direct way."""


class HttpClient:
    """Connections to one provider, opened by the first call. Redirects are not followed: a key stays home."""

    def __init__(self, timeouts: Timeouts | None = None, *, proxy: ProxyChoice | None = None) -> None:
        self.timeouts = timeouts or Timeouts()
        self._proxy = cache(proxy) if proxy else _no_proxy
        self._session: aiohttp.ClientSession | None = None

    async def send(self, call: HttpCall) -> HttpAnswer:
        import aiohttp

        session = self._session or self._open()
        body = call.body if len(call.body) <= _LARGE_BODY else io.BytesIO(call.body)
        limit = self.timeouts.first_byte
        try:
            async with asyncio.timeout(limit):
                response = await session.post(
                    call.url,
                    data=body,
                    headers=call.headers,
                    allow_redirects=False,
                    proxy=self._proxy(call.url),
                )
        except (aiohttp.ClientError, OSError) as error:
            failure = _network_error(error, limit)
        else:
            return _Answer(response, self.timeouts)
        raise failure  # here, without its cause: the library's error holds the headers, and so the key

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> "aiohttp.ClientSession":
        import aiohttp

        connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=_IDLE_CONNECTION_SECONDS, socket_factory=_open_socket
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=self.timeouts.connect),
            headers={"accept-encoding": "identity"},  # a compressing proxy would hold events back
            read_bufsize=_READ_BUFFER,
        )
        return self._session


class _Answer:
    __slots__ = ("_content", "_failure", "_response", "_watchdog", "headers", "status")

    def __init__(self, response: "aiohttp.ClientResponse", timeouts: Timeouts) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._content = response.content
        self._failure: Exception | None = None
        self._watchdog = Watchdog(timeouts, self._content.set_exception)

    async def read(self) -> bytes:
        if self._failure is not None:
            raise self._failure
        self._watchdog.wait()
        try:
            return await self._content.readany()
        except Exception as error:  # noqa: BLE001 - whatever the library raises, the connection is broken
            return self._broken(error)
        finally:
            self._watchdog.heard()

    def progress(self) -> None:
        self._watchdog.progress()

    def hurry(self, seconds: float) -> None:
        self._watchdog.hurry(seconds)

    def close(self) -> None:
        self._watchdog.stop()
        connection = self._response.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()  # a polite TLS goodbye could take the peer's time
        self._response.close()

    def _broken(self, error: Exception) -> bytes:
        """What arrived before the break and was not read yet is still given out, the failure after it."""
        failure = error if isinstance(error, NetworkError) else _network_error(error, None)
        buffered: Any = getattr(self._content, "_buffer", ())  # the library offers no way to it after a failure
        left = b"".join(buffered)
        if not left:
            raise failure from (None if failure is error else error)
        buffered.clear()
        self._failure = failure
        return left


def _no_proxy(url: str) -> None:
    return None


def _open_socket(address: Any) -> socket.socket:
    """Notices within about a minute that the other side is gone, where the system allows to ask for it."""
    family, kind, protocol, _, _ = address
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return opened


def _network_error(error: Exception, limit: float | None) -> Exception:
    import aiohttp

    match error:
        case aiohttp.ClientConnectorCertificateError():
            return _untrusted(f"{error.host}:{error.port}", str(error.certificate_error))
        case aiohttp.ClientConnectorDNSError():
            return NetworkError(f"the host {error.host} is not known", type="connect")
        case aiohttp.ClientConnectorError():
            return NetworkError(f"no connection to {error.host}:{error.port}: {error.os_error}", type="connect")
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            address = str(error).partition("?")[0]
            return ConfigurationError(f"not an address that can be called: {address}")
        case aiohttp.ConnectionTimeoutError():
            return NetworkError("the provider did not accept a connection in time", type="connect")
        case TimeoutError():
            return StalledStreamError(f"the provider did not begin to answer within {limit:g} s", type="stalled")
        case aiohttp.ServerDisconnectedError():
            return NetworkError("the provider closed the connection without an answer", type="disconnected")
        case _:
            return NetworkError(f"the connection broke: {error or type(error).__name__}", type="disconnected")


def _untrusted(host: str, reason: str) -> NetworkError:
    error = NetworkError(
        f"the certificate of {host} is not trusted ({reason}). Where a company proxy reads the traffic, point "
        "SSL_CERT_FILE to its certificate",
        type="certificate",
    )
    error.retryable = False  # it will not be trusted the next time either
    return error
