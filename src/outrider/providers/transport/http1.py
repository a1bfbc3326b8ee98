"""The heads of HTTP messages: written for a call, read from an answer."""

import base64
import re
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit

import msgspec

from outrider.errors import ConfigurationError, NetworkError
from outrider.providers.provider import HttpCall

LARGEST = 128 * 1024
_FORBIDDEN = re.compile(r"[\r\n\0]")


class Headers(Mapping[str, str]):
    """Found in any case; what comes several times is joined, as the standard says."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._values: dict[str, str] = {}
        for given, value in pairs:
            name = given.lower()
            known = self._values.get(name)
            self._values[name] = value if known is None else f"{known}, {value}"

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name.lower(), default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Head:
    """The head of an answer."""

    __slots__ = ("headers", "status", "version")

    def __init__(self, version: str, status: int, headers: Headers) -> None:
        self.version = version
        self.status = status
        self.headers = headers

    @property
    def stays_open(self) -> bool:
        """Whether the connection can take another call after this answer."""
        said = [word.strip() for word in self.headers.get("connection", "").lower().split(",")]
        return "close" not in said if self.version == "HTTP/1.1" else "keep-alive" in said


def written(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1"]
    for name, value in headers.items():
        if _FORBIDDEN.search(value) or _FORBIDDEN.search(name):
            raise ConfigurationError(f"the header {name!r} holds a line break or a NUL, which no header may")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


def end_of(data: bytearray) -> int:
    """Where the head ends and the body begins; -1 while it is not whole. Lines may end without a carriage return."""
    place = data.find(b"\r\n\r\n")
    if place >= 0:
        return place + 4
    place = data.find(b"\n\n")
    if place >= 0:
        return place + 2
    if len(data) > LARGEST:
        raise NetworkError("the head of the answer has no end; this is no HTTP server", type="disconnected")
    return -1


def read(data: bytes) -> Head:
    first, *lines = data.decode("latin-1").replace("\r\n", "\n").rstrip("\n").split("\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not status.isdecimal() or len(status) != 3:
        raise NetworkError("what answers there does not speak HTTP", type="disconnected")
    pairs: list[tuple[str, str]] = []
    for line in lines:
        if line[:1] in (" ", "\t") and pairs:
            name, value = pairs.pop()
            pairs.append((name, f"{value} {line.strip()}"))
            continue
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise NetworkError("the head of the answer is damaged", type="disconnected")
        pairs.append((name, value.strip()))
    return Head(version, int(status), Headers(pairs))


_LONGEST_LINE = 16 * 1024
_PACKED = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_HEADED = _PACKED["deflate"]
_GZIP = b"\x1f\x8b"
_LARGEST_PIECE = 64 * 1024 * 1024
_BODILESS = (204, 304)


class Body(Protocol):
    """`feed` gives what of the body the bytes hold; `ended` says that it is whole, `rest` what came after it."""

    @property
    def ended(self) -> bool: ...

    @property
    def rest(self) -> bytes: ...

    def feed(self, data: bytes) -> bytes: ...

    def close(self) -> None:
        """It ended, or no more bytes come. Raises NetworkError where some are missing."""
        ...


def body_of(head: Head) -> Body:
    body = _framed(head)
    packing = head.headers.get("content-encoding", "identity").strip().lower()
    if packing in ("", "identity"):
        return body
    if packing not in _PACKED:
        raise NetworkError(f"the answer is packed as {packing}, which was not asked for", type="encoding")
    return DecompressedBody(body, _PACKED[packing])


def _framed(head: Head) -> "ContentLengthBody | Chunked | UntilCloseBody":
    if head.status in _BODILESS:
        return ContentLengthBody(0)
    codings = head.headers.get("transfer-encoding", "").lower()
    if codings:
        if codings.rpartition(",")[2].strip() != "chunked":
            raise NetworkError(f"the answer is sent as {codings}, which cannot be read", type="encoding")
        return Chunked()
    length = head.headers.get("content-length", "")
    if length.isdecimal():
        return ContentLengthBody(int(length))
    lengths = {length.strip() for length in length.split(",")} - {""}
    if not lengths:
        return UntilCloseBody()
    if len(lengths) > 1 or not next(iter(lengths)).isdecimal():
        raise NetworkError("the answer contradicts itself about its length", type="disconnected")
    return ContentLengthBody(int(lengths.pop()))


class ContentLengthBody:
    """So many bytes, as announced."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.ended = length == 0
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        if len(data) > self._left:
            data, self.rest = data[: self._left], data[self._left :]
        self._left -= len(data)
        self.ended = self._left == 0
        return data

    def close(self) -> None:
        if not self.ended:
            raise NetworkError("the connection broke: the answer is shorter than announced", type="disconnected")


class UntilCloseBody:
    """Everything up to the end of the connection."""

    def __init__(self) -> None:
        self.ended = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        return data

    def close(self) -> None:
        self.ended = True


class Chunked:
    """Pieces that each say how long they are; an empty one is the last."""

    def __init__(self) -> None:
        self._held = b""
        self._left = 0  # bytes of the piece under way
        self._state = "size"
        self.ended = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        if self._held:
            data, self._held = self._held + data, b""
        pieces: list[bytes] = []
        place = 0
        while place < len(data) and not self.ended:
            if self._state == "piece":
                piece = data[place : place + self._left]
                place += len(piece)
                self._left -= len(piece)
                pieces.append(piece)
                if not self._left:
                    self._state = "gap"
                continue
            line_end = data.find(b"\n", place)
            if line_end < 0:
                self._hold(data[place:])
                return b"".join(pieces)
            self._line(data[place:line_end].strip())
            place = line_end + 1
        if self.ended:
            self.rest = data[place:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        if not self.ended:
            raise NetworkError("the connection broke: the answer has no end", type="disconnected")

    def _hold(self, line: bytes) -> None:
        if len(line) > _LONGEST_LINE:
            raise NetworkError("the answer is damaged between two of its pieces", type="disconnected")
        self._held = line

    def _line(self, line: bytes) -> None:
        """A size, the empty line after a piece, or what follows the last piece and means nothing here."""
        if self._state == "trailer":
            self.ended = not line
        elif self._state == "gap":
            if line:
                raise NetworkError("the answer is damaged between two of its pieces", type="disconnected")
            self._state = "size"
        else:
            self._left = _size(line)
            self._state = "piece" if self._left else "trailer"


class DecompressedBody:
    """A body that somebody compressed, although we never ask for it. It may consist of several packed pieces, and what
    is called deflate comes with or without a head."""

    def __init__(self, body: "ContentLengthBody | Chunked | UntilCloseBody", window: int) -> None:
        self._body = body
        self._window = window
        self._unpack = zlib.decompressobj(window)
        self._held: bytes | None = b"" if window == _HEADED else None  # until it is known whether there is a head

    @property
    def ended(self) -> bool:
        return self._body.ended

    @property
    def rest(self) -> bytes:
        return self._body.rest

    def feed(self, data: bytes) -> bytes:
        try:
            return self._unpacked(self._body.feed(data))
        except zlib.error as error:
            raise NetworkError(f"the answer cannot be unpacked: {error}", type="encoding") from error

    def close(self) -> None:
        self._body.close()
        if not self._unpack.eof:
            raise NetworkError("the connection broke: the packed answer has no end", type="disconnected")

    def _unpacked(self, packed: bytes) -> bytes:
        if self._held is not None:
            packed = self._held + packed
            if len(packed) < 2:
                self._held = packed
                return b""
            self._held = None
            if packed[0] & 0x0F != zlib.DEFLATED or int.from_bytes(packed[:2]) % 31:
                self._unpack = zlib.decompressobj(-self._window)
        pieces: list[bytes] = []
        while packed:
            if self._unpack.eof:
                if not _GZIP.startswith(packed[:2]):
                    break  # padding
                self._unpack = zlib.decompressobj(self._window)
            pieces.append(self._unpack.decompress(packed, _LARGEST_PIECE))
            if self._unpack.unconsumed_tail:
                raise _bomb()
            packed = self._unpack.unused_data
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _bomb() -> NetworkError:
    error = NetworkError(f"a piece of the answer unpacks to more than {_LARGEST_PIECE} bytes", type="encoding")
    error.retryable = False
    return error


def _size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or len(digits) > 15 or any(char not in b"0123456789abcdefABCDEF" for char in digits):
        raise NetworkError("the answer is damaged between two of its pieces", type="disconnected")
    return int(digits, 16)


_PORTS = {"http": 80, "https": 443}
_LONGEST_LABEL = 63
# Everything that may stand in a path or query as it is; a percent sign is the caller's own quoting.
_SAFE = "/%:@!$&'()*+,;=~-._?"


class Address(msgspec.Struct, frozen=True):
    """`credentials` are those that stood before the host, ready for a Basic authorization."""

    scheme: str
    host: str
    port: int
    target: str = "/"
    credentials: str = ""

    @classmethod
    @lru_cache(maxsize=64)  # a conversation calls one address again and again
    def of(cls, url: str) -> "Address":
        """Raises ConfigurationError for what cannot be called; what may be secret in it is not repeated."""
        shown = url.partition("?")[0]
        try:
            place = urlsplit(url.strip())
            port = place.port or _PORTS[place.scheme.lower()]
            host = _plain(place.hostname or "")
        except (KeyError, ValueError) as error:
            raise ConfigurationError(f"not an address that can be called: {shown}") from error
        if not host or any(char.isspace() for char in host):
            raise ConfigurationError(f"not an address that can be called: {shown}")
        query = f"?{place.query}" if place.query else ""
        target = quote(f"{place.path or '/'}{query}", safe=_SAFE)
        return cls(place.scheme.lower(), host, port, target, _basic(place.username, place.password))

    @property
    def secure(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def authority_with_port(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def whole(self) -> str:
        """As a proxy wants it."""
        return f"{self.scheme}://{self.authority}{self.target}"


def _basic(user: str | None, password: str | None) -> str:
    if user is None and password is None:
        return ""
    pair = f"{unquote(user or '')}:{unquote(password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _plain(host: str) -> str:
    """In ASCII, as names are looked up. A name that is so already need not wait for a codec of all alphabets."""
    if not host.isascii():
        return host.encode("idna").decode()
    if host and not all(0 < len(label) <= _LONGEST_LABEL for label in host.removesuffix(".").split(".")):
        raise ValueError(host)
    return host


Route = tuple[str, str, int, str | None]
"""What connections have in common that can take each other's place."""


class RequestTarget:
    """The same headers go with call after call: they are written once, all but the length of the body."""

    def __init__(self, url: str, proxy: str | None) -> None:
        self.place = Address.of(url)
        self.proxy = Address.of(proxy) if proxy else None
        self.route: Route = (self.place.scheme, self.place.host, self.place.port, proxy)
        self._headers: dict[str, str] | None = None
        self._opening = b""

    def request(self, call: HttpCall) -> bytes:
        if call.headers != self._headers:
            self._opening = self._written(call.headers)
            self._headers = dict(call.headers)
        return b"".join((self._opening, b"content-length: %d\r\n\r\n" % len(call.body), call.body))

    def _written(self, given: dict[str, str]) -> bytes:
        place, proxy = self.place, self.proxy
        headers = {"host": place.authority, "accept": "*/*", "user-agent": "outrider"}
        headers["accept-encoding"] = "identity"  # a compressing proxy would hold events back
        if place.credentials:
            headers["authorization"] = place.credentials
        target = place.target
        if proxy is not None and not place.secure:
            target = place.whole
            if proxy.credentials:
                headers["proxy-authorization"] = proxy.credentials
        headers |= {name.lower(): value for name, value in given.items()}
        headers.pop("content-length", None)
        return written("POST", target, headers).removesuffix(b"\r\n")
