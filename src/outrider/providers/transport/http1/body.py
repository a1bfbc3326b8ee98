"""The body of an answer: where it ends, and what it holds once it is unpacked."""

import zlib
from typing import Protocol

from outrider.errors import NetworkError
from outrider.providers.transport.http1.head import Head

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
    return Unpacked(body, _PACKED[packing])


def _framed(head: Head) -> "Sized | Chunked | Open":
    if head.status in _BODILESS:
        return Sized(0)
    codings = head.headers.get("transfer-encoding", "").lower()
    if codings:
        if codings.rpartition(",")[2].strip() != "chunked":
            raise NetworkError(f"the answer is sent as {codings}, which cannot be read", type="encoding")
        return Chunked()
    length = head.headers.get("content-length", "")
    if length.isdecimal():
        return Sized(int(length))
    lengths = {length.strip() for length in length.split(",")} - {""}
    if not lengths:
        return Open()
    if len(lengths) > 1 or not next(iter(lengths)).isdecimal():
        raise NetworkError("the answer contradicts itself about its length", type="disconnected")
    return Sized(int(lengths.pop()))


class Sized:
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


class Open:
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


class Unpacked:
    """A body that somebody compressed, although we never ask for it. It may consist of several packed pieces, and what
    is called deflate comes with or without a head."""

    def __init__(self, body: "Sized | Chunked | Open", window: int) -> None:
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
