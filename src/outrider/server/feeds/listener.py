"""One client of a feed: what waits for it is bounded, and what is only shown goes first."""

import asyncio
from collections import deque

from outrider.server.feeds.batch import Batch

WAITING = 512  # batches


class Listener:
    def __init__(self, limit: int = WAITING) -> None:
        self._limit = limit
        self._batches: deque[Batch] = deque()
        self._arrived = asyncio.Event()
        self.closed = False

    def put(self, batch: Batch) -> None:
        """A client that is too slow for what is kept is let go: it comes back with the last number it saw."""
        if self.closed:
            return
        if len(self._batches) >= self._limit:
            if batch.first is None:
                return
            self._batches = deque(waiting.kept() for waiting in self._batches if waiting.first is not None)
            self.closed = len(self._batches) >= self._limit
        self._batches.append(batch)
        self._arrived.set()

    def close(self) -> None:
        self.closed = True
        self._arrived.set()

    async def take(self) -> Batch | None:
        """What has come next; None once it is over."""
        if not self._batches and not self.closed:
            self._arrived.clear()
            await self._arrived.wait()
        return self._batches.popleft() if self._batches else None
