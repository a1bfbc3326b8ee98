"""Models reached without HTTP, on cassettes all the same: a request and its deltas are written like an exchange."""

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from outrider import errors
from outrider.errors import NetworkError, ProviderError
from outrider.providers.cassettes.cassette import Cassette, RecordedChunk, RecordedExchange
from outrider.providers.cassettes.scrub import Scrubber
from outrider.providers.provider import HttpCall, ModelClient
from outrider.types.request import Request
from outrider.types.stream import Delta, Finish

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


class UnwiredWire:
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
        call = UnwiredWire(self.name, "").call(request)
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
