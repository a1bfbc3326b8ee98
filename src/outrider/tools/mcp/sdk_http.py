"""The SDK's transports over HTTP, with answers that are bounded in size and speed, and keys that stay out of words."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from outrider.tools.mcp.config import HttpServer, Limits, hide
from outrider.tools.mcp.connection import Life
from outrider.tools.mcp.sdk_stdio import Pace

CONNECT = 10.0  # seconds
_TALKATIVE = ("httpx2", "httpcore2.connection", "mcp.client.streamable_http", "mcp.client.sse")
PATIENCE = 30.0  # seconds beyond a call's limit that a silent connection is kept


@asynccontextmanager
async def http_transport(config: HttpServer, limits: Limits, life: Life) -> AsyncGenerator[Any, None]:
    client = _Client(config, limits, life)
    with _quiet_logs(config):
        if config.transport == "sse":
            patience = limits.call + PATIENCE
            async with sse_client(config.url, httpx_client_factory=client.make, sse_read_timeout=patience) as streams:
                yield streams
            return
        async with (
            client.make() as http,
            streamable_http_client(config.url, http_client=http, max_sse_event_size=limits.message) as streams,
        ):
            yield streams


@contextmanager
def _quiet_logs(config: HttpServer) -> Generator[None]:
    """The SDK and its HTTP library log addresses, and a key may stand in an address."""

    def without_keys(record: logging.LogRecord) -> bool:
        record.msg, record.args = hide(record.getMessage(), config), ()
        return True

    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    for logger in loggers:
        logger.addFilter(without_keys)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(without_keys)


class _Client:
    """Makes HTTP clients whose every answer is looked at before it is read."""

    def __init__(self, config: HttpServer, limits: Limits, life: Life) -> None:
        self._config = config
        self._limits = limits
        self._life = life

    def make(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        """In the form that the SDK asks for; what it would set is set already."""
        return httpx2.AsyncClient(
            headers=self._config.headers | {"Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(CONNECT, read=self._limits.call + PATIENCE),
            auth=auth,
            event_hooks={"response": [self._bound]},
        )

    async def _bound(self, response: httpx2.Response) -> None:
        if response.request.method == "POST" or self._config.transport == "sse":
            refused = f"it answered {response.status_code} {response.reason_phrase}".strip()
            self._life.trouble = refused if response.status_code >= 400 else ""
        if response.headers.get("content-encoding", "identity") != "identity":
            # A few compressed bytes can become gigabytes; nobody asked for them.
            await response.aclose()
            raise httpx2.StreamError("the server compressed its answer although it was asked not to")
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        response.stream = _Bounded(response.stream, self._limits, None if is_stream else self._limits.message)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, limits: Limits, most: int | None) -> None:
        self._stream = stream
        self._bytes = Pace(limits.bytes_per_second)
        self._messages = Pace(limits.messages_per_second)
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if self._most is not None and size > self._most:
                raise httpx2.StreamError(f"the server's answer is longer than {self._most:,} bytes")
            await self._bytes.spend(len(chunk))
            await self._messages.spend(chunk.count(b"\n\n") + chunk.count(b"\n\r\n"))
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
