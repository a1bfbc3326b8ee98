"""A server on loopback that answers byte for byte what a test tells it to, and breaks in every way that servers do."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal

After = Literal["close", "reset", "stall", "keepalive_open", "keep", "drop"]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Pause = float
"""Between chunks: seconds to wait."""


@dataclass
class Reply:
    """`after` the chunks: close (a clean end), keep (the same, and the connection stays), reset, drop (a connection
    that just ends), stall and keepalive_open (it stays open and silent). Status 0 is no answer at all."""

    chunks: Iterable[bytes | Pause] | Callable[[], Iterable[bytes | Pause]] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    after: After = "keep"
    raw: bytes = b""  # instead of all that: these bytes, then the end of the connection

    def pieces(self) -> Iterable[bytes | Pause]:
        return self.chunks() if callable(self.chunks) else self.chunks


@dataclass
class Seen:
    """A request as it arrived, and when; `closed` is when its connection was found closed by the client."""

    target: str
    headers: dict[str, str]
    body: bytes
    at: float
    connection: int
    closed: asyncio.Event = field(default_factory=asyncio.Event)


class Server:
    """Replies are used in order; the last one answers all further requests."""

    def __init__(self, replies: Sequence[Reply], scheme: str = "http") -> None:
        self._scheme = scheme
        self._replies = list(replies)
        self.requests: list[Seen] = []
        self.port = 0
        self._connections = 0

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        try:
            while (seen := await _request(reader, number)) is not None:
                self.requests.append(seen)
                reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
                if not await _answer(reply, seen, reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            for seen in self.requests:
                if seen.connection == number:
                    seen.closed.set()
        finally:
            writer.close()


@asynccontextmanager
async def serving(*replies: Reply, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(replies, "https" if tls else "http")
    async with listening(server.serve, tls) as server.port:
        yield server


@asynccontextmanager
async def listening(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A port on loopback; whoever is being served when this ends is let go."""
    tasks: set[asyncio.Task[None]] = set()
    ended = False

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        try:
            if not ended:  # a connection may have been accepted just before, and be told of only now
                await serve(reader, writer)
        finally:
            writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0, limit=2**20, ssl=tls)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        ended = True
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def unused_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


async def _request(reader: asyncio.StreamReader, connection: int) -> Seen | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Seen(first.split()[1], headers, body, monotonic(), connection)


async def _answer(reply: Reply, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the connection can take another request."""
    if reply.raw:
        writer.write(reply.raw)
        await writer.drain()
        return False
    if reply.status:
        head = [f"HTTP/1.1 {reply.status} Reply", *(f"{name}: {value}" for name, value in reply.headers.items())]
        writer.write("\r\n".join([*head, "transfer-encoding: chunked", "", ""]).encode("latin-1"))
    for piece in reply.pieces():
        if isinstance(piece, bytes):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        else:
            await asyncio.sleep(piece)
    await writer.drain()
    match reply.after:
        case "keep" | "close":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return reply.after == "keep"
        case "reset":
            await asyncio.sleep(0.02)  # what was written must arrive first
            plug = writer.get_extra_info("socket")
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        case "drop":
            pass
        case "stall" | "keepalive_open":
            await reader.read(1)  # ends when the client lets go
            seen.closed.set()
    return False
