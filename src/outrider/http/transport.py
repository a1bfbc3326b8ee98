"""The transport contract: send an encoded request, return a response whose body is read in chunks. The module also has
the parser for server-sent events, of which a streamed body consists."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Protocol

import msgspec

from outrider.errors import ConfigurationError, MalformedAnswerError
from outrider.types.request import BodyLayout
from outrider.types.validate import ArgumentsMeta, is_positive_number

ProxySelector = Callable[[str], str | None]
"""Returns the proxy URL for a request URL, or None for a direct connection."""


class HttpRequest(msgspec.Struct, frozen=True):
    """An encoded HTTP request.

    - `url`: the complete URL, which may contain a key in its query.
    - `headers`: are added to the headers of the transport, or replace them.
    - `body`: the encoded body.
    - `method`: the HTTP method.
    - `patience`: multiplies the timeouts for a server that sends nothing.
    - `start_patience`: multiplies only the timeout for the first byte.
    - `layout`: describes the composition of the body of a request to a model.
    """

    url: str
    headers: dict[str, str]
    body: bytes = b""
    method: str = "POST"
    patience: float = 1.0
    start_patience: float = 1.0
    layout: BodyLayout | None = None

    def __repr__(self) -> str:
        """Omits the query, the headers and the body: they may hold keys, and this text appears in logs."""
        return f"HttpRequest({self.url.partition('?')[0]!r}, {len(self.body)} bytes)"


class HttpTimeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=ArgumentsMeta):
    """Timeouts in seconds; `math.inf` means none. They measure only the time spent waiting for the server, not the
    reader's own time.

    - `connect`: limits opening the connection, including TLS.
    - `first_byte`: limits the wait for the first byte of the body.
    - `idle`: limits the time between two received chunks.
    - `quiet`: limits the time in which only keep-alives arrive and no delta.
    - `total`: limits the whole response.
    - `closing`: replaces `idle` once the answer is complete and only the end of the stream is missing.
    """

    connect: float = 15.0
    first_byte: float = 120.0
    idle: float = 90.0
    quiet: float = 600.0
    total: float = 3600.0
    closing: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not is_positive_number(value := getattr(self, name)):  # every request would fail at once
                raise ConfigurationError(f"HttpTimeouts({name}={value!r}): it is a number of seconds above 0")

    def scaled_for(self, request: HttpRequest) -> "HttpTimeouts":
        """Returns the timeouts, with a longer wait for a silent server if the request asks for it."""
        patience, start = request.patience, request.patience * request.start_patience
        return self if start == 1.0 else _scaled_timeouts(self, patience, start)


@lru_cache(maxsize=64)
def _scaled_timeouts(timeouts: HttpTimeouts, patience: float, start: float) -> HttpTimeouts:
    """Returns the timeouts multiplied by these factors. Cached, because the constructor checks every value."""
    return msgspec.structs.replace(
        timeouts,
        first_byte=timeouts.first_byte * start,
        idle=timeouts.idle * patience,
        quiet=timeouts.quiet * patience,
    )


class HttpResponse(Protocol):
    """A response whose head was received. `headers` ignores the case of names."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self) -> bytes:
        """Returns the next bytes of the body; b"" at its end. Raises NetworkError when the connection broke."""
        ...

    def mark_progress(self) -> None:
        """Resets the `quiet` timeout: the received bytes contained a delta, not only keep-alives."""
        ...

    def expect_end(self) -> None:
        """Switches to the shorter `closing` timeout, because the answer is complete."""
        ...

    def limit_remaining(self, seconds: float) -> None:
        """Limits the further wait for this response to this many seconds."""
        ...

    def close(self) -> None:
        """Releases the response; the connection is aborted if the body was not read to its end."""
        ...


class HttpTransport(Protocol):
    """Sends requests. `HttpClient` uses the network; cassettes record from it or replay without it."""

    async def send(self, request: HttpRequest) -> HttpResponse: ...

    async def aclose(self) -> None: ...


MAX_EVENT_BYTES = 16 * 1024 * 1024
_MAX_CACHED_NAMES = 64
_BOM = b"\xef\xbb\xbf"
_BRACES, _CLOSERS = b"{[", b"}]"

ServerEvent = tuple[str, bytes]
"""The name of an event ("" for none) and its data, which is valid UTF-8."""


class ServerEventReader:
    """Parses server-sent events from chunks of any size. It buffers at most one event, up to `limit` bytes.

    Lines end with LF, CRLF or CR; a chunk may end between CR and LF. The parser accepts two deviations from the
    standard that real gateways need: the last event may lack its blank line, and bare JSON without a `data:` field, on
    one line or on several up to a blank line, is an event.
    """

    __slots__ = ("_after_cr", "_bare", "_counted", "_data", "_limit", "_name", "_names", "_size", "_started", "_tail")

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._tail = bytearray()  # the incomplete last line
        self._after_cr = False  # a line feed at the start of the next chunk completes a CRLF
        self._started = False
        self._name = ""
        self._names: dict[bytes, str] = {}
        self._data: list[bytes] = []
        self._bare = False  # whether the data is JSON without field names
        self._counted = self._size = 0

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == 0x0A:
                chunk = chunk[1:]
        if not chunk:
            return []
        lines = chunk.splitlines()
        last_byte = chunk[-1]
        if last_byte != 0x0A:
            self._after_cr = last_byte == 0x0D
            if not self._after_cr:
                tail = lines.pop()
                if not lines:
                    return self._buffer_tail(tail)
                lines[0] = self._complete_line(lines[0])
                self._buffer_tail(tail)
                return self._read_lines(lines)
        lines[0] = self._complete_line(lines[0])
        return self._read_lines(lines)

    def close(self) -> list[ServerEvent]:
        """Returns the event that was buffered because its line end or blank line is missing."""
        lines = [self._complete_line(b"")] if self._tail else []
        return self._read_lines([*lines, b""])

    def _buffer_tail(self, tail: bytes) -> list[ServerEvent]:
        self._tail += tail
        self._check_size(len(self._tail))
        return []

    def _complete_line(self, end: bytes) -> bytes:
        """Joins the first line of a chunk with the buffered start of that line."""
        if self._tail:
            self._tail += end
            end = bytes(self._tail)
            self._tail = bytearray()
        if not self._started:
            self._started = True
            end = end.removeprefix(_BOM)
        return end

    def _read_lines(self, lines: list[bytes]) -> list[ServerEvent]:
        events: list[ServerEvent] = []
        for line in lines:
            if line[:6] == b"data: ":
                self._data.append(line[6:])
            elif not line:
                if self._data:
                    events.append((self._name, self._take_data()))
                self._name = ""
            elif line[:6] == b"event:":
                self._name = self._names.get(line) or self._read_name(line)
            else:
                self._read_other_line(line, events)
        if self._data:
            self._check_data_size()
        return events

    def _read_name(self, line: bytes) -> str:
        name = line[6:].decode("utf-8", "replace").strip()
        if len(self._names) < _MAX_CACHED_NAMES:  # bounds the cache; streams use few names
            self._names[line] = name
        return name

    def _read_other_line(self, line: bytes, events: list[ServerEvent]) -> None:
        """Reads the rarer forms of data lines; ignores comments, ids, retry times and unknown fields."""
        if line[:5] == b"data:":
            self._data.append(line[5:])
        elif line == b"data":
            self._data.append(b"")
        elif self._bare:
            self._data.append(line)
        elif line[0] in _BRACES:
            self._read_bare(line, events)
        elif line[0] == 0 and (bare := line.lstrip(b"\0")):  # some proxies pad with NUL bytes
            events += self._read_lines([bare])

    def _read_bare(self, line: bytes, events: list[ServerEvent]) -> None:
        """Reads JSON without a field name; gateways report errors like this in the middle of a stream."""
        if line.rstrip()[-1] in _CLOSERS:
            events.append(("", _replace_invalid_utf8(line)))
        elif not self._data:
            self._bare = True
            self._data.append(line)

    def _take_data(self) -> bytes:
        data = self._data
        joined = data[0] if len(data) == 1 else b"\n".join(data)
        self._data = []
        self._bare = False
        self._counted = self._size = 0
        return joined if joined.isascii() else _replace_invalid_utf8(joined)

    def _check_data_size(self) -> None:
        """Adds the new lines of an incomplete event to its size."""
        self._size += sum(map(len, self._data[self._counted :]))
        self._counted = len(self._data)
        self._check_size(self._size)

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            error = MalformedAnswerError(
                f"an event of the stream is larger than {self._limit} bytes", type="event_too_large"
            )
            error.retryable = False
            raise error


def _replace_invalid_utf8(data: bytes) -> bytes:
    """Returns the bytes with invalid UTF-8 replaced, as the standard requires."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode()
    return data
