"""One thing to do later, for a connection that is used again and again."""

import asyncio
from collections.abc import Callable


class Alarm:
    """Set, put off and called off as often as one likes: as long as the moment only gets later, that moves a number,
    and the timer of the event loop stays as it is."""

    __slots__ = ("_due", "_loop", "_ring", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due = 0.0
        self._ring: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float, ring: Callable[[], None]) -> None:
        """`ring` is called then, instead of what was set before."""
        self._due, self._ring = self._loop.time() + seconds, ring
        if self._timer is not None and self._due < self._timer.when():
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._due, self._look)

    def call_off(self) -> None:
        """The timer, if it comes to that, finds nothing to do."""
        self._ring = None

    def close(self) -> None:
        self._ring = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        timer, self._timer = self._timer, None
        ring = self._ring
        if ring is None or timer is None:
            return
        if self._due > timer.when():  # put off meanwhile
            self._timer = self._loop.call_at(self._due, self._look)
            return
        self._ring = None
        ring()
