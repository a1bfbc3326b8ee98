"""Replay: a transport that serves responses from a cassette and never uses the network; and the factory that selects
recording or replay."""

import asyncio
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from outrider.errors import NetworkError, ProviderError, StalledStreamError
from outrider.http.http1 import HttpHeaders
from outrider.http.transport import HttpRequest, HttpResponse, HttpTransport
from outrider.providers.cassettes.cassette import (
    Cassette,
    RecordedCall,
    RecordedChunk,
    RecordedExchange,
    RecordedFailure,
    SecretScrubber,
)
from outrider.providers.cassettes.record import RecordingTransport

_MAX_SHOWN_CHARACTERS = 120
_INDEX = re.compile(r"\[\d+\]")
_OWN_ID = re.compile(
    r"[0-9a-f]{8}(?P<dash>-?)[0-9a-f]{4}(?P=dash)7[0-9a-f]{3}(?P=dash)[89ab][0-9a-f]{3}(?P=dash)[0-9a-f]{12}"
)


def first_difference(recorded: Any, sent: Any, ignore: Collection[str] = (), path: str = "") -> str | None:
    """Describes the first difference between two JSON values; None if they are equal.

    `ignore` names fields by dotted path without list positions: "metadata.user_id", "messages.content.id".
    """
    if _INDEX.sub("", path) in ignore:
        return None
    if isinstance(recorded, dict) and isinstance(sent, dict):
        return _diff_fields(cast("dict[str, Any]", recorded), cast("dict[str, Any]", sent), ignore, path)
    if isinstance(recorded, list) and isinstance(sent, list):
        return _diff_items(cast("list[Any]", recorded), cast("list[Any]", sent), ignore, path)
    same_kind = isinstance(recorded, bool) == isinstance(sent, bool)  # True is 1 in Python, not in JSON
    return None if same_kind and recorded == sent else f"{path or 'body'}: {_describe_difference(recorded, sent)}"


def replace_own_ids(body: Any) -> Any:
    """Replaces each UUIDv7, the format of our ids, with a number in order of first appearance.

    Ids are new in every run, so only their equality within a body is comparable.
    """
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return numbers.setdefault(match[0], f"<id {len(numbers) + 1}>")

    def walk(value: Any) -> Any:
        match value:
            case str():
                return _OWN_ID.sub(number, value)
            case [*items]:
                return [walk(item) for item in items]
            case {**fields}:
                return {name: walk(fields[name]) for name in sorted(fields)}
            case _:
                return value

    return walk(body)


def _diff_fields(recorded: dict[str, Any], sent: dict[str, Any], ignore: Collection[str], path: str) -> str | None:
    for name in [*recorded, *(name for name in sent if name not in recorded)]:
        field_path = f"{path}.{name}" if path else name
        if _INDEX.sub("", field_path) in ignore:
            continue
        if name not in sent:
            return f"{field_path}: recorded {_shorten_repr(recorded[name])}, not sent"
        if name not in recorded:
            return f"{field_path}: not recorded, sent {_shorten_repr(sent[name])}"
        if difference := first_difference(recorded[name], sent[name], ignore, field_path):
            return difference
    return None


def _diff_items(recorded: list[Any], sent: list[Any], ignore: Collection[str], path: str) -> str | None:
    for position, (recorded_item, sent_item) in enumerate(zip(recorded, sent, strict=False)):
        if difference := first_difference(recorded_item, sent_item, ignore, f"{path}[{position}]"):
            return difference
    if len(recorded) != len(sent):
        return f"{path or 'body'}: recorded {len(recorded)} items, sent {len(sent)}"
    return None


def _describe_difference(recorded: Any, sent: Any) -> str:
    """Describes two different values; long strings are shown from the first differing character."""
    if not (isinstance(recorded, str) and isinstance(sent, str)):
        return f"recorded {_shorten_repr(recorded)}, sent {_shorten_repr(sent)}"
    pairs = enumerate(zip(recorded, sent, strict=False))
    position = next((index for index, (a, b) in pairs if a != b), min(len(recorded), len(sent)))
    if position < _MAX_SHOWN_CHARACTERS // 2:
        return f"recorded {_shorten_repr(recorded)}, sent {_shorten_repr(sent)}"
    start = position - 20
    return (
        f"from character {position}: recorded …{_shorten_repr(recorded[start:])}, sent …{_shorten_repr(sent[start:])}"
    )


def _shorten_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"


_FAILURES: dict[str, type[NetworkError]] = {"NetworkError": NetworkError, "StalledStreamError": StalledStreamError}


DifferenceCallback = Callable[[str], None]
"""Receives a description of how a request differs from the recorded one whose response it gets."""


class ReplayTransport:
    """Returns the first unplayed exchange whose request matches.

    The path and body must be equal, except for the host, our own ids and the fields in `ignore` (see
    `first_difference`). A request without a match fails; with a difference callback, it gets the response of the most
    similar request instead. `timing` replays chunks with their recorded delays.
    """

    def __init__(
        self,
        cassette: Cassette,
        *,
        ignore: Collection[str] = (),
        secrets: Collection[str] = (),
        timing: bool = False,
    ) -> None:
        self._exchanges = UnplayedExchanges(cassette, ignore)
        self._scrubber = SecretScrubber(secrets)
        self._timing = timing
        self._on_difference: DifferenceCallback | None = None
        self._last_call: RecordedCall | None = None  # of the last response that was replayed for a differing request

    @property
    def unplayed(self) -> list[RecordedExchange]:
        """The exchanges that were not replayed yet, in recorded order."""
        return self._exchanges.unplayed

    def with_difference_callback(self, on_difference: DifferenceCallback) -> "ReplayTransport":
        """Returns a transport over the same exchanges that reports differences instead of failing.

        It also removes recorded Retry-After headers, so that retries do not wait.
        """
        transport = copy(self)
        transport._on_difference = on_difference
        return transport

    def expects(self, request: HttpRequest) -> bool:
        """Whether the recording has an unplayed exchange for this request. A failed request that was not sent again
        when it was recorded is not sent again now."""
        sent = _normalize_call(self._scrubber.scrub_request(request))
        return self._exchanges.has_match(self._last_call if self._last_call is not None else sent)

    async def send(self, request: HttpRequest) -> HttpResponse:
        exchange = self._exchanges.take_match(
            _normalize_call(self._scrubber.scrub_request(request)), self._on_difference
        )
        if self._on_difference is not None:
            self._last_call = exchange.call
            headers = {name: value for name, value in exchange.headers.items() if not name.startswith("retry-after")}
            exchange = replace(exchange, headers=headers)
        if exchange.status is None:
            raise _to_error(exchange.failure)
        return _ReplayedResponse(exchange, exchange.status, timing=self._timing)

    async def aclose(self) -> None:
        pass


class UnplayedExchanges:
    """The exchanges of a cassette that were not replayed yet; loads the file on first use."""

    def __init__(self, cassette: Cassette, ignore: Collection[str] = ()) -> None:
        self._cassette = cassette
        self._ignore = ignore
        self._unplayed: list[RecordedExchange] | None = None

    @property
    def unplayed(self) -> list[RecordedExchange]:
        if self._unplayed is None:
            self._unplayed = [
                replace(exchange, call=_normalize_call(exchange.call)) for exchange in self._cassette.read_exchanges()
            ]
        return self._unplayed

    def take_match(self, sent: RecordedCall, on_difference: DifferenceCallback | None) -> RecordedExchange:
        unplayed = self.unplayed
        position = self._find_match(sent)
        if position is None and on_difference is not None and unplayed:
            position = _find_most_similar(unplayed, sent)
            on_difference(self._find_difference(unplayed[position].call, sent) or "")
        if position is None:
            raise self._mismatch_error(sent)
        return unplayed.pop(position)

    def has_match(self, sent: RecordedCall) -> bool:
        return self._find_match(sent) is not None

    def _find_match(self, sent: RecordedCall) -> int | None:
        matches = (
            position
            for position, exchange in enumerate(self.unplayed)
            if self._find_difference(exchange.call, sent) is None
        )
        return next(matches, None)

    def _find_difference(self, recorded: RecordedCall, sent: RecordedCall) -> str | None:
        paths = tuple(urlsplit(call.url)._replace(scheme="", netloc="").geturl() for call in (recorded, sent))
        if paths[0] != paths[1]:
            return _name_changed_default(f"the URL: recorded {paths[0]}, sent {paths[1]}")
        bodies = recorded.body, sent.body
        if "system" in self._ignore:
            bodies = _without_system(recorded.body), _without_system(sent.body)
        difference = first_difference(*bodies, self._ignore)
        return None if difference is None else _name_changed_default(difference)

    def _mismatch_error(self, sent: RecordedCall) -> ProviderError:
        reason = "all its exchanges were replayed, and another request was sent"
        if self.unplayed:
            reason = f"the next recorded request differs in {self._find_difference(self.unplayed[0].call, sent)}"
        return ProviderError(
            f"the cassette {self._cassette.path} does not contain this request: {reason}. Record it again if the "
            "change is intended",
            type="replay_mismatch",
        )


def _without_system(body: Any) -> Any:
    """Returns a request without its system prompt, which is in a different field in every API."""
    if not isinstance(body, dict):
        return body
    names = ("system", "instructions", "systemInstruction")
    fields = {name: value for name, value in cast("dict[str, Any]", body).items() if name not in names}
    if isinstance(fields.get("messages"), list):
        roles = ("system", "developer")
        fields["messages"] = [
            message
            for message in fields["messages"]
            if not (isinstance(message, dict) and cast("Any", message).get("role") in roles)
        ]
    return fields


# Requests of version 0.1 differ in these fields, because a default changed.
_CHANGED_DEFAULTS = {
    r"(thinking|output_config|reasoning|reasoning_effort|settings\.reasoning|generationConfig\S*): ": (
        "reasoning is on by default since 0.2; reasoning=False sends what 0.1 sent"
    ),
    r"the URL: recorded \S*/chat/completions, sent \S*/responses": (
        'the provider "openai" uses Responses since 0.2; kind = "openai" keeps Chat Completions'
    ),
    r"(system|instructions|systemInstruction)\b": (
        "the prompts of the default agent changed in 0.2; a custom prompt `agent.md` preserves the earlier ones"
    ),
}


def _name_changed_default(difference: str) -> str:
    reasons = (reason for start, reason in _CHANGED_DEFAULTS.items() if re.match(start, difference))
    reason = next(reasons, None)
    return f"{difference} ({reason})" if reason else difference


def _find_most_similar(unplayed: Sequence[RecordedExchange], sent: RecordedCall) -> int:
    """Returns the position of the request with the longest common body prefix; conversations only append."""
    body = msgspec.json.encode(sent.body)

    def agreement(position: int) -> int:
        recorded = msgspec.json.encode(unplayed[position].call.body)
        return next((index for index, (a, b) in enumerate(zip(body, recorded, strict=False)) if a != b), len(body))

    return max(range(len(unplayed)), key=agreement)


def _normalize_call(call: RecordedCall) -> RecordedCall:
    return replace(call, body=replace_own_ids(call.body))


class _ReplayedResponse:
    def __init__(self, exchange: RecordedExchange, status: int, *, timing: bool) -> None:
        self.status = status
        self.headers: Mapping[str, str] = HttpHeaders(list(exchange.headers.items()))
        self._failure = _cut_error() if exchange.cut else exchange.failure and _to_error(exchange.failure)
        self._chunks: Iterator[RecordedChunk] = iter(exchange.chunks)
        self._timing = timing
        self._at = 0

    async def read(self) -> bytes:
        chunk = next(self._chunks, None)
        if chunk is None:
            if self._failure is not None:
                raise self._failure
            return b""
        await asyncio.sleep((chunk.at - self._at) / 1000 if self._timing else 0)
        self._at = chunk.at
        return chunk.to_bytes()

    def mark_progress(self) -> None:
        pass

    def expect_end(self) -> None:
        pass

    def limit_remaining(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        self._chunks = iter(())


def _to_error(failure: RecordedFailure | None) -> NetworkError:
    if failure is None:
        return NetworkError("no answer was recorded", type="replay")
    return _FAILURES.get(failure.error, NetworkError)(failure.message, type=failure.type)


def _cut_error() -> NetworkError:
    """Returns the error for the unrecorded rest of a response that its reader closed; not raised after the end mark."""
    error = NetworkError("the recording ends here, because its reader closed the response", type="replay")
    error.retryable = False
    return error


class CassetteOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider option `cassette`.

    `ignore` lists body fields that may differ on replay ("system": the system prompt of any API), `secrets` lists
    strings to redact in addition to keys, `timing` replays chunks with their recorded delays.
    """

    path: str
    mode: Literal["record", "replay"] = "replay"
    ignore: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    timing: bool = False


class CassetteTransportFactory:
    """Wraps the transports of all clients that share one cassette."""

    def __init__(self, options: CassetteOptions, cassette: Cassette | None = None) -> None:
        self.options = options
        self.cassette = cassette or Cassette(options.path)
        self.replay_transport = ReplayTransport(
            self.cassette, ignore=options.ignore, secrets=options.secrets, timing=options.timing
        )

    def wrap_transport(self, network: HttpTransport) -> HttpTransport:
        """Returns a transport that records from `network`, or one that replays and never uses it."""
        if self.options.mode == "replay":
            return self.replay_transport
        return RecordingTransport(network, self.cassette, secrets=self.options.secrets)
