"""A transport that writes down what it carries."""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from time import monotonic
from typing import Any, Protocol

import msgspec

from outrider import errors
from outrider.errors import NetworkError, ProviderError
from outrider.providers.cassettes.cassette import Cassette, RecordedChunk, RecordedExchange, RecordedFailure
from outrider.providers.cassettes.scrub import Scrubber
from outrider.providers.provider import HttpCall, ModelClient
from outrider.providers.transport.transport import HttpAnswer, Transport
from outrider.types.deltas import Delta, Finish
from outrider.types.request import Request


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


_decode_delta = msgspec.json.Decoder(Delta).decode


class _Refusal(msgspec.Struct, frozen=True):
    error: str
    message: str
    type: str | None = None
    status: int | None = None

    def as_error(self) -> ProviderError:
        error: ProviderError = getattr(errors, self.error, ProviderError)(
            self.message, status=self.status, type=self.type
        )
        error.retryable = False  # whoever was asked has asked again already
        return error


class NonHttpWire:
    """How such an exchange is written and read."""

    def __init__(self, name: str, family: str) -> None:
        self._name = name
        self._family = family

    def family(self, model: str) -> str:
        return self._family

    def call(self, request: Request) -> HttpCall:
        body: dict[str, Any] = {
            "model": request.model,
            "system": request.system,
            "tools": request.tools,
            "settings": request.settings,
            "messages": [message.to_api_format() for message in request.prompt],
        }
        return HttpCall(f"model://{self._name}/{request.model}", {}, msgspec.json.encode(body, enc_hook=repr))

    def decoder(self, request: Request) -> "_DeltaDecoder":
        return _DeltaDecoder()

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return ProviderError("a cassette holds an answer that no model gave", status=status, type="replay")


class _DeltaDecoder:
    closable = False

    def __init__(self) -> None:
        self._whole = False

    def feed(self, event: str, data: bytes) -> Iterable[Delta]:
        if event == "error":
            raise msgspec.json.decode(data, type=_Refusal).as_error()
        delta: Delta = _decode_delta(data)
        self._whole = self._whole or isinstance(delta, Finish)
        return [delta]

    def whole(self, body: bytes) -> Iterable[Delta]:
        return self.feed("", body)

    def close(self) -> Iterable[Delta]:
        if not self._whole:
            raise NetworkError("the recorded answer is not whole", type="replay")
        return []


class RecordingClient:
    """Asks another client, and keeps every exchange on a cassette."""

    def __init__(self, client: ModelClient, cassette: Cassette, *, secrets: Collection[str] = ()) -> None:
        self.name = client.name
        self._scrubber = Scrubber(secrets)
        self._client = client
        self._cassette = cassette

    def family(self, model: str) -> str:
        return self._client.family(model)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        call = NonHttpWire(self.name, "").call(request)
        events: list[str] = []
        cut = True
        try:
            async with aclosing(self._client.stream(request)) as deltas:
                async for delta in deltas:
                    events.append(f"data: {msgspec.json.encode(delta).decode()}\n\n")
                    yield delta
            cut = False
        except ProviderError as error:
            cut = False
            refusal = _Refusal(type(error).__name__, error.message, error.type, error.status)
            events.append(f"event: error\ndata: {msgspec.json.encode(refusal).decode()}\n\n")
            raise
        finally:
            self._keep(call, events, cut=cut)

    async def aclose(self) -> None:
        """The client belongs to somebody else."""

    def _keep(self, call: HttpCall, events: list[str], *, cut: bool) -> None:
        chunks = self._scrubber.chunks([RecordedChunk(text=text) for text in events], call)
        self._cassette.add(RecordedExchange(self._scrubber.call(call), status=200, chunks=chunks, cut=cut))
