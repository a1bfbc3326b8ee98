"""Cuts an answer that goes silent, on the monotonic clock."""

import asyncio
from collections.abc import Callable
from time import monotonic

from outrider.errors import StalledStreamError
from outrider.providers.transport.transport import Timeouts

_SOON = 0.01


class Watchdog:
    """One timer for a whole answer: a byte that arrives only moves a number."""

    __slots__ = ("_cut", "_idle", "_most", "_next_idle", "_quiet", "_timeouts", "_timer", "_total", "_waiting")

    def __init__(self, timeouts: Timeouts, cut: Callable[[Exception], None]) -> None:
        self._timeouts = timeouts
        self._cut = cut
        self._idle = timeouts.first_byte
        self._next_idle = timeouts.idle
        self._most = timeouts.total
        self._total = 0.0
        self._quiet = 0.0  # seconds waited since the answer last made progress
        self._waiting = 0.0  # since when the reader waits; 0 while it does not
        self._timer = asyncio.get_running_loop().call_later(self._shortest(), self._look)

    def wait(self) -> None:
        self._waiting = monotonic()

    def progress(self) -> None:
        self._quiet = 0.0

    def heard(self) -> None:
        waited = monotonic() - self._waiting
        self._waiting = 0.0
        self._quiet += waited
        self._total += waited
        self._idle = self._next_idle

    def hurry(self, seconds: float) -> None:
        self._most = min(self._most, self._total + seconds)
        self._timer.cancel()
        self._look()

    def stop(self) -> None:
        self._timer.cancel()

    def _shortest(self) -> float:
        return min(self._idle, self._next_idle, self._timeouts.quiet, self._most - self._total)

    def _look(self) -> None:
        left, problem = self._left() if self._waiting else (max(self._shortest(), _SOON), "")
        if left > 0:
            self._timer = asyncio.get_running_loop().call_later(left, self._look)
        else:
            self._cut(StalledStreamError(problem, type="stalled"))

    def _left(self) -> tuple[float, str]:
        """Seconds until the first limit is reached, and what is to be said then."""
        waited = monotonic() - self._waiting
        quiet, most = self._timeouts.quiet, self._most
        return min(
            (self._idle - waited, f"the provider sent nothing for {self._idle:g} s"),
            (quiet - self._quiet - waited, f"the provider sent nothing of an answer for {quiet:g} s"),
            (most - self._total - waited, f"the answer was not whole after {most:g} s"),
        )
