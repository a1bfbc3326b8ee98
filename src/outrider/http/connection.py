"""One HTTP connection: open it (TCP, proxy tunnel, TLS), write with backpressure, read into a bounded buffer."""

import asyncio
import errno
import os
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, cast

from outrider.errors import NetworkError
from outrider.http.http1 import HttpAddress, ResponseHead, encode_head, find_head_end, parse_head


class RestartableTimer:
    """A timer that is cheap to restart for every received chunk.

    Moving the deadline to a later time only stores a number. The event loop's timer fires at the old deadline and then
    reschedules itself.
    """

    __slots__ = ("_callback", "_deadline", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._deadline = 0.0
        self._callback: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float, callback: Callable[[], None]) -> None:
        """Calls `callback` after this many seconds; replaces the earlier deadline and callback."""
        self._deadline, self._callback = self._loop.time() + seconds, callback
        if self._timer is not None and self._deadline < self._timer.when():
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._on_timer)

    def clear(self) -> None:
        """Removes the callback. The event loop's timer stays scheduled and then does nothing."""
        self._callback = None

    def close(self) -> None:
        self._callback = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        timer, self._timer = self._timer, None
        callback = self._callback
        if callback is None or timer is None:
            return
        if self._deadline > timer.when():  # the deadline was moved meanwhile
            self._timer = self._loop.call_at(self._deadline, self._on_timer)
            return
        self._callback = None
        callback()


MAX_BUFFERED_BYTES = 256 * 1024  # unread bytes above which reading from the socket is paused
_WRITE_CHUNK_BYTES = 256 * 1024


class HttpConnection(asyncio.Protocol):
    """A connection with one reader at a time. The reader gets all bytes received before a failure, then the failure."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received: list[bytes] = []
        self._received_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Event | None = None  # set while the transport accepts no more data
        self._paused = False
        self._at_eof = False  # the peer sends no more bytes
        self._failure: Exception | None = None
        self.closed = self._loop.create_future()
        self.timer = RestartableTimer(self._loop)

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent: the connection is open and no unexpected bytes arrived."""
        return not (self._at_eof or self._failure or self._received or self.transport.is_closing())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received.append(data)
        self._received_bytes += len(data)
        if self._received_bytes > MAX_BUFFERED_BYTES and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._wake_reader()

    def eof_received(self) -> bool:
        self._at_eof = True
        self._wake_reader()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._at_eof = True
        if exc is not None and self._failure is None:
            self._failure = NetworkError(f"the connection broke: {exc}", type="disconnected")
        if not self.closed.done():
            self.closed.set_result(None)
        self.timer.close()
        self.resume_writing()
        self._wake_reader()

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def fail(self, failure: Exception) -> None:
        """Makes `receive` raise this after the bytes already received, and unblocks a waiting `send`."""
        self._failure = self._failure or failure
        self.resume_writing()
        self._wake_reader()

    async def send(self, data: bytes) -> None:
        """Writes the data and waits until the kernel buffer accepts it.

        Returns early, without an error, when the server closes the connection: it may have sent a response already.
        """
        if len(data) <= _WRITE_CHUNK_BYTES:
            self.transport.write(data)
            return
        view = memoryview(data)
        for start in range(0, len(view), _WRITE_CHUNK_BYTES):
            if self._at_eof or self._failure:
                return
            self.transport.write(view[start : start + _WRITE_CHUNK_BYTES])
            if self._writable is not None:
                await self._writable.wait()

    async def receive(self) -> bytes:
        """Waits for data and returns all that was received; b"" at the end of the stream."""
        if not self._received:
            await self._wait_for_data()
        if self._received:
            data = self._received[0] if len(self._received) == 1 else b"".join(self._received)
            self._received.clear()
            self._received_bytes = 0
            if self._paused:
                self._paused = False
                self.transport.resume_reading()
            return data
        if self._failure is not None:
            raise self._failure
        return b""

    def abort(self) -> None:
        """Closes the socket immediately; a TLS shutdown would wait for the peer."""
        self.timer.close()
        if self._transport is not None and not self.closed.done():
            self._transport.abort()

    def set_transport(self, transport: asyncio.Transport) -> None:
        """Replaces the transport after `start_tls`, which encrypts the same socket."""
        self._transport = transport

    async def _wait_for_data(self) -> None:
        while not (self._received or self._at_eof or self._failure):
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _wake_reader(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def close_connections(connections: list[HttpConnection]) -> None:
    """Aborts the connections and waits up to one second until the event loop has closed them."""
    for connection in connections:
        connection.abort()
    if connections:
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.wait([connection.closed for connection in connections])


async def read_head(connection: HttpConnection) -> tuple[ResponseHead, bytes]:
    """Reads the response head and returns it with the body bytes that followed; skips 1xx responses."""
    data = bytearray()
    while True:
        while (end := find_head_end(data)) < 0:
            chunk = await connection.receive()
            if not chunk:
                raise NetworkError("the server closed the connection without a response", type="disconnected")
            data += chunk
        head = parse_head(bytes(data[:end]))
        del data[:end]
        if head.status >= 200 or head.status == 101:
            return head, bytes(data)


HAPPY_EYEBALLS_SECONDS = 0.25  # RFC 8305: start the next address in parallel after this delay
_ADDRESS_SECONDS = 5.0  # for one of several IP addresses that are tried one after the other
_KEEPALIVE_OPTIONS = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


IpAddress = IPv4Address | IPv6Address
AddressFilter = Callable[[IpAddress], bool]
"""Returns whether a connection to this resolved IP address may be opened."""


class AddressRefusedError(NetworkError):
    """The address filter rejected all IP addresses of the host; `address` is one of them."""

    retryable = False

    def __init__(self, host: str, address: str) -> None:
        super().__init__(f"{host} resolves to {address}, which is not an allowed address", type="refused")
        self.address = address


async def open_connection(
    address: HttpAddress, proxy: HttpAddress | None = None, *, is_allowed: AddressFilter | None = None
) -> HttpConnection:
    """Opens a connection to the address, through the proxy if one is given. Raises NetworkError with the cause.

    `is_allowed` decides on the resolved IP addresses of a direct connection. The connection is opened to the checked
    IP address, so that a name which resolves differently a moment later (DNS rebinding) has no effect.
    """
    connection = await _connect_socket(proxy or address, None if proxy else is_allowed)
    try:
        if proxy is not None and address.is_secure:
            await _open_tunnel(connection, address, proxy)
            await _start_tls(connection, address, default_ssl_context())
    except BaseException:
        connection.abort()
        raise
    return connection


async def open_unix_connection(path: Path) -> HttpConnection:
    """Opens a connection to a Unix socket. Raises NetworkError with the cause."""
    try:
        _, connection = await asyncio.get_running_loop().create_unix_connection(HttpConnection, str(path))
    except OSError as error:
        raise NetworkError(f"no connection to {path}: {_connect_error_text(error)}", type="connect") from None
    return connection


async def _connect_socket(address: HttpAddress, is_allowed: AddressFilter | None) -> HttpConnection:
    loop = asyncio.get_running_loop()
    context = default_ssl_context() if address.is_secure else None
    server_name = address.host if address.is_secure else None
    try:
        if is_allowed is None:
            _, connection = await loop.create_connection(
                HttpConnection,
                address.host,
                address.port,
                ssl=context,
                server_hostname=server_name,
                happy_eyeballs_delay=_happy_eyeballs_delay(loop),
            )
        else:
            sock = await _connect_to_allowed(loop, address, is_allowed)
            _, connection = await loop.create_connection(
                HttpConnection, sock=sock, ssl=context, server_hostname=server_name
            )
    except ssl.SSLCertVerificationError as error:
        raise certificate_error(address, error) from None
    except ssl.SSLError as error:
        raise NetworkError(
            f"no secure connection to {address.authority_with_port}: {_error_text(error)}", type="connect"
        ) from None
    except socket.gaierror:
        raise NetworkError(f"the host name {address.host} cannot be resolved", type="connect") from None
    except OSError as error:
        raise NetworkError(
            f"no connection to {address.authority_with_port}: {_connect_error_text(error)}", type="connect"
        ) from None
    _enable_keepalive(connection)
    return connection


async def _connect_to_allowed(
    loop: asyncio.AbstractEventLoop, address: HttpAddress, is_allowed: AddressFilter
) -> socket.socket:
    """Connects to the first IP address that is allowed and accepts. Raises AddressRefusedError if none is allowed."""
    try:
        address_infos = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except ValueError as error:  # characters that no host name has
        raise NetworkError(f"the host name {address.host!r} is not valid", type="connect") from error
    allowed = [info for info in address_infos if is_allowed(_ip_address(info[4]))]
    if not allowed:
        raise AddressRefusedError(address.host, str(_ip_address(address_infos[0][4])))
    for family, kind, protocol, _, socket_address in allowed[:-1]:
        with suppress(OSError):  # includes TimeoutError
            async with asyncio.timeout(_ADDRESS_SECONDS):
                return await _open_socket(loop, (family, kind, protocol), socket_address)
    family, kind, protocol, _, socket_address = allowed[-1]
    return await _open_socket(loop, (family, kind, protocol), socket_address)


async def _open_socket(
    loop: asyncio.AbstractEventLoop, kind: tuple[int, int, int], socket_address: tuple[Any, ...]
) -> socket.socket:
    sock = socket.socket(*kind)
    try:
        sock.settimeout(0)  # asyncio requires a non-blocking socket
        await loop.sock_connect(sock, socket_address)
    except BaseException:
        sock.close()
        raise
    return sock


def _ip_address(socket_address: tuple[Any, ...]) -> IpAddress:
    return ip_address(str(socket_address[0]).partition("%")[0])


def _happy_eyeballs_delay(loop: asyncio.AbstractEventLoop) -> float | None:
    """Returns None where addresses must be tried one after the other.

    With eager tasks, which terminal applications use, happy eyeballs fails before Python 3.12.8 and in 3.13.0
    (python/cpython#124309).
    """
    races = sys.version_info >= (3, 13, 1) or (3, 12, 8) <= sys.version_info < (3, 13)
    return HAPPY_EYEBALLS_SECONDS if races or loop.get_task_factory() is None else None


async def _open_tunnel(connection: HttpConnection, address: HttpAddress, proxy: HttpAddress) -> None:
    headers = {"host": address.authority_with_port}
    if proxy.credentials:
        headers["proxy-authorization"] = proxy.credentials
    await connection.send(encode_head("CONNECT", address.authority_with_port, headers))
    try:
        response, _ = await read_head(connection)
    except NetworkError as error:
        raise NetworkError(f"the proxy {proxy.authority}: {error.message}", type="connect") from error
    if response.status // 100 != 2:
        raise NetworkError(
            f"the proxy {proxy.authority} rejected the CONNECT request with status {response.status}", type="connect"
        )


async def _start_tls(connection: HttpConnection, address: HttpAddress, context: ssl.SSLContext) -> None:
    loop = asyncio.get_running_loop()
    try:
        tls_transport = await loop.start_tls(connection.transport, connection, context, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        raise certificate_error(address, error) from None
    except OSError as error:
        raise NetworkError(
            f"no secure connection to {address.authority_with_port}: {_error_text(error)}", type="connect"
        ) from None
    if tls_transport is None:
        raise NetworkError(f"no secure connection to {address.authority_with_port}: it was closed", type="connect")
    connection.set_transport(tls_transport)


def default_ssl_context() -> ssl.SSLContext:
    """Returns the TLS context of the process, which trusts the system's certificates, or those of SSL_CERT_FILE."""
    return _create_ssl_context(ssl.get_default_verify_paths())


@lru_cache(maxsize=2)  # loading the system's certificates takes longer than most requests
def _create_ssl_context(_certificates: ssl.DefaultVerifyPaths) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def certificate_error(address: HttpAddress, error: ssl.SSLCertVerificationError) -> NetworkError:
    failure = NetworkError(
        f"the certificate of {address.authority_with_port} is not trusted "
        f"({error.verify_message or _error_text(error)}). "
        "If a company proxy inspects the traffic, set SSL_CERT_FILE to the path of its certificate",
        type="certificate",
    )
    failure.retryable = False  # a second attempt meets the same certificate
    return failure


def _enable_keepalive(connection: HttpConnection) -> None:
    """Enables TCP keep-alive, so that a vanished peer is detected within about a minute."""
    sock = connection.transport.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE_OPTIONS:
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _connect_error_text(error: OSError) -> str:
    """Returns the cause of a failed connection. The messages of asyncio repeat the addresses instead, and join several
    errors to one string."""
    number = error.errno or 0
    if not number and "[Errno " in str(error):
        number = int(str(error).partition("[Errno ")[2].partition("]")[0])
    if number == errno.ECONNREFUSED:
        return "connection refused; start the server or correct its address"
    return os.strerror(number) if number > 0 else _error_text(error)


def _error_text(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
