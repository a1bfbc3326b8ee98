"""Follows the event stream of a session on a server: stored changes after a sequence number, then live events, with
automatic reconnection."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from typing import Any

import msgspec

from outrider.errors import NetworkError, ServerAwayError
from outrider.http.sse import ServerEventReader
from outrider.remote.client import ServerClient, StreamedResponse

SILENCE_TIMEOUT = 60.0  # seconds; the server sends a keepalive four times as often
RECONNECT_DELAYS = (0.1, 0.2, 0.4, 0.8, 1.5)  # seconds between reconnection attempts


class FeedConnected(msgspec.Struct, frozen=True):
    """The stream is connected; nothing is missed from here on. With `is_reconnect` there was a gap, in which transient
    events may have been lost."""

    is_reconnect: bool = False


class FeedDisconnected(msgspec.Struct, frozen=True):
    """The connection broke; the feed retries."""


class StoredChange(msgspec.Struct, frozen=True):
    """A stored change of the session with its sequence number, as the server encoded it."""

    seq: int
    change: dict[str, Any]


class TransientEvents(msgspec.Struct, frozen=True):
    """Events of one batch that the server does not store."""

    events: list[dict[str, Any]]


FeedItem = FeedConnected | FeedDisconnected | StoredChange | TransientEvents


class SessionFeed:
    """Delivers each stored change exactly once, for as long as the caller iterates."""

    def __init__(self, client: ServerClient, session_id: str, after: int, *, is_reconnect: bool = False) -> None:
        self._client = client
        self._path = f"/api/sessions/{session_id}/events"
        self._after = after
        self._connected, self._is_reconnect = False, is_reconnect
        self._failed_attempts = 0

    async def stream_items(self) -> AsyncGenerator[FeedItem, None]:
        """Yields feed items and reconnects with backoff. Raises the server's error responses."""
        while True:
            async with aclosing(self._read_connection()) as connection:
                async for item in connection:
                    yield item
            if self._connected:
                self._connected = False
                yield FeedDisconnected()
            await asyncio.sleep(RECONNECT_DELAYS[min(self._failed_attempts, len(RECONNECT_DELAYS) - 1)])
            self._failed_attempts += 1

    async def _read_connection(self) -> AsyncGenerator[FeedItem, None]:
        reader = ServerEventReader()
        async with aclosing(self._receive_chunks()) as chunks:
            async for chunk in chunks:
                for item in self._decode_chunk(reader, chunk):
                    yield item

    async def _receive_chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields the chunks of one connection until it ends for any reason."""
        with suppress(ServerAwayError):
            async with self._client.open_response(
                "GET", self._path, headers={"last-event-id": str(self._after)}
            ) as answer:
                while chunk := await _receive_chunk(answer):
                    yield chunk

    def _decode_chunk(self, reader: ServerEventReader, chunk: bytes) -> Iterator[FeedItem]:
        if not self._connected:
            yield FeedConnected(self._is_reconnect)
            self._connected, self._is_reconnect, self._failed_attempts = True, True, 0
        for name, raw in reader.feed(chunk):
            if name == "live":
                yield TransientEvents(msgspec.json.decode(raw))
            elif name == "change" and (change := _decode_change(raw)).seq > self._after:
                self._after = change.seq
                yield change


def _decode_change(raw: bytes) -> StoredChange:
    change = msgspec.json.decode(raw)
    return StoredChange(change["seq"], change)


async def _receive_chunk(response: StreamedResponse) -> bytes:
    try:
        async with asyncio.timeout(SILENCE_TIMEOUT):
            return await response.read()
    except TimeoutError:
        raise ServerAwayError("the server sent nothing within the timeout") from None
    except NetworkError as error:
        raise ServerAwayError(error.message) from error
