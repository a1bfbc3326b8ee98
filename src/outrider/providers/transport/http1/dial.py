"""Opens connections: directly or through a proxy, in the clear or encrypted."""

import asyncio
import socket
import ssl
import sys
from typing import TYPE_CHECKING

from outrider.errors import NetworkError
from outrider.providers.transport.http1 import head
from outrider.providers.transport.http1.address import Address
from outrider.providers.transport.http1.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

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
