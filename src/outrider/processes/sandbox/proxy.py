"""The doorman: the only way out of a sandbox whose network is a list of hosts, and it asks for names.

A confined command has a network of its own with nothing in it but a listening socket, which the warden hands out to the
doorman. To programs inside it is a proxy; they learn of it by the usual variables. Names are resolved out here,
and what was judged is what is reached. It judges the name that is asked for: which site answers behind a shared
address, and what is said there, it cannot see.
"""

import asyncio
import contextlib
import ipaddress
import socket
import tempfile
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from outrider.processes.sandbox.sandbox import Hosts

PATIENCE = 30.0  # seconds for the request, and for the host to be reached
LONGEST_HEAD = 65_536
PIECE = 65_536
_USUAL_PORTS = (80, 443)


class Refused(Exception):
    """Its text goes to the program inside."""


class ProxyRequest(NamedTuple):
    """`opening` is what the host must be told first."""

    host: str
    port: int
    opening: bytes
    tunnel: bool


class Rules:
    def __init__(self, hosts: Sequence[str]) -> None:
        self._rules = [self._parse(host) for host in hosts]

    @staticmethod
    def _parse(rule: str) -> tuple[str, tuple[int, ...]]:
        name, colon, port = rule.lower().rpartition(":")
        if colon and port.isdecimal() and (":" not in name or name.endswith("]")):
            return name.strip("[]").rstrip("."), (int(port),)
        return rule.lower().strip("[]").rstrip("."), _USUAL_PORTS

    def allow(self, host: str, port: int) -> bool:
        host = host.lower().strip("[]").rstrip(".")
        return any(
            port in ports and (host == name or (name.startswith("*.") and host.endswith(name[1:])))
            for name, ports in self._rules
        )


class ProxyConnection:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    async def serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(sock=connection, limit=LONGEST_HEAD)
            try:
                await self._serve(reader, writer)
            except (Refused, TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
                text = f"outrider: {error or 'no answer in time'}\n".encode()
                writer.write(
                    b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text
                )
            finally:
                await _close(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(PATIENCE):
            wish = parse_wish(await reader.readuntil(b"\r\n\r\n"))
            if not self._rules.allow(wish.host, wish.port):
                raise Refused(f"the sandbox does not let {wish.host}:{wish.port} through")
            address = await resolve(wish.host, wish.port)
            there_reader, there = await asyncio.open_connection(address, wish.port)
        try:
            if wish.tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            there.write(wish.opening)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pump(reader, there))
                tasks.create_task(_pump(there_reader, writer))
        finally:
            await _close(there)


def parse_wish(head: bytes) -> ProxyRequest:
    """CONNECT, or a request with the whole address; anything else raises."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, version = first.split(" ")
    if method == "CONNECT":
        host, _, port = target.rpartition(":")
        return ProxyRequest(host.strip("[]"), int(port), b"", tunnel=True)
    address = urlsplit(target)
    if address.scheme != "http" or not address.hostname:
        raise Refused("ask with CONNECT or with a whole http:// address")
    # The host is the one that was judged, whatever else the request says; and one request is all.
    kept = [line for line in lines if line and line.partition(":")[0].lower() not in _REPLACED]
    path = (address.path or "/") + (f"?{address.query}" if address.query else "")
    opening = [f"{method} {path} {version}", f"Host: {address.netloc.rpartition('@')[2]}", "Connection: close", *kept]
    return ProxyRequest(
        address.hostname, address.port or 80, "\r\n".join([*opening, "", ""]).encode("latin-1"), tunnel=False
    )


_REPLACED = {"host", "connection", "proxy-connection", "proxy-authorization", "keep-alive", "upgrade"}


async def resolve(host: str, port: int) -> str:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return choose(host, [str(address[0]) for _, _, _, _, address in found])


def choose(host: str, addresses: Sequence[str]) -> str:
    """A name must not lead back to this machine or to its cloud's own services; an address may, if a rule names it."""
    literal = host == "localhost" or _is_address(host)
    for address in addresses:
        seen = ipaddress.ip_address(address.partition("%")[0])
        if literal or not (seen.is_loopback or seen.is_link_local or seen.is_multicast or seen.is_unspecified):
            return address
    raise Refused(f"{host} leads back to this machine")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, asyncio.CancelledError):
        await writer.wait_closed()


SANDBOXES = 256
GUESTS = 256
AGAIN = 0.1  # seconds


@contextlib.asynccontextmanager
async def open_proxy(hosts: Sequence[str]) -> AsyncGenerator[Hosts]:
    """A network for policies, for as long as commands run under them.

    A host is a name, or `*.name` for all below it, with `:port` or without, which means 80 and 443."""
    with tempfile.TemporaryDirectory(prefix="outrider-door-") as folder, socket.socket(socket.AF_UNIX) as door:
        path = Path(folder, "door")
        door.bind(str(path))
        door.listen(SANDBOXES)
        door.settimeout(0)
        # No group: it would wrap what the caller raises.
        serving = asyncio.create_task(_receive_sandboxes(door, Rules(hosts)))
        try:
            yield Hosts(path)
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving


async def _receive_sandboxes(door: socket.socket, rules: Rules) -> None:
    room = asyncio.Semaphore(SANDBOXES)
    async with asyncio.TaskGroup() as tasks:
        while True:
            await room.acquire()
            line = await _accept(door)
            if line is None:  # too many open files: it passes
                room.release()
                await asyncio.sleep(AGAIN)
                continue
            tasks.create_task(_serve_sandbox(line, rules)).add_done_callback(lambda _: room.release())


async def _serve_sandbox(line: socket.socket, rules: Rules) -> None:
    """Until the warden, and so the line to it, ends. What else the command sends here leads nowhere new."""
    with line, contextlib.suppress(OSError, ValueError):
        await _readable(line)
        _, descriptors, _, _ = socket.recv_fds(line, 1, 1)
        if not descriptors:
            return
        with socket.socket(fileno=descriptors[0]) as entrance:
            entrance.settimeout(0)
            line.send(b"+")
            async with asyncio.TaskGroup() as tasks:
                welcoming = tasks.create_task(_welcome(entrance, rules))
                await _readable(line)
                welcoming.cancel()


async def _welcome(entrance: socket.socket, rules: Rules) -> None:
    room = asyncio.Semaphore(GUESTS)
    async with asyncio.TaskGroup() as tasks:
        while True:
            await room.acquire()
            connection = await _accept(entrance)
            if connection is None:
                return
            tasks.create_task(ProxyConnection(rules).serve(connection)).add_done_callback(lambda _: room.release())


async def _accept(listening: socket.socket) -> socket.socket | None:
    try:
        return (await asyncio.get_running_loop().sock_accept(listening))[0]
    except OSError:
        return None


async def _readable(line: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(line, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(line)
