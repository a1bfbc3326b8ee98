"""HTTP transports of the SDK, with limits on response size and rate, and with secrets removed from log records."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from outrider.tools.mcp.config import HttpServer, ServerLimits, hide_secrets
from outrider.tools.mcp.connection import ConnectionLifetime
from outrider.tools.mcp.sdk_stdio import TokenBucket

CONNECT_TIMEOUT = 10.0  # seconds
_LOGGERS_WITH_URLS = ("httpx2", "httpcore2.connection", "mcp.client.streamable_http", "mcp.client.sse")
READ_TIMEOUT_MARGIN = 30.0  # seconds added to the call limit before an idle connection times out


@asynccontextmanager
async def http_transport(
    config: HttpServer, limits: ServerLimits, life: ConnectionLifetime
) -> AsyncGenerator[Any, None]:
    client = _BoundedClientFactory(config, limits, life)
    with _quiet_logs(config):
        if config.transport == "sse":
            patience = limits.call + READ_TIMEOUT_MARGIN
            async with sse_client(
                config.url, httpx_client_factory=client.make_client, sse_read_timeout=patience
            ) as streams:
                yield streams
            return
        async with (
            client.make_client() as http,
            streamable_http_client(config.url, http_client=http, max_sse_event_size=limits.message) as streams,
        ):
            yield streams


@contextmanager
def _quiet_logs(config: HttpServer) -> Generator[None]:
    """Removes secrets from log records: the SDK and its HTTP library log URLs, which may contain a key."""

    def without_keys(record: logging.LogRecord) -> bool:
        record.msg, record.args = hide_secrets(record.getMessage(), config), ()
        return True

    loggers = [logging.getLogger(name) for name in _LOGGERS_WITH_URLS]
    for logger in loggers:
        logger.addFilter(without_keys)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(without_keys)


class _BoundedClientFactory:
    """Creates HTTP clients that check and limit each response before it is read."""

    def __init__(self, config: HttpServer, limits: ServerLimits, life: ConnectionLifetime) -> None:
        self._config = config
        self._limits = limits
        self._life = life

    def make_client(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        """Has the signature that the SDK requires. The parameters `headers` and `timeout` are ignored, because the
        configuration sets them."""
        return httpx2.AsyncClient(
            headers=self._config.headers | {"Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(CONNECT_TIMEOUT, read=self._limits.call + READ_TIMEOUT_MARGIN),
            auth=auth,
            event_hooks={"response": [self._bound_response]},
        )

    async def _bound_response(self, response: httpx2.Response) -> None:
        if response.request.method == "POST" or self._config.transport == "sse":
            refused = f"it answered {response.status_code} {response.reason_phrase}".strip()
            self._life.last_problem = refused if response.status_code >= 400 else ""
        if response.headers.get("content-encoding", "identity") != "identity":
            # A small compressed response can expand to gigabytes.
            await response.aclose()
            raise httpx2.StreamError("the server compressed its answer although it was asked not to")
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        response.stream = _BoundedStream(response.stream, self._limits, None if is_stream else self._limits.message)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, limits: ServerLimits, most: int | None) -> None:
        self._stream = stream
        self._bytes = TokenBucket(limits.bytes_per_second)
        self._messages = TokenBucket(limits.messages_per_second)
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
