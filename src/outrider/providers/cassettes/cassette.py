"""A cassette: what was sent to providers and what came back, one exchange per line of a file."""

import base64
import binascii
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from outrider.errors import ConfigurationError

VERSION = 1


class RecordedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was sent, without secrets. `body` is JSON where it was JSON, else text."""

    url: str
    body: Any = None
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
    """`status` is None when no answer came at all; `failure` ends an answer that was not whole."""

    call: RecordedCall
    status: int | None = None
    headers: dict[str, str] = {}
    chunks: tuple[RecordedChunk, ...] = ()
    failure: RecordedFailure | None = None


class _Head(msgspec.Struct, frozen=True):
    cassette: int


_decode = msgspec.json.Decoder(RecordedExchange).decode


class Cassette:
    """A file of exchanges, read when it is first played and appended to as they end."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def exchanges(self) -> list[RecordedExchange]:
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            raise ConfigurationError(f"there is no cassette {self.path}; record one first") from None
        self._check_head(lines[:1])
        return [self._exchange(number, line) for number, line in enumerate(lines[1:], 2) if line.strip()]

    def erase(self) -> None:
        """Begin the file anew."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(msgspec.json.encode(_Head(VERSION)) + b"\n")

    def add(self, exchange: RecordedExchange) -> None:
        if not self.path.exists():
            self.erase()
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(exchange) + b"\n")

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


def whole(chunks: Iterable[RecordedChunk]) -> bytes:
    return b"".join(chunk.content() for chunk in chunks)
