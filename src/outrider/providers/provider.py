"""The provider contract: a client takes a request and streams deltas.

A vendor implements `WireFormat` and `AnswerDecoder`: how a request is encoded, how a response is decoded, and which
exception an error response becomes. Neither touches a socket, so tests run them on plain bytes.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from decimal import Decimal
from typing import Protocol, runtime_checkable

import msgspec

from outrider.errors import ProviderError
from outrider.http.transport import HttpRequest
from outrider.types.deltas import Delta
from outrider.types.request import Request


class ModelClient(Protocol):
    """Streams answers from the models of one provider. A class whose attribute `repeats_requests` is True repeats
    failed requests itself; for other clients the engine does, also after output."""

    name: str

    def model_family(self, model: str) -> str:
        """Returns the name of the group of models that accept each other's private state.

        Private state is what only the vendor can read: signatures and encrypted reasoning. A request to a model of
        another family is sent without it.
        """
        ...

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Yields the deltas of one answer as they arrive.

        Raises ProviderError. Closing the generator closes the connection.
        """
        ...

    async def aclose(self) -> None:
        """Closes all connections of the client."""
        ...


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a model: its limits in tokens, and its prices in US dollars for a million tokens."""

    context: int | None = None
    output: int | None = None
    input_price: Decimal | float | None = None
    output_price: Decimal | float | None = None


class CustomProvider(Protocol):
    """A provider that a program implements: pass it to `run`, `Engine` or `complete` in place of a `Provider`.

    Agents refer to it by `name`. `stream` is an async generator that yields the deltas of one answer, in the order that
    `outrider.types.deltas` describes, and ends with Finish. It raises ProviderError or a subclass: those with
    `retryable` are requested again, and the next model of an agent's list is tried as for other providers. The request
    has everything that a model needs: `prompt` (messages with alternating roles, in which every call has its result),
    `system`, `tools`, `settings`. It must not be changed. The program closes the provider itself.

    A stream that yields nothing for `idle_seconds`, an optional attribute (600 by default, None for no limit), fails
    with NetworkError.

    These methods are optional. `model_family(model)` returns the name of the group of models that accept each other's
    private state (the `state` of PartEnd), by default the name of the provider. `describe_model(model)` returns
    `ModelDescription`, which limits of cost and the compaction of long conversations need.
    `outrider.testing.check_provider` tests an implementation.
    """

    @property
    def name(self) -> str:
        """The name by which agents refer to the provider."""
        ...

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        """Yields the deltas of one answer and ends with Finish. Raises ProviderError."""
        ...


class AnswerDecoder(Protocol):
    """Decodes one response into deltas, event by event, without buffering what a user could already see.

    `is_complete` is True when the answer needs no further events: only a usage report or the end mark may follow.
    """

    is_complete: bool

    def feed(self, event: str, data: bytes) -> Iterable[Delta]:
        """Decodes one server-sent event, given its name ("" for none) and its data.

        Raises ProviderError when the event reports an error.
        """
        ...

    def decode_body(self, body: bytes) -> Iterable[Delta]:
        """Decodes a complete response body, for responses that are not a stream."""
        ...

    def close(self) -> Iterable[Delta]:
        """Returns the deltas that end the answer. Raises NetworkError when the stream ended too early."""
        ...


@runtime_checkable
class ResumableDecoder(Protocol):
    """A decoder of answers that the server continues if the request is repeated: it runs nothing twice, and its next
    usage report includes what came before."""

    def resume_request(self, request: HttpRequest) -> HttpRequest | None:
        """Returns the request that continues the answer; None before the server has started it."""
        ...


class WireFormat(Protocol):
    """Encodes requests and decodes responses for one vendor API."""

    def model_family(self, model: str) -> str:
        """Returns the name of the group of models that accept each other's private state."""
        ...

    def build_request(self, request: Request) -> HttpRequest:
        """Returns the encoded request; earlier messages come from the bytes that the prompt caches."""
        ...

    def create_decoder(self, request: Request) -> AnswerDecoder:
        """Returns a new decoder for the answer to `request`."""
        ...

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """Returns the exception for a response with an error status."""
        ...


@runtime_checkable
class AdaptiveWireFormat(Protocol):
    """A wire format that learns model limits, such as the maximum output size, from error responses.

    The client calls `adapt_to_error` for every error before it considers a retry. After True it calls `build_request`
    again and sends the new request without waiting. An implementation returns True only if the new request differs
    from the last one, so the loop terminates.
    """

    def adapt_to_error(self, request: Request, error: ProviderError) -> bool:
        """Learns from a rejected request. Returns whether it is sent again."""
        ...
