"""One connection: bytes out with patience, bytes in as they arrive, within a bound."""

import asyncio
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from outrider.errors import NetworkError
from outrider.providers.transport import http1 as head
from outrider.providers.transport.http1 import Address

if TYPE_CHECKING:
    pass


class RestartableTimer:
    """Set, put off and called off as often as one likes: as long as the moment only gets later, that moves a number,
    and the timer of the event loop stays as it is."""

    __slots__ = ("_due", "_loop", "_ring", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due = 0.0
        self._ring: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float, ring: Callable[[], None]) -> None:
        """`ring` is called then, instead of what was set before."""
        self._due, self._ring = self._loop.time() + seconds, ring
        if self._timer is not None and self._due < self._timer.when():
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._due, self._look)

    def call_off(self) -> None:
        """The timer, if it comes to that, finds nothing to do."""
        self._ring = None

    def close(self) -> None:
        self._ring = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        timer, self._timer = self._timer, None
        ring = self._ring
        if ring is None or timer is None:
            return
        if self._due > timer.when():  # put off meanwhile
            self._timer = self._loop.call_at(self._due, self._look)
            return
        self._ring = None
        ring()


BUFFER = 256 * 1024  # bytes that wait for a reader before the other side is held back
_PIECE = 256 * 1024


class Connection(asyncio.Protocol):
    """Belongs to one reader at a time. What arrived before a failure is given out before it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._arrived: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._paused = False
        self._over = False  # no more bytes will come
        self._failure: Exception | None = None
        self.lost = self._loop.create_future()
        self.alarm = RestartableTimer(self._loop)

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    @property
    def usable(self) -> bool:
        """Whether another call may be sent: nobody hung up, and nothing came that nobody asked for."""
        return not (self._over or self._failure or self._arrived or self.transport.is_closing())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._arrived.append(data)
        self._size += len(data)
        if self._size > BUFFER and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._over = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        if exc is not None and self._failure is None:
            self._failure = NetworkError(f"the connection broke: {exc}", type="disconnected")
        if not self.lost.done():
            self.lost.set_result(None)
        self.alarm.close()
        self._writable.set()
        self._wake()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def fail(self, failure: Exception) -> None:
        """The reader gets this, after what has arrived, and a writer waits no longer."""
        self._failure = self._failure or failure
        self._writable.set()
        self._wake()

    async def send(self, data: bytes) -> None:
        """Returns when the rest is the system's affair. A server that hangs up may have answered already."""
        if len(data) <= _PIECE:
            self.transport.write(data)
            return
        view = memoryview(data)
        for start in range(0, len(view), _PIECE):
            if self._over or self._failure:
                return
            self.transport.write(view[start : start + _PIECE])
            await self._writable.wait()

    async def receive(self) -> bytes:
        """What has arrived; empty at the end."""
        if not self._arrived:
            await self._more()
        if self._arrived:
            data = self._arrived[0] if len(self._arrived) == 1 else b"".join(self._arrived)
            self._arrived.clear()
            self._size = 0
            if self._paused:
                self._paused = False
                self.transport.resume_reading()
            return data
        if self._failure is not None:
            raise self._failure
        return b""

    def abort(self) -> None:
        """At once: a polite goodbye could take the other side's time."""
        self.alarm.close()
        if self._transport is not None and not self.lost.done():
            self._transport.abort()

    def take(self, transport: asyncio.Transport) -> None:
        """Go on over another transport: the same connection, now encrypted."""
        self._transport = transport

    async def _more(self) -> None:
        while not (self._arrived or self._over or self._failure):
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def let_go(connections: list[Connection]) -> None:
    """Abort connections and wait until the event loop has forgotten them."""
    for connection in connections:
        connection.abort()
    if connections:
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.wait([connection.lost for connection in connections])


EYEBALLS = 0.25  # seconds before the next of several addresses is tried as well
_ALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


async def dial(place: Address, proxy: Address | None, security: "Callable[[], ssl.SSLContext]") -> Connection:
    """A connection that is ready for a call to the place. Raises NetworkError that says what is wrong."""
    connection = await _connect(proxy or place, security)
    try:
        if proxy is not None and place.secure:
            await _tunnel(connection, place, proxy)
            await _encrypt(connection, place, security())
    except BaseException:
        connection.abort()
        raise
    return connection


async def _connect(place: Address, security: "Callable[[], ssl.SSLContext]") -> Connection:
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(
            Connection,
            place.host,
            place.port,
            ssl=security() if place.secure else None,
            server_hostname=place.host if place.secure else None,
            happy_eyeballs_delay=_eyeballs(loop),
        )
    except ssl.SSLCertVerificationError as error:
        raise untrusted(place, error) from None
    except ssl.SSLError as error:
        raise NetworkError(
            f"no secure connection to {place.authority_with_port}: {_said(error)}", type="connect"
        ) from None
    except socket.gaierror:
        raise NetworkError(f"the host {place.host} is not known", type="connect") from None
    except OSError as error:
        raise NetworkError(f"no connection to {place.authority_with_port}: {_said(error)}", type="connect") from None
    _notice_silence(connection)
    return connection


def _eyeballs(loop: asyncio.AbstractEventLoop) -> float | None:
    """None where the addresses can only be tried one after the other: with eager tasks, which terminal applications
    use, the race fails before Python 3.12.8 and in 3.13.0 (python/cpython#124309)."""
    races = sys.version_info >= (3, 13, 1) or (3, 12, 8) <= sys.version_info < (3, 13)
    return EYEBALLS if races or loop.get_task_factory() is None else None


async def _tunnel(connection: Connection, place: Address, proxy: Address) -> None:
    named = {"host": place.authority_with_port}
    if proxy.credentials:
        named["proxy-authorization"] = proxy.credentials
    await connection.send(head.written("CONNECT", place.authority_with_port, named))
    data = bytearray()
    while (end := head.end_of(data)) < 0:
        piece = await connection.receive()
        if not piece:
            raise NetworkError("the proxy closed the connection without an answer", type="connect")
        data += piece
    answer = head.read(bytes(data[:end]))
    if answer.status // 100 != 2:
        raise NetworkError(f"the proxy {proxy.authority} refuses the connection ({answer.status})", type="connect")


async def _encrypt(connection: Connection, place: Address, context: ssl.SSLContext) -> None:
    loop = asyncio.get_running_loop()
    try:
        secured = await loop.start_tls(connection.transport, connection, context, server_hostname=place.host)
    except ssl.SSLCertVerificationError as error:
        raise untrusted(place, error) from None
    except OSError as error:
        raise NetworkError(
            f"no secure connection to {place.authority_with_port}: {_said(error)}", type="connect"
        ) from None
    if secured is None:
        raise NetworkError(f"no secure connection to {place.authority_with_port}: it was closed", type="connect")
    connection.take(secured)


def default_security() -> ssl.SSLContext:
    """The system's certificates, or those that SSL_CERT_FILE names."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def untrusted(place: Address, error: ssl.SSLCertVerificationError) -> NetworkError:
    failure = NetworkError(
        f"the certificate of {place.authority_with_port} is not trusted ({error.verify_message or _said(error)}). "
        "Where a company proxy reads the traffic, point SSL_CERT_FILE to its certificate",
        type="certificate",
    )
    failure.retryable = False  # it will not be trusted the next time either
    return failure


def _notice_silence(connection: Connection) -> None:
    """Notices within about a minute that the other side is gone, where the system allows to ask for it."""
    plug = connection.transport.get_extra_info("socket")
    if plug is None:
        return
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _ALIVE:
        if hasattr(socket, option):
            plug.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _said(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
