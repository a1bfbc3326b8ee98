"""Follows a session of a server: everything since a number, then what happens, across breaks of the connection."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from typing import Any

import msgspec

from outrider.errors import NetworkError, ServerAwayError
from outrider.providers.transport.sse import EventReader
from outrider.remote.client import Answer, Client

SILENCE = 60.0  # seconds; a server that lives says so four times as often
PAUSES = (0.1, 0.2, 0.4, 0.8, 1.5)  # seconds between attempts to come back


class Joined(msgspec.Struct, frozen=True):
    """From here on nothing is missed. `again`: there was a break, in which what is only shown may have been."""

    again: bool = False


class Lost(msgspec.Struct, frozen=True):
    """The connection broke; it is tried again."""


class Kept(msgspec.Struct, frozen=True):
    """A change of the session under its number, as the server wrote it."""

    seq: int
    change: dict[str, Any]


class Shown(msgspec.Struct, frozen=True):
    """What happened in one moment, and nobody keeps."""

    events: list[dict[str, Any]]


Heard = Joined | Lost | Kept | Shown


class Feed:
    """Each change once, none missed, for as long as somebody listens."""

    def __init__(self, client: Client, session_id: str, after: int, *, again: bool = False) -> None:
        self._client = client
        self._path = f"/api/sessions/{session_id}/events"
        self._after = after
        self._joined, self._again = False, again
        self._failed = 0

    async def follow(self) -> AsyncGenerator[Heard, None]:
        """Raises what the server refuses with."""
        while True:
            async with aclosing(self._connection()) as connection:
                async for heard in connection:
                    yield heard
            if self._joined:
                self._joined = False
                yield Lost()
            await asyncio.sleep(PAUSES[min(self._failed, len(PAUSES) - 1)])
            self._failed += 1

    async def _connection(self) -> AsyncGenerator[Heard, None]:
        reader = EventReader()
        async with aclosing(self._pieces()) as pieces:
            async for piece in pieces:
                for heard in self._read(reader, piece):
                    yield heard

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        """What one connection brings, to its end, whatever that is."""
        with suppress(ServerAwayError):
            async with self._client.opened("GET", self._path, headers={"last-event-id": str(self._after)}) as answer:
                while piece := await _piece(answer):
                    yield piece

    def _read(self, reader: EventReader, piece: bytes) -> Iterator[Heard]:
        if not self._joined:
            yield Joined(self._again)
            self._joined, self._again, self._failed = True, True, 0
        for name, raw in reader.feed(piece):
            if name == "live":
                yield Shown(msgspec.json.decode(raw))
            elif name == "change" and (kept := _kept(raw)).seq > self._after:
                self._after = kept.seq
                yield kept


def _kept(raw: bytes) -> Kept:
    change = msgspec.json.decode(raw)
    return Kept(change["seq"], change)


async def _piece(answer: Answer) -> bytes:
    try:
        async with asyncio.timeout(SILENCE):
            return await answer.read()
    except TimeoutError:
        raise ServerAwayError("the server went silent") from None
    except NetworkError as error:
        raise ServerAwayError(error.message) from error
