"""The transport contract: send an encoded request, return a response whose body is read in chunks."""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from outrider.types.request import BodyLayout

ProxySelector = Callable[[str], str | None]
"""Returns the proxy URL for a request URL, or None for a direct connection."""


class HttpRequest(msgspec.Struct, frozen=True):
    """An encoded HTTP request. `patience` multiplies the timeouts for a server that sends nothing, `start_patience`
    only the one for the first byte. `layout` describes the composition of the body of a request to a model."""

    url: str
    headers: dict[str, str]
    body: bytes = b""
    method: str = "POST"
    patience: float = 1.0
    start_patience: float = 1.0
    layout: BodyLayout | None = None

    def __repr__(self) -> str:
        """Omits the query, the headers and the body: they may hold keys, and this text appears in logs."""
        return f"HttpRequest({self.url.partition('?')[0]!r}, {len(self.body)} bytes)"


class HttpTimeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Timeouts in seconds. They measure only the time spent waiting for the server, not the reader's own time.

    `connect` limits the connection including TLS, `first_byte` the wait for the first byte of the body, `idle` the time
    between two received chunks, `quiet` the time in which only keep-alives arrive and no delta, `total` the whole
    response. `closing` replaces `idle` once the answer is complete and only the end of the stream is missing.
    """

    connect: float = 15.0
    first_byte: float = 120.0
    idle: float = 90.0
    quiet: float = 600.0
    total: float = 3600.0
    closing: float = 10.0

    def scaled_for(self, request: HttpRequest) -> "HttpTimeouts":
        """Returns the timeouts with a longer wait for a silent server, as the request asks for."""
        patience, start = request.patience, request.patience * request.start_patience
        if start == 1.0:
            return self
        return msgspec.structs.replace(
            self, first_byte=self.first_byte * start, idle=self.idle * patience, quiet=self.quiet * patience
        )


class HttpResponse(Protocol):
    """A response whose head was received. `headers` ignores the case of names."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self) -> bytes:
        """Returns the next bytes of the body; b"" at its end. Raises NetworkError when the connection broke."""
        ...

    def mark_progress(self) -> None:
        """Resets the `quiet` timeout: the received bytes contained a delta, not only keep-alives."""
        ...

    def expect_end(self) -> None:
        """Switches to the shorter `closing` timeout, because the answer is complete."""
        ...

    def limit_remaining(self, seconds: float) -> None:
        """Limits the remaining wait for the rest of the response to this many seconds."""
        ...

    def close(self) -> None:
        """Releases the response; the connection is aborted if the body was not read to its end."""
        ...


class HttpTransport(Protocol):
    """Sends requests. `HttpClient` uses the network; cassettes record from it or replay without it."""

    async def send(self, request: HttpRequest) -> HttpResponse: ...

    async def aclose(self) -> None: ...
