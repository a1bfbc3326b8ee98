"""The HTTP proxy of a sandbox whose network is limited to a list of hosts.

The sandbox has its own network namespace with one listening socket, which the sandbox init sends to this proxy.
Programs inside find the proxy through the usual variables (`http_proxy`, …). The proxy resolves names itself and
connects to the address that it has checked. It checks only the requested host name: it cannot see which site answers
behind a shared address, nor the content of a TLS connection.
"""

import asyncio
import contextlib
import ipaddress
import socket
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from outrider.processes.sandbox.sandbox import ProxyNetwork

REQUEST_TIMEOUT = 30.0  # for reading the request, resolving the name and connecting
MAX_HEAD_BYTES = 65_536
CHUNK_BYTES = 65_536
_DEFAULT_PORTS = (80, 443)


class ProxyRefusal(Exception):
    """The proxy rejects a request; the message is sent to the program inside the sandbox."""


class ProxyRequest(NamedTuple):
    """A parsed proxy request; `head` is sent to the host first."""

    host: str
    port: int
    head: bytes
    tunnel: bool


class HostRules:
    """Matches hosts and ports against an allow-list such as `example.org`, `*.example.org:8443`."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._rules = [self._parse_rule(host) for host in hosts]

    @staticmethod
    def _parse_rule(rule: str) -> tuple[str, tuple[int, ...]]:
        """Parses a rule into a host name and a list of ports."""
        name, colon, port = rule.lower().rpartition(":")
        if colon and port.isdecimal() and (":" not in name or name.endswith("]")):
            return name.strip("[]").rstrip("."), (int(port),)
        return rule.lower().strip("[]").rstrip("."), _DEFAULT_PORTS

    def allows(self, host: str, port: int) -> bool:
        """Returns whether a rule matches the host and port."""
        host = host.lower().strip("[]").rstrip(".")
        return any(
            port in ports and (host == name or (name.startswith("*.") and host.endswith(name[1:])))
            for name, ports in self._rules
        )


IsAllowed = Callable[[IPv4Address | IPv6Address], bool]
"""Returns whether a name may resolve to an address."""


class _ProxyPolicy(NamedTuple):
    rules: HostRules
    is_allowed: IsAllowed


async def _serve_connection(connection: socket.socket, policy: _ProxyPolicy) -> None:
    """Serves one proxy connection; a rejected or invalid request gets a 403 response with the reason."""
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_HEAD_BYTES)
        try:
            await _forward(reader, writer, policy)
        except (ProxyRefusal, TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
            text = f"outrider: {error or 'the host did not answer in time'}\n".encode()
            writer.write(
                b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text
            )
        finally:
            await _close_writer(writer)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, policy: _ProxyPolicy) -> None:
    """Parses one request, connects to its host if a rule allows it, and copies both streams until they end."""
    async with asyncio.timeout(REQUEST_TIMEOUT):
        request = parse_proxy_request(await reader.readuntil(b"\r\n\r\n"))
        if not policy.rules.allows(request.host, request.port):
            raise ProxyRefusal(f"the sandbox does not allow connections to {request.host}:{request.port}")
        address = await resolve_host(request.host, request.port, policy.is_allowed)
        upstream_reader, upstream = await asyncio.open_connection(address, request.port)
    try:
        if request.tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        upstream.write(request.head)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_copy_stream(reader, upstream))
            tasks.create_task(_copy_stream(upstream_reader, writer))
    finally:
        await _close_writer(upstream)


def parse_proxy_request(head: bytes) -> ProxyRequest:
    """Parses a CONNECT request or a request with an absolute http:// URL; raises for anything else."""
    request_line, *lines = head.decode("latin-1").split("\r\n")
    if any(not set("\r\n\0").isdisjoint(line) for line in (request_line, *lines)):  # some servers end a line there
        raise ProxyRefusal("a line of the request contains a control character")
    method, target, version = request_line.split(" ")
    if method == "CONNECT":
        host, _, port = target.rpartition(":")
        return ProxyRequest(host.strip("[]"), int(port), b"", tunnel=True)
    address = urlsplit(target)
    if address.scheme != "http" or not address.hostname:
        raise ProxyRefusal("the sandbox proxy accepts only CONNECT requests and absolute http:// URLs")
    # Send the checked host, not the one in the request's headers, and close after one request: a second request on the
    # same connection could name another host.
    headers = [line for line in lines if line and line.partition(":")[0].lower() not in _REPLACED_HEADERS]
    path = (address.path or "/") + (f"?{address.query}" if address.query else "")
    rewritten = [
        f"{method} {path} {version}",
        f"Host: {address.netloc.rpartition('@')[2]}",
        "Connection: close",
        *headers,
    ]
    return ProxyRequest(
        address.hostname, address.port or 80, "\r\n".join([*rewritten, "", ""]).encode("latin-1"), tunnel=False
    )


_REPLACED_HEADERS = {"host", "connection", "proxy-connection", "proxy-authorization", "keep-alive", "upgrade"}


async def resolve_host(host: str, port: int, is_allowed: IsAllowed) -> str:
    """Resolves a host name and returns an address that may be used."""
    resolved = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return choose_address(host, [str(address[0]) for _, _, _, _, address in resolved], is_allowed)


def choose_address(host: str, addresses: Sequence[str], is_allowed: IsAllowed) -> str:
    """Returns an address to connect to. A name must resolve to an allowed address, because the owner of a name chooses
    its addresses. A literal address needs no check, because a rule must name it."""
    is_literal = host == "localhost" or _is_address(host)
    for address in addresses:
        if is_literal or is_allowed(ipaddress.ip_address(address.partition("%")[0])):
            return address
    raise ProxyRefusal(f"{host} resolves to an address of this machine or its local network")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies a stream until its end and then closes the writing side."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _close_writer(writer: asyncio.StreamWriter) -> None:
    writer.close()
    # Called from `finally` when a connection ends: an exception in flight, such as a cancellation, continues after it.
    with contextlib.suppress(OSError, asyncio.CancelledError):
        await writer.wait_closed()


MAX_SANDBOXES = 256
MAX_CONNECTIONS = 256
ACCEPT_RETRY_SECONDS = 0.1


@contextlib.asynccontextmanager
async def open_proxy(hosts: Sequence[str], is_allowed: IsAllowed) -> AsyncGenerator[ProxyNetwork]:
    """Runs a proxy for the given hosts and yields the network for a SandboxPolicy.

    A host is a name or `*.name` for its subdomains, optionally with `:port`; the default ports are 80 and 443.
    `is_allowed` checks the addresses that names resolve to.
    """
    with tempfile.TemporaryDirectory(prefix="outrider-door-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = Path(folder, "door")
        listener.bind(str(path))
        listener.listen(MAX_SANDBOXES)
        listener.settimeout(0)
        # Not a TaskGroup: it would wrap the caller's exceptions in an ExceptionGroup.
        serving = asyncio.create_task(_accept_sandboxes(listener, _ProxyPolicy(HostRules(hosts), is_allowed)))
        try:
            yield ProxyNetwork(path)
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving


async def _accept_sandboxes(listener: socket.socket, policy: _ProxyPolicy) -> None:
    """Accepts connections of sandbox inits and serves each in a task, up to MAX_SANDBOXES."""
    slots = asyncio.Semaphore(MAX_SANDBOXES)
    async with asyncio.TaskGroup() as tasks:
        while True:
            await slots.acquire()
            connection = await _accept_socket(listener)
            if connection is None:  # too many open files: retry later
                slots.release()
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            tasks.create_task(_serve_sandbox(connection, policy)).add_done_callback(lambda _: slots.release())


async def _serve_sandbox(connection: socket.socket, policy: _ProxyPolicy) -> None:
    """Serves one sandbox until its init exits and the connection closes. Further messages are ignored."""
    with connection, contextlib.suppress(OSError, ValueError):
        await _wait_readable(connection)
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
        if not descriptors:
            return
        with socket.socket(fileno=descriptors[0]) as sandbox_listener:
            sandbox_listener.settimeout(0)
            connection.send(b"+")
            async with asyncio.TaskGroup() as tasks:
                accepting = tasks.create_task(_accept_connections(sandbox_listener, policy))
                await _wait_readable(connection)
                accepting.cancel()


async def _accept_connections(sandbox_listener: socket.socket, policy: _ProxyPolicy) -> None:
    """Accepts proxy connections from inside a sandbox, up to MAX_CONNECTIONS at a time."""
    slots = asyncio.Semaphore(MAX_CONNECTIONS)
    async with asyncio.TaskGroup() as tasks:
        while True:
            await slots.acquire()
            connection = await _accept_socket(sandbox_listener)
            if connection is None:
                return
            tasks.create_task(_serve_connection(connection, policy)).add_done_callback(lambda _: slots.release())


async def _accept_socket(listening: socket.socket) -> socket.socket | None:
    """Accepts a connection; returns None on an error."""
    try:
        return (await asyncio.get_running_loop().sock_accept(listening))[0]
    except OSError:
        return None


async def _wait_readable(connection: socket.socket) -> None:
    """Waits until a socket is readable or closed, without reading from it."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, lambda: readable.done() or readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(connection)
