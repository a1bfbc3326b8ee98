"""The contract of a transport: a call leaves, an answer comes back as bytes."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from outrider.providers.provider import HttpCall


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of waiting for the provider; the time that a reader takes to read is not counted.

    `idle` is silence between bytes; `quiet` is bytes (keep-alives) that say nothing of an answer; `closing` is silence
    of a server that has told how the answer ended and does not end the stream.
    """

    connect: float = 15.0
    first_byte: float = 600.0
    idle: float = 300.0
    quiet: float = 900.0
    total: float = 3600.0
    closing: float = 10.0


class HttpAnswer(Protocol):
    """An answer whose head has arrived. `headers` are found in any case."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self) -> bytes:
        """What has arrived since; empty at the end of the body. Raises NetworkError when it broke."""
        ...

    def progress(self) -> None:
        """The reader got something of the answer out of the bytes, not just a keep-alive."""
        ...

    def settle(self) -> None:
        """The answer is whole as far as it came: from now on a shorter silence ends it."""
        ...

    def hurry(self, seconds: float) -> None:
        """From now on, wait at most this long for all that is still to come."""
        ...

    def close(self) -> None:
        """Let go; a body that was not read to its end closes the connection at once."""
        ...


class Transport(Protocol):
    """Sends calls. `HttpClient` is the real one; a recorder or a player stands in its place."""

    async def send(self, call: HttpCall) -> HttpAnswer: ...

    async def aclose(self) -> None: ...
