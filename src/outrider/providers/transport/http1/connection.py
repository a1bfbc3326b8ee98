"""One connection: bytes out with patience, bytes in as they arrive, within a bound."""

import asyncio
from contextlib import suppress
from typing import cast

from outrider.errors import NetworkError
from outrider.providers.transport.http1.alarm import Alarm

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
        self.alarm = Alarm(self._loop)

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
