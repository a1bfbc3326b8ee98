"""One client of a feed: what waits for it is bounded, and what is only shown goes first."""

import asyncio
from collections import deque

from outrider.server.feeds.frames import Frame

WAITING = 512  # frames


class Listener:
    def __init__(self, limit: int = WAITING) -> None:
        self._limit = limit
        self._frames: deque[Frame] = deque()
        self._arrived = asyncio.Event()
        self.closed = False

    def put(self, frame: Frame) -> None:
        """A client that is too slow for what is kept is let go: it comes back with the last number it saw."""
        if self.closed:
            return
        if len(self._frames) >= self._limit:
            if frame.seq is None:
                return
            self._frames = deque(waiting for waiting in self._frames if waiting.seq is not None)
            self.closed = len(self._frames) >= self._limit
        self._frames.append(frame)
        self._arrived.set()

    def close(self) -> None:
        self.closed = True
        self._arrived.set()

    async def take(self, patience: float) -> list[Frame] | None:
        """What has come; nothing after `patience` seconds of silence; None once it is over."""
        if not self._frames and not self.closed:
            self._arrived.clear()
            try:
                async with asyncio.timeout(patience):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        if not self._frames:
            return None
        frames = list(self._frames)
        self._frames.clear()
        return frames
