"""Asks a server: one connection for each request, refusals as the errors that they were, streams as they arrive."""

import asyncio
import inspect
import ipaddress
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import msgspec

from outrider import errors
from outrider.config.paths import find_folders
from outrider.errors import ConfigurationError, NetworkError, OutriderError, ProviderError, ServerAwayError
from outrider.providers.transport import http1 as head
from outrider.providers.transport.connection import Connection, default_security, dial, let_go
from outrider.providers.transport.http1 import Address, Body, body_of

VARIABLE = "OUTRIDER_SERVER_TOKEN"
SOCKETS = ("http+unix", "unix")
_EXAMPLES = "http://127.0.0.1:8765, https://build.example:8443, or http+unix:///run/user/1000/outrider.sock"


class Place(msgspec.Struct, frozen=True):
    """`url` is what people read; a `socket` stands in the place of host and port. The token is in neither."""

    url: str
    address: Address
    token: str = ""
    socket: Path | None = None

    @property
    def is_here(self) -> bool:
        """Whether the server runs on this machine."""
        return self.socket is not None or is_loopback(self.address.host)


def place_of(url: str, *, token: str | None, environ: Mapping[str, str]) -> Place:
    """From what `outrider serve` prints. The token is the one that is given, the environment's, the one in the link
    for a browser, or, for a server of this machine, the one that it keeps in its file: that one goes nowhere else."""
    found = _socket(url) if url.partition(":")[0] in SOCKETS or url.startswith(("/", "~")) else _network(url)
    chosen = token or environ.get(VARIABLE, "").strip() or found.token
    if not chosen and found.is_here:
        chosen = _kept_token(find_folders(environ).data / "server" / "token")
    if not chosen:
        raise ConfigurationError(
            f"{found.url} wants a token: the one in the file that the server named when it began. "
            f"Give it as {VARIABLE} in the environment, or with --token"
        )
    return msgspec.structs.replace(found, token=chosen)


def _socket(url: str) -> Place:
    path = Path(urlsplit(url).path if ":" in url.partition("/")[0] else url).expanduser()
    if not path.is_absolute():
        raise ConfigurationError(f"the path of a socket is written in full, as in {_EXAMPLES.rpartition(' ')[2]}")
    return Place(f"http+unix://{path}", Address("http", "localhost", 80), socket=path)


def _network(url: str) -> Place:
    address = Address.of(url if "://" in url else f"http://{url}")
    place = urlsplit(url if "://" in url else f"http://{url}")
    if place.path not in ("", "/"):
        raise ConfigurationError(f"{url.partition('?')[0]} is not the address of a server; write it as {_EXAMPLES}")
    token = (parse_qs(place.query).get("token") or [""])[0]
    found = Place(f"{address.scheme}://{address.authority_with_port}", address, token)
    if not address.secure and not found.is_here:
        raise ConfigurationError(
            f"{found.url} would get the token over an open line: servers of other machines are reached by https"
        )
    return found


def _kept_token(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Error(msgspec.Struct, frozen=True):
    type: str = ""
    message: str = ""
    details: dict[str, Any] = {}


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error = _Error()


def refused(place: Place, status: int, raw: bytes) -> OutriderError:
    try:
        error = msgspec.json.decode(raw, type=_Refusal).error
    except (msgspec.DecodeError, ValueError):
        return no_server_of_ours(place)
    match status, error.type:
        case 401, _:
            return ConfigurationError(
                f"{place.url} does not take this token. It stands in the file that the server named when it began; "
                f"give it as {VARIABLE} in the environment, or with --token"
            )
        case 421, _:
            return ConfigurationError(
                f"{place.url}: the server does not go by that name. Use the address that it printed, "
                "or begin it with --name and this one"
            )
        case 404, "no_such_route":
            return another_version(place, "an older version")
        case _:
            details = {**error.details, "status": status}
            return named_error(error.type, error.message or f"the server answered {status}", **details)


def named_error(name: str, message: str, **details: Any) -> OutriderError:
    """The error of that name; one whose making takes more than words becomes a plain one."""
    kind = getattr(errors, name, None)
    if not (inspect.isclass(kind) and issubclass(kind, OutriderError)):
        return OutriderError(message, **details)
    if issubclass(kind, ProviderError):
        return kind(message)
    try:
        return kind(message, **details)
    except TypeError:
        return OutriderError(message, **details)


def unreachable(place: Place, error: OSError | NetworkError) -> OutriderError:
    """Nobody is there, or nobody who can be trusted."""
    if isinstance(error, NetworkError) and error.type == "certificate":
        return ConfigurationError(
            f"{error.message.partition('. ')[0]}. If it is the server's own, point SSL_CERT_FILE to its certificate"
        )
    reason = error.message if isinstance(error, NetworkError) else error.strerror or str(error) or "no answer in time"
    return ServerAwayError(
        f"no server answers at {place.url} ({reason}). Begin one with `outrider serve`; it prints its address"
    )


def no_server_of_ours(place: Place) -> OutriderError:
    return ConfigurationError(f"what answers at {place.url} is no Outrider server; `outrider serve` prints its address")


def another_version(place: Place, there: str, here: str = "") -> OutriderError:
    own = f", and this is {here}" if here else ""
    return ConfigurationError(
        f"{place.url} runs {there} of Outrider{own}: use the same one on both sides (pip install -U outrider), "
        "then begin the server anew"
    )


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
