"""HTTP client for the API of an Outrider server: one connection per request, typed errors, streamed responses."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import msgspec

from outrider import errors
from outrider.config.environment import SERVER_TOKEN_VARIABLE, read_option_defaults
from outrider.config.paths import find_app_folders
from outrider.config.providers import proxy_for
from outrider.errors import ConfigurationError, NetworkError, OutriderError, ProviderError, ServerAwayError
from outrider.http.client import HttpClient, is_loopback, read_body, send_single_request
from outrider.http.http1 import HttpAddress
from outrider.http.transport import HttpRequest, HttpResponse, HttpTimeouts

SOCKET_SCHEMES = ("http+unix", "unix")
_ADDRESS_EXAMPLES = "http://127.0.0.1:8765, https://build.example:8443, or http+unix:///run/user/1000/outrider.sock"


class ServerAddress(msgspec.Struct, frozen=True):
    """The address and token of a server. `url` is for messages and does not contain the token; `socket` is a Unix
    socket that replaces host and port. `prefix` is the path of a server behind a reverse proxy."""

    url: str
    address: HttpAddress
    token: str = ""
    socket: Path | None = None
    prefix: str = ""

    @property
    def is_local(self) -> bool:
        """Returns whether the server runs on this machine."""
        return self.socket is not None or is_loopback(self.address.host)


def resolve_server(url: str, *, token: str | None, environ: Mapping[str, str]) -> ServerAddress:
    """Parses an address as `outrider serve` prints it. The token comes from the argument, the environment, the query of
    the browser link, or, for a server on this machine only, from the token file. Raises ConfigurationError if there is
    none."""
    server = (
        _socket_address(url)
        if url.partition(":")[0] in SOCKET_SCHEMES or url.startswith(("/", "~"))
        else _network_address(url)
    )
    resolved_token = token or read_option_defaults(environ).server_token or server.token
    if not resolved_token and server.is_local:
        resolved_token = _read_token_file(find_app_folders(environ).data / "server" / "token")
    if not resolved_token:
        raise ConfigurationError(
            f"{server.url} requires a token. The server prints the path of its token file when it starts. "
            f"Set {SERVER_TOKEN_VARIABLE} or pass --token"
        )
    return msgspec.structs.replace(server, token=resolved_token)


def _socket_address(url: str) -> ServerAddress:
    path = Path(urlsplit(url).path if ":" in url.partition("/")[0] else url).expanduser()
    if not path.is_absolute():
        raise ConfigurationError(
            f"the path of a socket must be absolute, such as {_ADDRESS_EXAMPLES.rpartition(' ')[2]}"
        )
    return ServerAddress(f"http+unix://{path}", HttpAddress("http", "localhost", 80), socket=path)


def _network_address(url: str) -> ServerAddress:
    address = HttpAddress.parse(url if "://" in url else f"http://{url}")
    parsed = urlsplit(url if "://" in url else f"http://{url}")
    prefix = parsed.path.rstrip("/")
    if prefix.endswith("/api") or "/api/" in prefix or parsed.fragment:
        raise ConfigurationError(
            f"{url.partition('?')[0]} is not the address of a server; write it as {_ADDRESS_EXAMPLES}"
        )
    token = (parse_qs(parsed.query).get("token") or [""])[0]
    display_url = f"{address.scheme}://{address.authority_with_port}{prefix}"
    server = ServerAddress(display_url, address, token, prefix=prefix)
    if not address.is_secure and not server.is_local:
        raise ConfigurationError(
            f"{server.url} would send the token unencrypted: use https for servers on other machines"
        )
    return server


def _read_token_file(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


class _ErrorBody(msgspec.Struct, frozen=True):
    type: str = ""
    message: str = ""
    details: dict[str, Any] = {}


class _ErrorResponse(msgspec.Struct, frozen=True):
    error: _ErrorBody = _ErrorBody()


async def fetch_url(
    url: str, headers: dict[str, str], body: bytes = b"", *, seconds: float, max_bytes: int
) -> tuple[int, bytes]:
    """Sends one request to a server of any kind, through the configured proxy, and returns the status and at most
    `max_bytes` of the body. It is a POST if there is a body. Redirects are not followed. Raises NetworkError, or
    TimeoutError after `seconds`."""
    request = HttpRequest(url, headers, body, method="POST" if body else "GET")
    return await send_single_request(request, seconds=seconds, max_bytes=max_bytes, proxy=proxy_for)


def error_from_response(server: ServerAddress, status: int, raw: bytes) -> OutriderError:
    """Decodes an error response into the exception that the server raised."""
    try:
        error = msgspec.json.decode(raw, type=_ErrorResponse).error
    except (msgspec.DecodeError, ValueError):
        return foreign_server_error(server)
    match status, error.type:
        case 401, _:
            return ConfigurationError(
                f"{server.url} rejects this token. The server prints the path of its token file when it starts; "
                f"set {SERVER_TOKEN_VARIABLE} or pass --token"
            )
        case 421, _:
            return ConfigurationError(
                f"{server.url}: the Host header does not name this server. Use the address that it printed, "
                "or start it with --name and this host name"
            )
        case 404, "no_such_route":
            return version_mismatch_error(server, "an older version")
        case _:
            details = {**error.details, "status": status}
            return error_by_name(error.type, error.message or f"the server answered {status}", **details)


def error_by_name(name: str, message: str, **details: Any) -> OutriderError:
    """Returns an instance of the named error class; a plain OutriderError if its constructor needs more than a
    message."""
    error_class = getattr(errors, name, None)
    if not (inspect.isclass(error_class) and issubclass(error_class, OutriderError)):
        return OutriderError(message, **details)
    if issubclass(error_class, ProviderError):
        return error_class(message)
    try:
        return error_class(message, **details)
    except TypeError:
        return OutriderError(message, **details)


def connection_error(server: ServerAddress, error: NetworkError) -> OutriderError:
    """Returns the error of a failed request: a certificate problem, a server that does not answer, or a connection that
    broke."""
    match error.type:
        case "certificate":
            return ConfigurationError(
                f"{error.message.partition('. ')[0]}. If the certificate is self-signed, set SSL_CERT_FILE to its path"
            )
        case "connect":
            return ServerAwayError(
                f"no server answers at {server.url} ({error.message}). Start one with `outrider serve`; it prints its "
                "address"
            )
        case _:
            return ServerAwayError(f"{server.url}: {error.message}")


def foreign_server_error(server: ServerAddress) -> OutriderError:
    return ConfigurationError(
        f"the server at {server.url} is not an Outrider server; `outrider serve` prints its address"
    )


def version_mismatch_error(server: ServerAddress, there: str, here: str = "") -> OutriderError:
    own_version = f", and this is {here}" if here else ""
    return ConfigurationError(
        f"{server.url} runs {there} of Outrider{own_version}: install the same version on both sides "
        "(pip install -U outrider), then restart the server"
    )


RESPONSE_SECONDS = 60.0
# A streamed response may be silent for hours; its reader has a limit. Other responses have RESPONSE_SECONDS.
_TIMEOUTS = HttpTimeouts(first_byte=inf, idle=inf, quiet=inf, total=inf)
_MAX_ERROR_BYTES = 1024 * 1024

T = TypeVar("T")
_encode = msgspec.json.Encoder(enc_hook=lambda part: part.to_dict()).encode


class ServerClient:
    """Sends requests to a server. Raises ConfigurationError if address, certificate or token are wrong, and
    ServerAwayError if the server does not answer."""

    def __init__(self, server: ServerAddress) -> None:
        self.server = server

    async def get(self, path: str, response_type: type[T] | Any = Any, **query: Any) -> Any:
        return _decode_body(await self.send_request("GET", path, query=query), response_type)

    async def post(
        self, path: str, body: Any = None, response_type: type[T] | Any = Any, *, unlimited: bool = False
    ) -> Any:
        """Sends a POST request. With `unlimited` there is no timeout, for requests that return when a turn ends,
        possibly after hours."""
        raw = await self.send_request("POST", path, {} if body is None else body, unlimited=unlimited)
        return _decode_body(raw, response_type)

    async def send_request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        unlimited: bool = False,
    ) -> bytes:
        try:
            async with (
                asyncio.timeout(None if unlimited else RESPONSE_SECONDS),
                self.open_response(method, path, body, query=query) as response,
            ):
                return await _read_all(response)
        except TimeoutError:
            raise ServerAwayError(f"{self.server.url} did not answer in time") from None

    @asynccontextmanager
    async def open_response(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[HttpResponse, None]:
        """Sends a request on a separate connection, through the configured proxy if the server is on another machine.
        The connection is closed at the end of the block."""
        request = self._encode_request(method, path, body, query or {}, headers or {})
        client = HttpClient(
            _TIMEOUTS, proxy=None if self.server.is_local else proxy_for, unix_socket=self.server.socket
        )
        async with aclosing(client):
            try:
                response = await client.send(request)
                if response.status >= 400:
                    raw, _ = await read_body(response, _MAX_ERROR_BYTES)
                    raise error_from_response(self.server, response.status, raw)
                yield response
            except NetworkError as error:
                raise connection_error(self.server, error) from error

    def _encode_request(
        self, method: str, path: str, body: Any, query: Mapping[str, Any], headers: Mapping[str, str]
    ) -> HttpRequest:
        parameters = {name: _encode_query_value(value) for name, value in query.items() if value is not None}
        target = quote(self.server.prefix + path, safe="/") + (f"?{urlencode(parameters)}" if parameters else "")
        address = self.server.address
        all_headers = {"authorization": f"Bearer {self.server.token}", "connection": "close", **headers}
        if body is not None:
            all_headers["content-type"] = "application/json"
        payload = b"" if body is None else _encode(body)
        return HttpRequest(f"{address.scheme}://{address.authority}{target}", all_headers, payload, method=method)


async def _read_all(response: HttpResponse) -> bytes:
    chunks: list[bytes] = []
    while chunk := await response.read():
        chunks.append(chunk)
    return b"".join(chunks)


def _decode_body(raw: bytes, response_type: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=response_type) if raw else None
    except (msgspec.DecodeError, ValueError) as error:
        raise OutriderError(f"cannot decode the server's response: {error}") from error


def _encode_query_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
