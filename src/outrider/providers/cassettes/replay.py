"""A transport that answers from a cassette and never from the network."""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from outrider.errors import NetworkError, ProviderError, StalledStreamError
from outrider.providers.cassettes.cassette import (
    Cassette,
    RecordedCall,
    RecordedChunk,
    RecordedExchange,
    RecordedFailure,
)
from outrider.providers.cassettes.compare import first_difference, without_own_ids
from outrider.providers.cassettes.scrub import Scrubber
from outrider.providers.provider import HttpCall
from outrider.providers.transport.transport import HttpAnswer

_FAILURES: dict[str, type[NetworkError]] = {"NetworkError": NetworkError, "StalledStreamError": StalledStreamError}


class ReplayTransport:
    """Gives each call the first exchange on the cassette that means the same and was not played yet.

    The host may be another one, and so may ids that we make up; the path and the rest of the body may not, except for
    the fields named in `ignore` (see `first_difference`). With `timing`, chunks arrive as slowly as they did.
    """

    def __init__(
        self,
        cassette: Cassette,
        *,
        ignore: Collection[str] = (),
        secrets: Collection[str] = (),
        timing: bool = False,
    ) -> None:
        self._cassette = cassette
        self._ignore = ignore
        self._scrubber = Scrubber(secrets)
        self._timing = timing
        self._unplayed: list[RecordedExchange] | None = None

    @property
    def unplayed(self) -> list[RecordedExchange]:
        """What nobody has asked for yet, in the order of the recording."""
        if self._unplayed is None:
            self._unplayed = [replace(one, call=_comparable(one.call)) for one in self._cassette.exchanges()]
        return self._unplayed

    async def send(self, call: HttpCall) -> HttpAnswer:
        sent = _comparable(self._scrubber.call(call))
        for position, exchange in enumerate(self.unplayed):
            if self._difference(exchange.call, sent) is None:
                del self.unplayed[position]
                if exchange.status is None:
                    raise _error(exchange.failure)
                return _ReplayedAnswer(exchange, exchange.status, timing=self._timing)
        raise self._mismatch(sent)

    async def aclose(self) -> None:
        pass

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


def _comparable(call: RecordedCall) -> RecordedCall:
    return replace(call, body=without_own_ids(call.body))


class _ReplayedAnswer:
    def __init__(self, exchange: RecordedExchange, status: int, *, timing: bool) -> None:
        self.status = status
        self.headers: Mapping[str, str] = _Headers(exchange.headers)
        self._failure = exchange.failure
        self._chunks: Iterator[RecordedChunk] = iter(exchange.chunks)
        self._timing = timing
        self._at = 0

    async def read(self) -> bytes:
        chunk = next(self._chunks, None)
        if chunk is None:
            if self._failure is not None:
                raise _error(self._failure)
            return b""
        await asyncio.sleep((chunk.at - self._at) / 1000 if self._timing else 0)
        self._at = chunk.at
        return chunk.content()

    def progress(self) -> None:
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
