"""Cuts what a server writes into lines and slows it down, so that no flood fills memory or takes the event loop."""

import asyncio

from outrider.tools.mcp.config import Limits
from outrider.tools.mcp.faults import ServerFault

_SHOWN = 200


class Pace:
    """So much per second, and a second's worth at once; who spends more waits."""

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._left = per_second
        self._at = asyncio.get_running_loop().time()

    async def spend(self, amount: float) -> None:
        now = asyncio.get_running_loop().time()
        self._left = min(self._rate, self._left + (now - self._at) * self._rate) - amount
        self._at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._rate)


class Lines:
    """Whole lines of what is fed; an unfinished one is kept, up to the size of a message."""

    def __init__(self, limits: Limits) -> None:
        self._most = limits.message
        self._unfinished = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        first, newline, rest = chunk.partition(b"\n")
        self._unfinished += first
        if len(self._unfinished) > self._most:
            raise ServerFault(f"it wrote a message of more than {self._most:,} bytes")
        if not newline:
            return []
        *lines, unfinished = rest.split(b"\n")
        lines.insert(0, bytes(self._unfinished))
        self._unfinished = bytearray(unfinished)
        return lines


class Garbage:
    """Counts what is not a message. A banner or a stray log line is borne; nothing but such lines is not."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bytes = 0
        self._lines = 0
        self._sample = b""

    def forgive(self) -> None:
        self._bytes = self._lines = 0

    def add(self, line: bytes) -> None:
        self._sample = self._sample or line.strip()[:_SHOWN]
        self._bytes += len(line) + 1
        self._lines += 1
        if self._bytes > self._limits.garbage or self._lines > self._limits.garbage_lines:
            sample = self._sample.decode("utf-8", "replace")
            raise ServerFault(f"it writes to its standard output what is not MCP, for example {sample!r}")


class Tail:
    """The end of a text that grows without limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()

    def add(self, chunk: bytes) -> None:
        self._kept += chunk
        del self._kept[: max(0, len(self._kept) - self._most)]

    @property
    def text(self) -> str:
        return self._kept.decode("utf-8", "replace").strip()
