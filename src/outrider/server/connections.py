"""Limits of HTTP connections: clients that send no complete request, or send it slowly, cannot use up the connections
of others."""

import asyncio
import sys
from collections import OrderedDict
from typing import Any, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_SECONDS = 15.0  # seconds until the first request must have arrived
BODY_SECONDS = 60.0  # seconds without data in the middle of a body
MAX_SILENT_CONNECTIONS = 256  # connections without a complete request; beyond it the oldest is closed
MIN_OPEN_FILES = 65_536

_silent: "OrderedDict[int, ConnectionGuard]" = OrderedDict()


class ConnectionGuard(AutoHTTPProtocol):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
    """A connection that is closed if its request does not arrive in time."""

    cycle: Any
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._timer = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._check_head)
        _silent[id(self)] = self
        if len(_silent) > MAX_SILENT_CONNECTIONS:
            _, oldest = _silent.popitem(last=False)
            oldest.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None:
            return
        _silent.pop(id(self), None)
        self._timer.cancel()
        if getattr(self.cycle, "more_body", False):
            self._timer = asyncio.get_running_loop().call_later(BODY_SECONDS, self._check_body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        _silent.pop(id(self), None)
        super().connection_lost(exc)

    def _check_head(self) -> None:
        if self.cycle is None:
            self.transport.close()

    def _check_body(self) -> None:
        if getattr(self.cycle, "more_body", False):
            self.transport.close()


def raise_file_limit() -> None:
    """Allows as many open files as the system permits: each follower of the page is a connection."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MIN_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MIN_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
