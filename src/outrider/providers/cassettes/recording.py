"""A transport that writes down what it carries."""

from collections.abc import Callable, Collection, Mapping
from time import monotonic
from typing import Protocol

from outrider.errors import NetworkError
from outrider.providers.cassettes.cassette import (
    Cassette,
    RecordedChunk,
    RecordedExchange,
    RecordedFailure,
)
from outrider.providers.cassettes.scrub import Scrubber
from outrider.providers.provider import HttpCall
from outrider.providers.transport.transport import HttpAnswer, Transport


class RecordingTransport:
    """Carries calls over another transport; every exchange is on the cassette when it has ended."""

    def __init__(
        self,
        transport: Transport,
        cassette: Cassette,
        *,
        secrets: Collection[str] = (),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._transport = transport
        self._cassette = cassette
        self._scrubber = Scrubber(secrets)
        self._clock = clock

    async def send(self, call: HttpCall) -> HttpAnswer:
        sent = self._clock()
        try:
            answer = await self._transport.send(call)
        except NetworkError as error:
            self._keep(RecordedExchange(self._scrubber.call(call), failure=self._failure(error, call)))
            raise
        return _RecordedAnswer(answer, lambda: int((self._clock() - sent) * 1000), self._keeper(call, answer))

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _keeper(self, call: HttpCall, answer: HttpAnswer) -> "Keep":
        def keep(chunks: list[RecordedChunk], error: NetworkError | None, *, cut: bool = False) -> None:
            self._keep(
                RecordedExchange(
                    self._scrubber.call(call),
                    status=answer.status,
                    headers=self._scrubber.headers(answer.headers, call),
                    chunks=self._scrubber.chunks(chunks, call),
                    failure=self._failure(error, call) if error else None,
                    cut=cut,
                )
            )

        return keep

    def _failure(self, error: NetworkError, call: HttpCall) -> RecordedFailure:
        return RecordedFailure(type(error).__name__, self._scrubber.text(error.message, call), error.type)

    def _keep(self, exchange: RecordedExchange) -> None:
        self._cassette.add(exchange)


class Keep(Protocol):
    def __call__(self, chunks: list[RecordedChunk], error: NetworkError | None, *, cut: bool = False) -> None: ...


class _RecordedAnswer:
    """An answer that is kept once: at its end, when it breaks, or when its reader lets go."""

    def __init__(self, answer: HttpAnswer, elapsed: Callable[[], int], keep: Keep) -> None:
        self._answer = answer
        self._elapsed = elapsed
        self._keep: Keep | None = keep
        self._chunks: list[RecordedChunk] = []

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._answer.headers

    async def read(self) -> bytes:
        try:
            content = await self._answer.read()
        except NetworkError as error:
            self._end(error)
            raise
        if content:
            self._chunks.append(RecordedChunk.of(content, self._elapsed()))
        else:
            self._end(None)
        return content

    def progress(self) -> None:
        self._answer.progress()

    def settle(self) -> None:
        self._answer.settle()

    def hurry(self, seconds: float) -> None:
        self._answer.hurry(seconds)

    def close(self) -> None:
        self._answer.close()
        self._end(None, cut=True)

    def _end(self, error: NetworkError | None, *, cut: bool = False) -> None:
        keep, self._keep = self._keep, None
        if keep is not None:
            keep(self._chunks, error, cut=cut)
