"""A cassette: what was sent to providers and what came back, one exchange per line of a file."""

import base64
import binascii
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from outrider.errors import ConfigurationError
from outrider.providers.cassettes.growth import Bodies, Growth

VERSION = 1


class RecordedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was sent, without secrets. `body` is JSON where it was JSON, else text; with `growth` it is that instead."""

    url: str
    body: Any = None
    growth: Growth | None = None
    headers: dict[str, str] = {}
    method: str = "POST"


class RecordedChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes that arrived together, `at` milliseconds after the call was sent: as text where they are text."""

    at: int = 0
    text: str = ""
    base64: str = ""

    @classmethod
    def of(cls, content: bytes, at: int) -> "RecordedChunk":
        try:
            return cls(at, text=content.decode())
        except UnicodeDecodeError:  # a character was cut in two, or these are no characters
            return cls(at, base64=base64.b64encode(content).decode())

    def content(self) -> bytes:
        try:
            return base64.b64decode(self.base64, validate=True) if self.base64 else self.text.encode()
        except binascii.Error as error:
            raise ConfigurationError(f"a chunk of the cassette is damaged: {error}") from error


class RecordedFailure(msgspec.Struct, frozen=True):
    """How the connection broke: the kind of error and its words."""

    error: str
    message: str
    type: str | None = None


class RecordedExchange(msgspec.Struct, frozen=True, omit_defaults=True):
    """`status` is None when no answer came at all; `failure` ends an answer that was not whole; one that is `cut` was
    let go by its reader."""

    call: RecordedCall
    status: int | None = None
    headers: dict[str, str] = {}
    chunks: tuple[RecordedChunk, ...] = ()
    failure: RecordedFailure | None = None
    cut: bool = False


class _Head(msgspec.Struct, frozen=True):
    cassette: int


_decode = msgspec.json.Decoder(RecordedExchange).decode


class Cassette:
    """A file of exchanges, read when it is first played and appended to as they end. A `compact` one writes what a
    request repeats of an earlier one only once; a person reads the other kind more easily."""

    def __init__(self, path: str | Path, *, compact: bool = False) -> None:
        self.path = Path(path)
        self._bodies = Bodies() if compact else None
        self._count: int | None = None
        self._written = False

    def exchanges(self) -> list[RecordedExchange]:
        """Those that are whole: a line without an end was torn off with the process that wrote it."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            raise ConfigurationError(f"there is no cassette {self.path}; record one first") from None
        lines = content[: content.rfind(b"\n") + 1].split(b"\n")
        self._check_head(lines[:1])
        found: list[RecordedExchange] = []
        for number, line in enumerate(lines[1:], 2):
            if line.strip():
                found.append(_whole_body(self._exchange(number, line), found))
        return found

    def erase(self) -> None:
        """Begin the file anew."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(msgspec.json.encode(_Head(VERSION)) + b"\n")

    def add(self, exchange: RecordedExchange) -> None:
        if not self.path.exists():
            self.erase()
        elif not self._written:
            self._cut_torn_line()
        self._written = True
        if self._bodies is not None:
            exchange = self._compact(exchange, self._bodies)
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(exchange) + b"\n")

    def _cut_torn_line(self) -> None:
        with self.path.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)

    def _compact(self, exchange: RecordedExchange, bodies: Bodies) -> RecordedExchange:
        if self._count is None:
            self._count = len(self.exchanges())
        self._count += 1
        growth = bodies.shrink(self._count, exchange.call.body)
        return exchange if growth is None else replace(exchange, call=replace(exchange.call, body=None, growth=growth))

    def _check_head(self, first: Sequence[bytes]) -> None:
        try:
            version = msgspec.json.decode(first[0], type=_Head).cassette if first else 0
        except msgspec.MsgspecError:
            version = 0
        if version != VERSION:
            raise ConfigurationError(f"{self.path} is not a cassette of version {VERSION}")

    def _exchange(self, number: int, line: bytes) -> RecordedExchange:
        try:
            return _decode(line)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(f"{self.path}, line {number}: {error}") from error


def _whole_body(exchange: RecordedExchange, earlier: Sequence[RecordedExchange]) -> RecordedExchange:
    growth = exchange.call.growth
    if growth is None:
        return exchange
    if not 0 < growth.after <= len(earlier):
        raise ConfigurationError(f"an exchange of the cassette goes on from number {growth.after}, which is not there")
    body = growth.upon(earlier[growth.after - 1].call.body)
    return replace(exchange, call=replace(exchange.call, body=body, growth=None))


def whole(chunks: Iterable[RecordedChunk]) -> bytes:
    return b"".join(chunk.content() for chunk in chunks)
