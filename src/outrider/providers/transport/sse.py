"""Server-sent events, read from bytes that arrive in any pieces."""

from outrider.errors import MalformedAnswerError

MAX_EVENT_BYTES = 16 * 1024 * 1024
_NAMES = 64
_BOM = b"\xef\xbb\xbf"
_BRACES, _CLOSERS = b"{[", b"}]"

ServerEvent = tuple[str, bytes]
"""The event's name ("" when it has none) and its data, which is valid UTF-8."""


class EventReader:
    """Lines end in LF, CRLF or CR, also where a chunk ends between the two. Memory is bounded by one event.

    More tolerant than the standard in two ways that real gateways need: an event without its final blank line
    counts when the stream ends, and bare JSON, on one line or on several up to a blank one, is an event of its own.
    """

    __slots__ = ("_after_cr", "_bare", "_counted", "_data", "_limit", "_name", "_names", "_size", "_started", "_tail")

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._tail = bytearray()  # the line that has not ended
        self._after_cr = False  # a line feed at the head of the next chunk belongs to the last line
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
        last = chunk[-1]
        if last != 0x0A:
            self._after_cr = last == 0x0D
            if not self._after_cr:
                rest = lines.pop()
                if not lines:
                    return self._keep(rest)
                lines[0] = self._line(lines[0])
                self._keep(rest)
                return self._read(lines)
        lines[0] = self._line(lines[0])
        return self._read(lines)

    def close(self) -> list[ServerEvent]:
        """The stream has ended: what a missing line end or blank line held back."""
        lines = [self._line(b"")] if self._tail else []
        return self._read([*lines, b""])

    def _keep(self, rest: bytes) -> list[ServerEvent]:
        self._tail += rest
        self._bound(len(self._tail))
        return []

    def _line(self, end: bytes) -> bytes:
        """The first line of a chunk, with what earlier chunks held of it."""
        if self._tail:
            self._tail += end
            end = bytes(self._tail)
            self._tail = bytearray()
        if not self._started:
            self._started = True
            end = end.removeprefix(_BOM)
        return end

    def _read(self, lines: list[bytes]) -> list[ServerEvent]:
        events: list[ServerEvent] = []
        for line in lines:
            if line[:6] == b"data: ":
                self._data.append(line[6:])
            elif not line:
                if self._data:
                    events.append((self._name, self._take()))
                self._name = ""
            elif line[:6] == b"event:":
                self._name = self._names.get(line) or self._read_name(line)
            else:
                self._unusual(line, events)
        if self._data:
            self._bound_data()
        return events

    def _read_name(self, line: bytes) -> str:
        name = line[6:].decode("utf-8", "replace").strip()
        if len(self._names) < _NAMES:  # a stream has few; a hostile one may have many
            self._names[line] = name
        return name

    def _unusual(self, line: bytes, events: list[ServerEvent]) -> None:
        """Comments, ids, retry times and unknown fields say nothing about the answer."""
        if line[:5] == b"data:":
            self._data.append(line[5:])
        elif line == b"data":
            self._data.append(b"")
        elif self._bare:
            self._data.append(line)
        elif line[0] in _BRACES:
            self._read_bare(line, events)
        elif line[0] == 0 and (bare := line.lstrip(b"\0")):  # padding of a broken proxy
            events += self._read([bare])

    def _read_bare(self, line: bytes, events: list[ServerEvent]) -> None:
        """Gateways send errors like this, in the middle of a stream."""
        if line.rstrip()[-1] in _CLOSERS:
            events.append(("", _text(line)))
        elif not self._data:
            self._bare = True
            self._data.append(line)

    def _take(self) -> bytes:
        data = self._data
        whole = data[0] if len(data) == 1 else b"\n".join(data)
        self._data = []
        self._bare = False
        self._counted = self._size = 0
        return whole if whole.isascii() else _text(whole)

    def _bound_data(self) -> None:
        """Of an event that has not ended, count the lines that are new."""
        self._size += sum(map(len, self._data[self._counted :]))
        self._counted = len(self._data)
        self._bound(self._size)

    def _bound(self, size: int) -> None:
        if size > self._limit:
            error = MalformedAnswerError(
                f"one event of the stream is larger than {self._limit} bytes", type="event_too_large"
            )
            error.retryable = False
            raise error


def _text(data: bytes) -> bytes:
    """The same bytes, or with what is not UTF-8 replaced, as the standard says."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode()
    return data
