"""The contract of a provider: a request goes in, deltas come out. A plain call is the fold of its stream.

A vendor is three small things that know nothing of sockets, so that every one of them can be tried on plain bytes:
how a request is written (`Wire.call`), how an answer is read (`Decoder`), what a refusal means (`Wire.error`).
"""

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from outrider.errors import ProviderError
from outrider.types.deltas import Delta
from outrider.types.request import Request


class ModelClient(Protocol):
    """A provider's models, ready to be asked."""

    name: str

    def family(self, model: str) -> str:
        """Which models may be given each other's private state (signatures, encrypted reasoning)."""
        ...

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """The answer as it arrives. Raises ProviderError; closing the iterator closes the connection."""
        ...

    async def aclose(self) -> None: ...


class HttpCall(msgspec.Struct, frozen=True):
    """One POST, ready to leave."""

    url: str
    headers: dict[str, str]
    body: bytes

    def __repr__(self) -> str:
        """Without what may hold a key: this text ends up in logs and tracebacks."""
        return f"HttpCall({self.url.partition('?')[0]!r}, {len(self.body)} bytes)"


class Decoder(Protocol):
    """Reads one answer. Events are fed as they arrive; nothing that could be shown is held back.

    `closable` says that the answer would be whole if the stream ended now: all that may come is a count, or the end."""

    closable: bool

    def feed(self, event: str, data: bytes) -> Iterable[Delta]:
        """One server-sent event: its name ("" when it has none) and its data. Raises ProviderError when the event
        is an error."""
        ...

    def whole(self, body: bytes) -> Iterable[Delta]:
        """An answer that came in one piece, not as a stream."""
        ...

    def close(self) -> Iterable[Delta]:
        """The stream is over. Raises NetworkError when the answer is not whole."""
        ...


class Wire(Protocol):
    """One vendor's wire format."""

    def family(self, model: str) -> str: ...

    def call(self, request: Request) -> HttpCall:
        """The request as this vendor wants it; earlier messages come from the prompt's remembered bytes."""
        ...

    def decoder(self, request: Request) -> Decoder: ...

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """What an answer with an error status means."""
        ...


@runtime_checkable
class Learning(Protocol):
    """A wire format that finds out from refusals what a model takes, such as its largest answer.

    The client asks it about every refusal before anything else: after a True it calls `Wire.call` again and sends
    that at once. It says True only when the new call is another one, so this ends.
    """

    def learn(self, request: Request, error: ProviderError) -> bool: ...
