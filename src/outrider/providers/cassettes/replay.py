"""A transport that answers from a cassette and never from the network."""

import asyncio
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from outrider.errors import NetworkError, ProviderError, StalledStreamError
from outrider.providers.cassettes.cassette import (
    Cassette,
    RecordedCall,
    RecordedChunk,
    RecordedExchange,
    RecordedFailure,
)
from outrider.providers.cassettes.scrub import Scrubber
from outrider.providers.provider import HttpCall
from outrider.providers.transport.transport import HttpAnswer

_SHOWN = 120
_INDEX = re.compile(r"\[\d+\]")
_OWN_ID = re.compile(
    r"[0-9a-f]{8}(?P<dash>-?)[0-9a-f]{4}(?P=dash)7[0-9a-f]{3}(?P=dash)[89ab][0-9a-f]{3}(?P=dash)[0-9a-f]{12}"
)


def first_difference(recorded: Any, sent: Any, ignore: Collection[str] = (), path: str = "") -> str | None:
    """In words, or None. Order of fields and spacing mean nothing. `ignore` names fields by their dotted path,
    without positions: "metadata.user_id", "messages.content.id"."""
    if _INDEX.sub("", path) in ignore:
        return None
    if isinstance(recorded, dict) and isinstance(sent, dict):
        return _in_fields(cast("dict[str, Any]", recorded), cast("dict[str, Any]", sent), ignore, path)
    if isinstance(recorded, list) and isinstance(sent, list):
        return _in_items(cast("list[Any]", recorded), cast("list[Any]", sent), ignore, path)
    same_kind = isinstance(recorded, bool) == isinstance(sent, bool)  # True is 1 in Python, not in JSON
    return None if same_kind and recorded == sent else f"{path or 'body'}: {_words(recorded, sent)}"


def without_own_ids(body: Any) -> Any:
    """The body with every id of ours (a UUID of version 7) replaced by the number of its first appearance: ids are new
    in every run, and mean only that what has the same one belongs together."""
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return numbers.setdefault(found[0], f"<id {len(numbers) + 1}>")

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


def _in_fields(recorded: dict[str, Any], sent: dict[str, Any], ignore: Collection[str], path: str) -> str | None:
    for name in [*recorded, *(name for name in sent if name not in recorded)]:
        place = f"{path}.{name}" if path else name
        if _INDEX.sub("", place) in ignore:
            continue
        if name not in sent:
            return f"{place}: recorded {_shown(recorded[name])}, not sent"
        if name not in recorded:
            return f"{place}: not recorded, sent {_shown(sent[name])}"
        if found := first_difference(recorded[name], sent[name], ignore, place):
            return found
    return None


def _in_items(recorded: list[Any], sent: list[Any], ignore: Collection[str], path: str) -> str | None:
    for position, (first, second) in enumerate(zip(recorded, sent, strict=False)):
        if found := first_difference(first, second, ignore, f"{path}[{position}]"):
            return found
    if len(recorded) != len(sent):
        return f"{path or 'body'}: recorded {len(recorded)} items, sent {len(sent)}"
    return None


def _words(recorded: Any, sent: Any) -> str:
    """Long texts are shown from where they part."""
    if not (isinstance(recorded, str) and isinstance(sent, str)):
        return f"recorded {_shown(recorded)}, sent {_shown(sent)}"
    pairs = enumerate(zip(recorded, sent, strict=False))
    place = next((at for at, (a, b) in pairs if a != b), min(len(recorded), len(sent)))
    if place < _SHOWN // 2:
        return f"recorded {_shown(recorded)}, sent {_shown(sent)}"
    start = place - 20
    return f"from character {place}: recorded …{_shown(recorded[start:])}, sent …{_shown(sent[start:])}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_FAILURES: dict[str, type[NetworkError]] = {"NetworkError": NetworkError, "StalledStreamError": StalledStreamError}


Differs = Callable[[str], None]
"""Told how a call differs from the recorded one whose answer it gets all the same."""


class ReplayTransport:
    """Gives each call the first exchange on the cassette that means the same and was not played yet.

    The host may be another one, and so may ids that we make up; the path and the rest of the body may not, except for
    the fields named in `ignore` (see `first_difference`). With `differs`, a call that is not on the cassette gets the
    answer of the one that is most like it, and `differs` is told; without, it fails. With `timing`, chunks arrive as
    slowly as they did.
    """

    def __init__(
        self,
        cassette: Cassette,
        *,
        ignore: Collection[str] = (),
        secrets: Collection[str] = (),
        timing: bool = False,
    ) -> None:
        self._tape = Tape(cassette, ignore)
        self._scrubber = Scrubber(secrets)
        self._timing = timing
        self._differs: Differs | None = None

    @property
    def unplayed(self) -> list[RecordedExchange]:
        """What nobody has asked for yet, in the order of the recording."""
        return self._tape.unplayed

    def telling(self, differs: Differs) -> "ReplayTransport":
        """Another player of the same tape, which tells of differences and goes on, and waits for nothing."""
        other = copy(self)
        other._differs = differs
        return other

    async def send(self, call: HttpCall) -> HttpAnswer:
        exchange = self._tape.take(_comparable(self._scrubber.call(call)), self._differs)
        if self._differs is not None:
            patient = {name: value for name, value in exchange.headers.items() if not name.startswith("retry-after")}
            exchange = replace(exchange, headers=patient)
        if exchange.status is None:
            raise _error(exchange.failure)
        return _ReplayedAnswer(exchange, exchange.status, timing=self._timing)

    async def aclose(self) -> None:
        pass


class Tape:
    """The exchanges of a cassette that wait to be played."""

    def __init__(self, cassette: Cassette, ignore: Collection[str] = ()) -> None:
        self._cassette = cassette
        self._ignore = ignore
        self._unplayed: list[RecordedExchange] | None = None

    @property
    def unplayed(self) -> list[RecordedExchange]:
        if self._unplayed is None:
            self._unplayed = [replace(one, call=_comparable(one.call)) for one in self._cassette.exchanges()]
        return self._unplayed

    def take(self, sent: RecordedCall, differs: Differs | None) -> RecordedExchange:
        waiting = self.unplayed
        same = (place for place, one in enumerate(waiting) if self._difference(one.call, sent) is None)
        place = next(same, None)
        if place is None and differs is not None and waiting:
            place = _most_alike(waiting, sent)
            differs(self._difference(waiting[place].call, sent) or "")
        if place is None:
            raise self._mismatch(sent)
        return waiting.pop(place)

    def _difference(self, recorded: RecordedCall, sent: RecordedCall) -> str | None:
        places = tuple(urlsplit(call.url)._replace(scheme="", netloc="").geturl() for call in (recorded, sent))
        if places[0] != places[1]:
            return f"the address: recorded {places[0]}, sent {places[1]}"
        return first_difference(recorded.body, sent.body, self._ignore)

    def _mismatch(self, sent: RecordedCall) -> ProviderError:
        words = "all of it was played, and one more call was made"
        if self.unplayed:
            words = f"the next one on it differs in {self._difference(self.unplayed[0].call, sent)}"
        return ProviderError(
            f"the cassette {self._cassette.path} does not hold this call: {words}. Record it again if that is meant",
            type="replay_mismatch",
        )


def _most_alike(waiting: Sequence[RecordedExchange], sent: RecordedCall) -> int:
    """The one whose body agrees longest from its start, the earliest of several: a conversation only grows."""
    body = msgspec.json.encode(sent.body)

    def agreement(place: int) -> int:
        other = msgspec.json.encode(waiting[place].call.body)
        return next((at for at, (a, b) in enumerate(zip(body, other, strict=False)) if a != b), len(body))

    return max(range(len(waiting)), key=agreement)


def _comparable(call: RecordedCall) -> RecordedCall:
    return replace(call, body=without_own_ids(call.body))


class _ReplayedAnswer:
    def __init__(self, exchange: RecordedExchange, status: int, *, timing: bool) -> None:
        self.status = status
        self.headers: Mapping[str, str] = _Headers(exchange.headers)
        self._failure = _let_go() if exchange.cut else exchange.failure and _error(exchange.failure)
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
        return chunk.content()

    def progress(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def hurry(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        self._chunks = iter(())


class _Headers(dict[str, str]):
    """Found in any case, like those of a real answer."""

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


def _error(failure: RecordedFailure | None) -> NetworkError:
    if failure is None:
        return NetworkError("no answer was recorded", type="replay")
    return _FAILURES.get(failure.error, NetworkError)(failure.message, type=failure.type)


def _let_go() -> NetworkError:
    """Nobody heard the rest, so nobody can play it; an answer that is whole does not care."""
    error = NetworkError("the recording ends here: its reader let the answer go", type="replay")
    error.retryable = False
    return error
