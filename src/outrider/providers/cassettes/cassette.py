"""The cassette file format: one JSON line per recorded exchange with a provider, without secrets."""

import base64
import binascii
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec
from msgspec.structs import replace

from outrider.errors import ConfigurationError
from outrider.http.transport import HttpRequest
from outrider.permissions.redaction.redactor import HIDDEN_SECRET, is_secret_name
from outrider.providers.error_mapping import redact_secrets

_MAX_RECENT_BODIES = 4  # parallel conversations, such as those of several subagents


class BodyGrowth(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request body encoded as the difference from the body of exchange number `after`.

    `same` names unchanged fields, `goes_on` extends lists (shared item count, new items), `new` holds all other fields.
    """

    after: int
    same: tuple[str, ...] = ()
    goes_on: dict[str, tuple[int, list[Any]]] = {}
    new: dict[str, Any] = {}

    def apply_to(self, earlier: dict[str, Any]) -> dict[str, Any]:
        unchanged = {name: earlier[name] for name in self.same}
        grown = {name: [*earlier[name][:count], *new_items] for name, (count, new_items) in self.goes_on.items()}
        return unchanged | grown | self.new


class RecentBodies:
    """The most recent bodies by exchange number, as bases for encoding the next one."""

    def __init__(self) -> None:
        self._bodies: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def encode_growth(self, number: int, body: Any) -> BodyGrowth | None:
        """Encodes the body as growth of the most similar recent body; None if none shares a list prefix."""
        if not isinstance(body, dict):
            return None
        fields = cast("dict[str, Any]", body)
        candidates = [(after, _count_shared_items(earlier, fields)) for after, earlier in self._bodies.items()]
        after, shared = max(candidates, key=lambda candidate: candidate[1], default=(0, 0))
        growth = _diff_bodies(after, self._bodies[after], fields) if shared else None
        if growth is not None:
            del self._bodies[after]  # the new body replaces its base
        self._bodies[number] = fields
        while len(self._bodies) > _MAX_RECENT_BODIES:
            self._bodies.popitem(last=False)
        return growth


def _count_shared_items(earlier: dict[str, Any], body: dict[str, Any]) -> int:
    return sum(
        _common_prefix_length(earlier.get(name), value) for name, value in body.items() if isinstance(value, list)
    )


def _diff_bodies(after: int, earlier: dict[str, Any], body: dict[str, Any]) -> BodyGrowth:
    same = tuple(name for name, value in body.items() if name in earlier and earlier[name] == value)
    changed = {name: value for name, value in body.items() if name not in same}
    counts = {name: _common_prefix_length(earlier.get(name), value) for name, value in changed.items()}
    goes_on = {name: (count, changed[name][count:]) for name, count in counts.items() if count}
    return BodyGrowth(after, same, goes_on, {name: value for name, value in changed.items() if name not in goes_on})


def _common_prefix_length(earlier: Any, value: Any) -> int:
    """Returns the number of equal items at the start of two lists; 0 if either value is not a list."""
    if not isinstance(earlier, list) or not isinstance(value, list):
        return 0
    pairs = zip(cast("list[Any]", earlier), cast("list[Any]", value), strict=False)
    return next((position for position, (a, b) in enumerate(pairs) if a != b), min(len(earlier), len(value)))  # pyright: ignore


CASSETTE_VERSION = 1


class RecordedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request without secrets. `body` is decoded JSON, else text; `growth` replaces it in compact cassettes."""

    url: str
    body: Any = None
    growth: BodyGrowth | None = None
    headers: dict[str, str] = {}
    method: str = "POST"


class RecordedChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes received `at` milliseconds after the request was sent: `text` if they are UTF-8, else `base64`."""

    at: int = 0
    text: str = ""
    base64: str = ""

    @classmethod
    def from_bytes(cls, content: bytes, at: int) -> "RecordedChunk":
        try:
            return cls(at, text=content.decode())
        except UnicodeDecodeError:  # the chunk splits a character, or is binary
            return cls(at, base64=base64.b64encode(content).decode())

    def to_bytes(self) -> bytes:
        try:
            return base64.b64decode(self.base64, validate=True) if self.base64 else self.text.encode()
        except binascii.Error as error:
            raise ConfigurationError(f"a chunk of the cassette is not valid base64: {error}") from error


class RecordedFailure(msgspec.Struct, frozen=True):
    """The error that broke the connection: class name, message and type."""

    error: str
    message: str
    type: str | None = None


class RecordedExchange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request and its response.

    `status` is None without a response. `failure` is the error that ended an incomplete response. `cut` is True when
    the reader closed the response before its end.
    """

    call: RecordedCall
    status: int | None = None
    headers: dict[str, str] = {}
    chunks: tuple[RecordedChunk, ...] = ()
    failure: RecordedFailure | None = None
    cut: bool = False


class _CassetteHeader(msgspec.Struct, frozen=True):
    cassette: int


_decode_exchange = msgspec.json.Decoder(RecordedExchange).decode


class Cassette:
    """A file of exchanges, appended to while recording.

    A `compact` cassette stores each body as the difference from an earlier one. That saves space; full bodies are
    easier to read.
    """

    def __init__(self, path: str | Path, *, compact: bool = False) -> None:
        self.path = Path(path)
        self._bodies = RecentBodies() if compact else None
        self._count: int | None = None
        self._written = False

    def read_exchanges(self) -> list[RecordedExchange]:
        """Reads all complete exchanges; ignores an incomplete last line, which a killed process leaves."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            raise ConfigurationError(f"the cassette {self.path} does not exist; record it first") from None
        lines = content[: content.rfind(b"\n") + 1].split(b"\n")
        self._check_header(lines[:1])
        exchanges: list[RecordedExchange] = []
        for number, line in enumerate(lines[1:], 2):
            if line.strip():
                exchanges.append(_restore_body(self._decode_line(number, line), exchanges))
        return exchanges

    def erase(self) -> None:
        """Replaces the file with an empty cassette."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(msgspec.json.encode(_CassetteHeader(CASSETTE_VERSION)) + b"\n")

    def add(self, exchange: RecordedExchange) -> None:
        if not self.path.exists():
            self.erase()
        elif not self._written:
            self._cut_torn_line()
        self._written = True
        if self._bodies is not None:
            exchange = self._compact_body(exchange, self._bodies)
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(exchange) + b"\n")

    def _cut_torn_line(self) -> None:
        with self.path.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)

    def _compact_body(self, exchange: RecordedExchange, bodies: RecentBodies) -> RecordedExchange:
        if self._count is None:
            self._count = len(self.read_exchanges())
        self._count += 1
        growth = bodies.encode_growth(self._count, exchange.call.body)
        return exchange if growth is None else replace(exchange, call=replace(exchange.call, body=None, growth=growth))

    def _check_header(self, first_lines: Sequence[bytes]) -> None:
        try:
            version = msgspec.json.decode(first_lines[0], type=_CassetteHeader).cassette if first_lines else 0
        except msgspec.MsgspecError:
            version = 0
        if version != CASSETTE_VERSION:
            raise ConfigurationError(f"{self.path} is not a cassette with format version {CASSETTE_VERSION}")

    def _decode_line(self, number: int, line: bytes) -> RecordedExchange:
        try:
            return _decode_exchange(line)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(f"{self.path}, line {number}: {error}") from error


def _restore_body(exchange: RecordedExchange, earlier: Sequence[RecordedExchange]) -> RecordedExchange:
    growth = exchange.call.growth
    if growth is None:
        return exchange
    if not 0 < growth.after <= len(earlier):
        raise ConfigurationError(f"the cassette refers to exchange {growth.after}, which it does not contain")
    body = growth.apply_to(earlier[growth.after - 1].call.body)
    return replace(exchange, call=replace(exchange.call, body=body, growth=None))


def join_chunks(chunks: Iterable[RecordedChunk]) -> bytes:
    """Returns the body that the chunks make up."""
    return b"".join(chunk.to_bytes() for chunk in chunks)


_SENT_HEADERS = {"accept", "content-type", "anthropic-version", "anthropic-beta", "openai-beta"}
_RECEIVED_HEADERS = {
    "content-type", "retry-after", "retry-after-ms", "x-should-retry", "request-id", "x-request-id",
}  # fmt: skip


class SecretScrubber:
    """Redacts the keys of a request, text that looks like a key, and the given secrets."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        # Longest first: one secret may contain another.
        self._secrets = sorted((secret for secret in secrets if secret), key=len, reverse=True)

    def scrub_request(self, request: HttpRequest) -> RecordedCall:
        return RecordedCall(
            url=self._scrub_url(request),
            body=_decode_body(self._scrub_bytes(request.body, request)),
            headers={
                name.lower(): self.scrub_text(value, request)
                for name, value in request.headers.items()
                if name.lower() in _SENT_HEADERS
            },
        )

    def scrub_headers(self, headers: Mapping[str, str], request: HttpRequest) -> dict[str, str]:
        return {
            name.lower(): self.scrub_text(value, request)
            for name, value in headers.items()
            if name.lower() in _RECEIVED_HEADERS or "ratelimit" in name.lower()
        }

    def scrub_chunks(self, chunks: Sequence[RecordedChunk], request: HttpRequest) -> tuple[RecordedChunk, ...]:
        """Redacts each chunk; merges all chunks into one if a secret spans a chunk boundary."""
        body = join_chunks(chunks)
        clean = self._scrub_bytes(body, request)
        if clean == body:
            return tuple(chunks)
        single = tuple(
            RecordedChunk.from_bytes(self._scrub_bytes(chunk.to_bytes(), request), chunk.at) for chunk in chunks
        )
        return single if join_chunks(single) == clean else (RecordedChunk.from_bytes(clean, chunks[0].at),)

    def scrub_text(self, text: str, request: HttpRequest) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN_SECRET).replace(quote(secret, safe=""), HIDDEN_SECRET)
        return redact_secrets(text, request)

    def _scrub_bytes(self, content: bytes, request: HttpRequest) -> bytes:
        text = content.decode(errors="surrogateescape")
        return self.scrub_text(text, request).encode(errors="surrogateescape")

    def _scrub_url(self, request: HttpRequest) -> str:
        address = urlsplit(request.url)
        query = [
            (name, HIDDEN_SECRET if is_secret_name(name) else value)
            for name, value in parse_qsl(address.query, keep_blank_values=True)
        ]
        host = address.netloc.rpartition("@")[2]
        plain = urlunsplit((address.scheme, host, address.path, urlencode(query, safe="[]"), ""))
        return self.scrub_text(plain, request)


def _decode_body(content: bytes) -> object:
    try:
        return msgspec.json.decode(content)
    except msgspec.MsgspecError:
        return content.decode(errors="replace")
