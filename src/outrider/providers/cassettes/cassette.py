"""A cassette: what was sent to providers and what came back, one exchange per line of a file."""

import base64
import binascii
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from outrider.errors import ConfigurationError

_REMEMBERED = 4  # conversations that go on side by side, such as those of agents that were called together


class Growth(msgspec.Struct, frozen=True, omit_defaults=True):
    """A body, as what it adds to that of exchange number `after`: fields that are the same, lists that go on, and the
    rest."""

    after: int
    same: tuple[str, ...] = ()
    goes_on: dict[str, tuple[int, list[Any]]] = {}
    new: dict[str, Any] = {}

    def upon(self, earlier: dict[str, Any]) -> dict[str, Any]:
        kept = {name: earlier[name] for name in self.same}
        grown = {name: [*earlier[name][:count], *rest] for name, (count, rest) in self.goes_on.items()}
        return kept | grown | self.new


class Bodies:
    """The last bodies that were written, by the numbers of their exchanges."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def shrink(self, number: int, body: Any) -> Growth | None:
        """The body as growth of the one that it repeats most of; None when it has to be written whole."""
        if not isinstance(body, dict):
            return None
        given = cast("dict[str, Any]", body)
        found = [(after, _shared(earlier, given)) for after, earlier in self._known.items()]
        after, shared = max(found, key=lambda one: one[1], default=(0, 0))
        growth = _growth(after, self._known[after], given) if shared else None
        if growth is not None:
            del self._known[after]  # the longer one stands for both
        self._known[number] = given
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return growth


def _shared(earlier: dict[str, Any], body: dict[str, Any]) -> int:
    return sum(_agreement(earlier.get(name), value) for name, value in body.items() if isinstance(value, list))


def _growth(after: int, earlier: dict[str, Any], body: dict[str, Any]) -> Growth:
    same = tuple(name for name, value in body.items() if name in earlier and earlier[name] == value)
    rest = {name: value for name, value in body.items() if name not in same}
    counts = {name: _agreement(earlier.get(name), value) for name, value in rest.items()}
    goes_on = {name: (count, rest[name][count:]) for name, count in counts.items() if count}
    return Growth(after, same, goes_on, {name: value for name, value in rest.items() if name not in goes_on})


def _agreement(earlier: Any, value: Any) -> int:
    """How many items two lists have in common at their head."""
    if not isinstance(earlier, list) or not isinstance(value, list):
        return 0
    pairs = zip(cast("list[Any]", earlier), cast("list[Any]", value), strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(earlier), len(value)))  # pyright: ignore


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
