"""HTTP/1.1 messages: encode request heads, parse response heads, decode bodies, parse URLs."""

import base64
import re
import zlib
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote, urlsplit

import msgspec

from outrider.errors import ConfigurationError, NetworkError
from outrider.http.transport import HttpRequest

if TYPE_CHECKING:
    from httptools import HttpResponseParser

MAX_HEAD_BYTES = 128 * 1024
_FORBIDDEN_CHARACTERS = re.compile(r"[\r\n\0]")


class HttpHeaders(Mapping[str, str]):
    """Case-insensitive headers. Repeated headers are joined with commas, as RFC 9110 allows; `pairs` has each line."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self.pairs = pairs
        self._values: dict[str, str] = {}
        for name, value in pairs:
            key = name.lower()
            earlier = self._values.get(key)
            self._values[key] = value if earlier is None else f"{earlier}, {value}"

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name.lower(), default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class ResponseHead:
    """The status line and headers of a response, and the parser that continues with its body."""

    __slots__ = ("events", "headers", "parser", "status", "version")

    def __init__(
        self, version: str, status: int, headers: HttpHeaders, parser: "HttpResponseParser", events: "_ParserEvents"
    ) -> None:
        self.version = version
        self.status = status
        self.headers = headers
        self.parser = parser
        self.events = events

    @property
    def keeps_alive(self) -> bool:
        """Whether the server keeps the connection open after this response."""
        connection = self.headers.get("connection")
        if connection is None:
            return self.version == "HTTP/1.1"
        options = [word.strip() for word in connection.lower().split(",")]
        return "close" not in options if self.version == "HTTP/1.1" else "keep-alive" in options


def encode_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """Encodes a request head. Raises ConfigurationError for a header that would inject another line."""
    lines = [f"{method} {target} HTTP/1.1"]
    for name, value in headers.items():
        if _FORBIDDEN_CHARACTERS.search(value) or _FORBIDDEN_CHARACTERS.search(name):
            raise ConfigurationError(f"the header {name!r} contains a line break or a NUL character; remove it")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


def find_head_end(data: bytearray) -> int:
    """Returns the position after the head, -1 while it is incomplete. Lines may end with a bare LF."""
    position = data.find(b"\r\n\r\n")
    if position >= 0:
        return position + 4
    position = data.find(b"\n\n")
    if position >= 0:
        return position + 2
    if len(data) > MAX_HEAD_BYTES:
        raise NetworkError("the response head is too large; the server does not speak HTTP", type="disconnected")
    return -1


def parse_head(data: bytes) -> ResponseHead:
    """Parses a complete response head, as `find_head_end` delimits it. Raises NetworkError."""
    if not data.startswith(b"HTTP/1."):
        raise NetworkError("the server does not speak HTTP", type="disconnected")
    events = _ParserEvents()
    parser = load_parser()(events)
    # Some gateways send bare LF line ends and folded headers.
    parser.set_dangerous_leniencies(lenient_headers=True, lenient_optional_cr_before_lf=True)
    try:
        parser.feed_data(data)
    except _parser_errors() as error:
        # httptools reports 101 Switching Protocols as an exception; the head is complete nevertheless.
        if not events.in_body:
            deduplicated = _drop_repeated_lengths(data)
            if deduplicated != data:
                return parse_head(deduplicated)
            raise NetworkError(f"the response head is malformed: {error}", type="disconnected") from error
    if not events.in_body:
        raise NetworkError("the response head is malformed", type="disconnected")
    version = f"HTTP/{parser.get_http_version()}"
    return ResponseHead(version, parser.get_status_code(), HttpHeaders(events.header_pairs), parser, events)


@cache
def load_parser() -> "type[HttpResponseParser]":
    """Imports httptools, a binding of llhttp, on first use. The HTTP client calls this while it waits for a response.

    h11 is too slow: it needs 7 µs for a streamed chunk, httptools needs 0.2 µs.
    """
    from httptools import HttpResponseParser

    return HttpResponseParser


def _parser_errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions of httptools; an `except` clause calls this only when something was raised."""
    from httptools import HttpParserError, HttpParserUpgrade

    return HttpParserError, HttpParserUpgrade


class _ParserEvents:
    """The callbacks of httptools for one response."""

    __slots__ = ("chunks", "complete", "has_surplus", "header_pairs", "in_body")

    def __init__(self) -> None:
        self.header_pairs: list[tuple[str, str]] = []
        self.chunks: list[bytes] = []
        self.in_body = False
        self.complete = False
        self.has_surplus = False

    def on_message_begin(self) -> None:
        self.has_surplus = self.complete  # a second response on the connection

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_body:  # else a trailer, which must not use memory
            self.header_pairs.append((name.decode("latin-1"), value.decode("latin-1").strip()))

    def on_headers_complete(self) -> None:
        self.in_body = True

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self.chunks.append(body)

    def on_message_complete(self) -> None:
        self.complete = True


def _drop_repeated_lengths(head: bytes) -> bytes:
    """Removes repeated equal Content-Length lines; RFC 9110 lets a client accept them, but httptools rejects them."""
    lines = head.splitlines(keepends=True)
    lengths = [line for line in lines if line[:15].lower() == b"content-length:"]
    if len({line[15:].strip() for line in lengths}) != 1:
        return head
    return b"".join([lines[0], lengths[0], *(line for line in lines[1:] if line not in lengths)])


_ZLIB_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_DEFLATE_WINDOW_BITS = _ZLIB_WINDOW_BITS["deflate"]
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024


class BodyReader(Protocol):
    """Decodes a response body. `ended` is True at its end; `has_surplus` if bytes followed it."""

    @property
    def ended(self) -> bool: ...

    @property
    def has_surplus(self) -> bool: ...

    def feed(self, data: bytes) -> bytes:
        """Returns the body bytes that the received data contains."""
        ...

    def close(self) -> None:
        """Ends the body. Raises NetworkError when bytes are missing."""
        ...


def create_body_reader(head: ResponseHead, *, method: str = "GET", max_bytes: int | None = None) -> BodyReader:
    """Returns the reader for the body after this head. Raises NetworkError for an unsupported encoding.

    `max_bytes` is for a caller that cuts a long body: a compressed body yields slightly more and then nothing.
    """
    if method == "HEAD":
        return EmptyBody()
    transfer_encoding = head.headers.get("transfer-encoding", "").lower()
    if transfer_encoding and transfer_encoding.rpartition(",")[2].strip() != "chunked":
        raise NetworkError(f"the response has the unsupported transfer encoding {transfer_encoding}", type="encoding")
    body = FramedBody(head)
    content_encoding = head.headers.get("content-encoding", "identity").strip().lower()
    if content_encoding in ("", "identity"):
        return body
    if content_encoding not in _ZLIB_WINDOW_BITS:
        raise NetworkError(f"the response has the unsupported content encoding {content_encoding}", type="encoding")
    return DecompressedBody(body, _ZLIB_WINDOW_BITS[content_encoding], max_bytes)


class EmptyBody:
    """The body of a response to HEAD: its head describes a body that is not sent."""

    ended = True
    has_surplus = False

    def feed(self, data: bytes) -> bytes:
        return b""

    def close(self) -> None:
        pass


class FramedBody:
    """A body that is delimited by Content-Length, by chunked encoding, or by the end of the connection."""

    __slots__ = ("_events", "_headers", "_parser")

    def __init__(self, head: ResponseHead) -> None:
        self._parser = head.parser
        self._events = head.events
        self._headers = head.headers

    @property
    def ended(self) -> bool:
        return self._events.complete

    @property
    def has_surplus(self) -> bool:
        return self._events.has_surplus

    def feed(self, data: bytes) -> bytes:
        events = self._events
        try:
            self._parser.feed_data(data)
        except _parser_errors() as error:
            if not events.complete:
                raise NetworkError(f"the response body is malformed: {error}", type="disconnected") from error
            events.has_surplus = True
        chunks = events.chunks
        if len(chunks) == 1:
            return chunks.pop()
        body = b"".join(chunks)
        chunks.clear()
        return body

    def close(self) -> None:
        if self._events.complete:
            return
        if "transfer-encoding" in self._headers or "content-length" in self._headers:
            raise NetworkError("the connection broke: the response body is incomplete", type="disconnected")
        self._events.complete = True  # the end of the connection is the end of the body


class DecompressedBody:
    """A compressed body. Model requests send `Accept-Encoding: identity`, but some gateways compress nevertheless.

    gzip may consist of several members. `deflate` occurs with a zlib header and, against the standard, without one.
    A chunk that decompresses to too many bytes is an error, or ends the body if the caller cuts it at `max_bytes`.
    """

    def __init__(self, body: FramedBody, window: int, max_bytes: int | None = None) -> None:
        self._body = body
        self._max_bytes = max_bytes
        self._received = False
        self._cut = False
        self._window = window
        self._decompressor = zlib.decompressobj(window)
        # Buffers the first two bytes of `deflate` to detect a zlib header.
        self._held: bytes | None = b"" if window == _DEFLATE_WINDOW_BITS else None

    @property
    def ended(self) -> bool:
        return self._body.ended

    @property
    def has_surplus(self) -> bool:
        return self._body.has_surplus

    def feed(self, data: bytes) -> bytes:
        compressed = self._body.feed(data)
        if self._cut or not compressed:
            return b""
        self._received = True
        try:
            return self._decompress(compressed)
        except zlib.error as error:
            raise NetworkError(f"the response cannot be decompressed: {error}", type="encoding") from error

    def close(self) -> None:
        self._body.close()
        # A response without any body bytes may have a Content-Encoding, for example a redirect.
        if self._received and not self._cut and not self._decompressor.eof:
            raise NetworkError("the connection broke: the compressed body is incomplete", type="disconnected")

    def _decompress(self, data: bytes) -> bytes:
        if self._held is not None:
            data = self._held + data
            if len(data) < 2:
                self._held = data
                return b""
            self._held = None
            if data[0] & 0x0F != zlib.DEFLATED or int.from_bytes(data[:2]) % 31:
                self._decompressor = zlib.decompressobj(-self._window)
        limit = _MAX_DECOMPRESSED_BYTES if self._max_bytes is None else self._max_bytes + 1
        chunks: list[bytes] = []
        while data:
            if self._decompressor.eof:
                if not _GZIP_MAGIC.startswith(data[:2]):
                    break  # padding after the last member
                self._decompressor = zlib.decompressobj(self._window)
            chunks.append(self._decompressor.decompress(data, limit))
            limit -= len(chunks[-1])
            if self._decompressor.unconsumed_tail or limit <= 0:
                if self._max_bytes is None:
                    raise _decompression_bomb_error()
                self._cut = True
                break
            data = self._decompressor.unused_data
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _decompression_bomb_error() -> NetworkError:
    error = NetworkError(
        f"a chunk of the response decompresses to over {_MAX_DECOMPRESSED_BYTES} bytes", type="encoding"
    )
    error.retryable = False
    return error


_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_LABEL_LENGTH = 63
# Characters that are not quoted in a path or query; a percent sign belongs to the caller's own quoting.
_SAFE_CHARACTERS = "/%:@!$&'()*+,;=~-._?"


class HttpAddress(msgspec.Struct, frozen=True):
    """A parsed URL. `credentials` is the Basic authorization for the user and password in the URL, or ""."""

    scheme: str
    host: str
    port: int
    target: str = "/"
    credentials: str = ""

    @classmethod
    @lru_cache(maxsize=64)  # a conversation sends all requests to one URL
    def parse(cls, url: str) -> "HttpAddress":
        """Parses a URL. Raises ConfigurationError; its message omits the query, which may hold a key."""
        url_without_query = url.partition("?")[0]
        try:
            parts = urlsplit(url.strip())
            port = parts.port or _DEFAULT_PORTS[parts.scheme.lower()]
            host = _ascii_host(parts.hostname or "")
        except (KeyError, ValueError) as error:
            raise ConfigurationError(f"not a valid HTTP URL: {url_without_query}") from error
        if not host or any(char.isspace() for char in host):
            raise ConfigurationError(f"not a valid HTTP URL: {url_without_query}")
        query = f"?{parts.query}" if parts.query else ""
        target = quote(f"{parts.path or '/'}{query}", safe=_SAFE_CHARACTERS)
        return cls(parts.scheme.lower(), host, port, target, _basic_credentials(parts.username, parts.password))

    @property
    def is_secure(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def authority_with_port(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def absolute_url(self) -> str:
        """The URL form that proxies require in the request line."""
        return f"{self.scheme}://{self.authority}{self.target}"


def _basic_credentials(user: str | None, password: str | None) -> str:
    if user is None and password is None:
        return ""
    pair = f"{unquote(user or '')}:{unquote(password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _ascii_host(host: str) -> str:
    """Encodes the host name for DNS. ASCII names skip the IDNA codec, whose import is slow."""
    if not host.isascii():
        return host.encode("idna").decode()
    if host and not all(0 < len(label) <= _MAX_LABEL_LENGTH for label in host.removesuffix(".").split(".")):
        raise ValueError(host)
    return host


PoolKey = tuple[str, str, int, str | None]
"""Scheme, host, port and proxy; connections with equal keys are interchangeable."""


_METHODS_WITHOUT_BODY = frozenset({"GET", "HEAD"})


class RequestTarget:
    """Encodes requests to one URL. It caches the encoded head, since only Content-Length differs between requests."""

    def __init__(self, url: str, proxy: str | None) -> None:
        self.address = HttpAddress.parse(url)
        self.proxy = HttpAddress.parse(proxy) if proxy else None
        self.pool_key: PoolKey = (self.address.scheme, self.address.host, self.address.port, proxy)
        self._headers: dict[str, str] | None = None
        self._method = ""
        self._head_prefix = b""

    def encode_request(self, request: HttpRequest) -> bytes:
        if request.headers != self._headers or request.method != self._method:
            self._head_prefix = self._encode_head(request.method, request.headers)
            self._headers, self._method = dict(request.headers), request.method
        if not request.body and request.method in _METHODS_WITHOUT_BODY:
            return self._head_prefix + b"\r\n"
        return b"".join((self._head_prefix, b"content-length: %d\r\n\r\n" % len(request.body), request.body))

    def _encode_head(self, method: str, request_headers: dict[str, str]) -> bytes:
        address, proxy = self.address, self.proxy
        headers = {"host": address.authority, "accept": "*/*", "user-agent": "outrider"}
        headers["accept-encoding"] = "identity"  # a compressing proxy would delay events
        if address.credentials:
            headers["authorization"] = address.credentials
        target = address.target
        if proxy is not None and not address.is_secure:
            target = address.absolute_url
            if proxy.credentials:
                headers["proxy-authorization"] = proxy.credentials
        headers |= {name.lower(): value for name, value in request_headers.items()}
        for name in ("content-length", "transfer-encoding"):  # the body is complete, so its length is known
            headers.pop(name, None)
        return encode_head(method, target, headers).removesuffix(b"\r\n")
