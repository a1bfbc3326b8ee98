"""Recording: a transport and a model client that append every exchange to a cassette."""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from time import monotonic
from typing import Any, Protocol

import msgspec

from outrider import errors
from outrider.errors import NetworkError, ProviderError
from outrider.http.transport import HttpRequest, HttpResponse, HttpTransport
from outrider.providers.cassettes.cassette import (
    Cassette,
    RecordedChunk,
    RecordedExchange,
    RecordedFailure,
    SecretScrubber,
)
from outrider.providers.provider import ModelClient
from outrider.types.request import Delta, Finish, Request


class RecordingTransport:
    """Sends requests over another transport and appends each exchange to the cassette when it ends."""

    def __init__(
        self,
        transport: HttpTransport,
        cassette: Cassette,
        *,
        secrets: Collection[str] = (),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._transport = transport
        self._cassette = cassette
        self._scrubber = SecretScrubber(secrets)
        self._clock = clock

    async def send(self, request: HttpRequest) -> HttpResponse:
        sent_at = self._clock()
        try:
            response = await self._transport.send(request)
        except NetworkError as error:
            self._add_exchange(
                RecordedExchange(
                    self._scrubber.scrub_request(request), failure=self._to_recorded_failure(error, request)
                )
            )
            raise
        return _RecordedResponse(
            response, lambda: int((self._clock() - sent_at) * 1000), self._create_writer(request, response)
        )

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _create_writer(self, call: HttpRequest, response: HttpResponse) -> "ExchangeWriter":
        def write_exchange(chunks: list[RecordedChunk], error: NetworkError | None, *, cut: bool = False) -> None:
            self._add_exchange(
                RecordedExchange(
                    self._scrubber.scrub_request(call),
                    status=response.status,
                    headers=self._scrubber.scrub_headers(response.headers, call),
                    chunks=self._scrubber.scrub_chunks(chunks, call),
                    failure=self._to_recorded_failure(error, call) if error else None,
                    cut=cut,
                )
            )

        return write_exchange

    def _to_recorded_failure(self, error: NetworkError, call: HttpRequest) -> RecordedFailure:
        return RecordedFailure(type(error).__name__, self._scrubber.scrub_text(error.message, call), error.type)

    def _add_exchange(self, exchange: RecordedExchange) -> None:
        self._cassette.add(exchange)


class ExchangeWriter(Protocol):
    """Appends an exchange with these chunks to the cassette."""

    def __call__(self, chunks: list[RecordedChunk], error: NetworkError | None, *, cut: bool = False) -> None: ...


class _RecordedResponse:
    """A response that is recorded once: at its end, when it fails, or when the reader closes it."""

    def __init__(self, response: HttpResponse, elapsed: Callable[[], int], write_exchange: ExchangeWriter) -> None:
        self._response = response
        self._elapsed = elapsed
        self._write_exchange: ExchangeWriter | None = write_exchange
        self._chunks: list[RecordedChunk] = []

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def read(self) -> bytes:
        try:
            content = await self._response.read()
        except NetworkError as error:
            self._write_once(error)
            raise
        if content:
            self._chunks.append(RecordedChunk.from_bytes(content, self._elapsed()))
        else:
            self._write_once(None)
        return content

    def mark_progress(self) -> None:
        self._response.mark_progress()

    def expect_end(self) -> None:
        self._response.expect_end()

    def limit_remaining(self, seconds: float) -> None:
        self._response.limit_remaining(seconds)

    def close(self) -> None:
        self._response.close()
        self._write_once(None, cut=True)

    def _write_once(self, error: NetworkError | None, *, cut: bool = False) -> None:
        write_exchange, self._write_exchange = self._write_exchange, None
        if write_exchange is not None:
            write_exchange(self._chunks, error, cut=cut)


_decode_delta = msgspec.json.Decoder(Delta).decode


class _RecordedError(msgspec.Struct, frozen=True):
    error: str
    message: str
    type: str | None = None
    status: int | None = None

    def to_error(self) -> ProviderError:
        error: ProviderError = getattr(errors, self.error, ProviderError)(
            self.message, status=self.status, type=self.type
        )
        error.retryable = False  # the recorded client had already retried
        return error


class NonHttpWire:
    """The wire format for recorded clients that do not use HTTP: a JSON body and a stream of encoded deltas."""

    def __init__(self, name: str, family: str) -> None:
        self._name = name
        self._family = family

    def model_family(self, model: str) -> str:
        return self._family

    def build_request(self, request: Request) -> HttpRequest:
        settings = msgspec.structs.asdict(request.settings)
        if not request.settings.vendor_tools:
            del settings["vendor_tools"]  # recordings of version 0.1 do not have it
        body: dict[str, Any] = {
            "model": request.model,
            "system": request.system,
            "tools": request.tools,
            "settings": settings,
            "messages": [message.to_api_format() for message in request.prompt],
        }
        return HttpRequest(f"model://{self._name}/{request.model}", {}, msgspec.json.encode(body, enc_hook=repr))

    def create_decoder(self, request: Request) -> "_DeltaDecoder":
        return _DeltaDecoder()

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return ProviderError("the cassette contains an unexpected error status", status=status, type="replay")


class _DeltaDecoder:
    is_complete = False

    def __init__(self) -> None:
        self._finished = False

    def feed(self, event: str, data: bytes) -> Iterable[Delta]:
        if event == "error":
            raise msgspec.json.decode(data, type=_RecordedError).to_error()
        delta: Delta = _decode_delta(data)
        self._finished = self._finished or isinstance(delta, Finish)
        return [delta]

    def decode_body(self, body: bytes) -> Iterable[Delta]:
        return self.feed("", body)

    def close(self) -> Iterable[Delta]:
        if not self._finished:
            raise NetworkError("the recorded answer is incomplete", type="replay")
        return []


class RecordingClient:
    """Streams from another client and records every exchange; for clients that do not use HTTP."""

    def __init__(self, client: ModelClient, cassette: Cassette, *, secrets: Collection[str] = ()) -> None:
        self.name = client.name
        self.repeats_requests = getattr(client, "repeats_requests", False)
        self._scrubber = SecretScrubber(secrets)
        self._client = client
        self._cassette = cassette

    def model_family(self, model: str) -> str:
        return self._client.model_family(model)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        call = NonHttpWire(self.name, "").build_request(request)
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
            recorded_error = _RecordedError(type(error).__name__, error.message, error.type, error.status)
            events.append(f"event: error\ndata: {msgspec.json.encode(recorded_error).decode()}\n\n")
            raise
        finally:
            self._write_exchange(call, events, cut=cut)

    async def aclose(self) -> None:
        """Does nothing: the caller owns the wrapped client."""

    def _write_exchange(self, call: HttpRequest, events: list[str], *, cut: bool) -> None:
        chunks = self._scrubber.scrub_chunks([RecordedChunk(text=text) for text in events], call)
        self._cassette.add(RecordedExchange(self._scrubber.scrub_request(call), status=200, chunks=chunks, cut=cut))
