"""Asks a server: one connection for each request, refusals as the errors that they were, streams as they arrive."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from outrider.app.remote.place import Place
from outrider.app.remote.refusals import refused, unreachable
from outrider.errors import NetworkError, OutriderError, ServerAwayError
from outrider.providers.transport.http1 import head
from outrider.providers.transport.http1.body import Body, body_of
from outrider.providers.transport.http1.connection import Connection, let_go
from outrider.providers.transport.http1.dial import default_security, dial

CONNECT_SECONDS = 15.0
ANSWER_SECONDS = 60.0

T = TypeVar("T")
_encode = msgspec.json.Encoder(enc_hook=lambda part: part.to_dict()).encode


class Answer:
    """An answer whose head has arrived; `read` gives what has come of its body, and nothing at its end."""

    def __init__(self, status: int, body: Body, connection: Connection, first: bytes) -> None:
        self.status = status
        self._body = body
        self._connection = connection
        self._first = first

    async def read(self) -> bytes:
        while not self._body.ended:
            data, self._first = self._first or await self._connection.receive(), b""
            if not data:
                self._body.close()
                return b""
            if piece := self._body.feed(data):
                return piece
        return b""

    async def whole(self) -> bytes:
        pieces: list[bytes] = []
        while piece := await self.read():
            pieces.append(piece)
        return b"".join(pieces)


class Client:
    """Raises ConfigurationError where address, certificate or token are wrong, ServerAwayError where nobody answers."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._security = cache(default_security)  # reading the system's certificates takes longer than most answers

    async def get(self, path: str, shape: type[T] | Any = Any, **query: Any) -> Any:
        return _read(await self.ask("GET", path, query=query), shape)

    async def post(self, path: str, body: Any = None, shape: type[T] | Any = Any, *, patient: bool = False) -> Any:
        """A `patient` request is answered when its work is done, which may take hours."""
        raw = await self.ask("POST", path, {} if body is None else body, patient=patient)
        return _read(raw, shape)

    async def ask(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None, patient: bool = False
    ) -> bytes:
        try:
            async with (
                asyncio.timeout(None if patient else ANSWER_SECONDS),
                self.opened(method, path, body, query=query) as answer,
            ):
                return await answer.whole()
        except TimeoutError:
            raise ServerAwayError(f"{self.place.url} did not answer in time") from None

    @asynccontextmanager
    async def opened(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Answer, None]:
        connection = await self._connected()
        try:
            await connection.send(self._request(method, path, body, query or {}, headers or {}))
            answer = await _answered(connection)
            if answer.status >= 400:
                raise refused(self.place, answer.status, await answer.whole())
            yield answer
        except NetworkError as error:
            raise ServerAwayError(f"{self.place.url}: {error.message}") from error
        finally:
            await let_go([connection])

    async def _connected(self) -> Connection:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if self.place.socket is None:
                    return await dial(self.place.address, None, self._security)
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_unix_connection(Connection, str(self.place.socket))
                return connection
        except (OSError, NetworkError) as error:
            raise unreachable(self.place, error) from None

    def _request(
        self, method: str, path: str, body: Any, query: Mapping[str, Any], headers: Mapping[str, str]
    ) -> bytes:
        asked = {name: _said(value) for name, value in query.items() if value is not None}
        target = quote(path, safe="/") + (f"?{urlencode(asked)}" if asked else "")
        sent = b"" if body is None else _encode(body)
        own = {
            "host": self.place.address.authority,
            "authorization": f"Bearer {self.place.token}",
            "connection": "close",
            "user-agent": "outrider",
        }
        if body is not None:
            own |= {"content-type": "application/json", "content-length": str(len(sent))}
        return head.written(method, target, {**own, **headers}) + sent


async def _answered(connection: Connection) -> Answer:
    data = bytearray()
    while (end := head.end_of(data)) < 0:
        piece = await connection.receive()
        if not piece:
            raise NetworkError("the server hung up without an answer", type="disconnected")
        data += piece
    answered = head.read(bytes(data[:end]))
    return Answer(answered.status, body_of(answered), connection, bytes(data[end:]))


def _read(raw: bytes, shape: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=shape) if raw else None
    except (msgspec.DecodeError, ValueError) as error:
        raise OutriderError(f"the server's answer cannot be read: {error}") from error


def _said(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
