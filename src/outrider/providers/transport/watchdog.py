"""Cuts an answer that goes silent, on the monotonic clock."""

from time import monotonic

from outrider.errors import StalledStreamError
from outrider.providers.transport.http1.connection import Connection
from outrider.providers.transport.transport import Timeouts

_SOON = 0.01


class Watchdog:
    """Looks after one answer by the alarm of its connection: a byte that arrives only moves a number."""

    __slots__ = ("_connection", "_idle", "_most", "_next_idle", "_quiet", "_timeouts", "_total", "_waiting")

    def __init__(self, timeouts: Timeouts, connection: Connection) -> None:
        self._timeouts = timeouts
        self._connection: Connection | None = connection  # until the answer is over: then others may use it
        self._idle = timeouts.first_byte
        self._next_idle = timeouts.idle
        self._most = timeouts.total
        self._total = 0.0
        self._quiet = 0.0  # seconds waited since the answer last made progress
        self._waiting = 0.0  # since when the reader waits; 0 while it does not
        connection.alarm.set(self._shortest(), self._look)

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

    def settle(self) -> None:
        self._idle = self._next_idle = min(self._next_idle, self._timeouts.closing)
        self._look()

    def hurry(self, seconds: float) -> None:
        self._most = min(self._most, self._total + seconds)
        self._look()

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.alarm.call_off()
            self._connection = None

    def _shortest(self) -> float:
        return min(self._idle, self._next_idle, self._timeouts.quiet, self._most - self._total)

    def _look(self) -> None:
        if self._connection is None:
            return
        left, problem = self._left() if self._waiting else (max(self._shortest(), _SOON), "")
        if left > 0:
            self._connection.alarm.set(left, self._look)
        else:
            self._connection.fail(StalledStreamError(problem, type="stalled"))

    def _left(self) -> tuple[float, str]:
        """Seconds until the first limit is reached, and what is to be said then."""
        waited = monotonic() - self._waiting
        quiet, most = self._timeouts.quiet, self._most
        return min(
            (self._idle - waited, f"the provider sent nothing for {self._idle:g} s"),
            (quiet - self._quiet - waited, f"the provider sent nothing of an answer for {quiet:g} s"),
            (most - self._total - waited, f"the answer was not whole after {most:g} s"),
        )
