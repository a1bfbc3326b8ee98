"""How far a download is: measured while it goes on, and shown as a line on a console."""

import shutil
import time
from collections import deque
from collections.abc import Callable
from typing import Literal, TextIO

import msgspec

Phase = Literal["fetching", "checking", "done"]
_WINDOW = 5.0  # seconds over which the speed is an average
_OFTEN = 0.1  # seconds between two reports
_STEP = 5  # percent between two lines where a line cannot be rewritten
_BAR = 20  # characters


class Progress(msgspec.Struct, frozen=True):
    """`speed` is in bytes a second; `seconds_left` is None while nothing can be said."""

    weights: str
    source: str
    phase: Phase
    done: int
    total: int
    speed: float = 0.0
    seconds_left: float | None = None


Report = Callable[[Progress], None]


class Meter:
    """Turns counts into reports, not more often than eyes can follow."""

    def __init__(self, weights: str, total: int, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
        self.source = ""
        self._weights = weights
        self._total = total
        self._report = report
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()
        self._told = 0.0

    def at(self, done: int, phase: Phase = "fetching") -> None:
        now = self._clock()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW:
            self._seen.popleft()
        if phase == "fetching" and done < self._total and now - self._told < _OFTEN:
            return
        self._told = now
        speed = self._speed()
        missing = self._total - done
        left = missing / speed if speed > 0 else None if missing else 0.0
        self._report(Progress(self._weights, self.source, phase, done, self._total, speed, left))

    def begin(self, source: str) -> None:
        """Another source takes over; its speed is its own."""
        self.source = source
        self._seen.clear()

    def _speed(self) -> float:
        (start, before), (end, after) = self._seen[0], self._seen[-1]
        return max(after - before, 0) / (end - start) if end > start else 0.0


class ProgressLine:
    """Writes reports to a terminal as one line with a bar that grows, elsewhere as a line now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rewrites = stream.isatty()
        self._next = 0
        self._width = 0

    def __call__(self, progress: Progress) -> None:
        line = progress_text(progress)
        if self._rewrites:
            end = "\n" if progress.phase == "done" else ""
            # A line that is wider than the terminal could not be written over.
            line = f"{_bar(progress)} {line}"[: shutil.get_terminal_size().columns - 1]
            self._stream.write(f"\r{line.ljust(self._width)}{end}")
            self._width = len(line)
        elif progress.phase != "fetching" or 100 * progress.done >= self._next * progress.total:
            self._next = 100 * progress.done // progress.total + _STEP if progress.total else 0
            self._stream.write(f"{line}\n")
        self._stream.flush()


def progress_text(progress: Progress) -> str:
    share = 100 * progress.done // progress.total if progress.total else 100
    counted = f"{progress.weights}: {share:3d} %  {_size(progress.done)} of {_size(progress.total)}"
    match progress.phase:
        case "done":
            return f"{progress.weights}: {_size(progress.total)}, checked and ready"
        case "checking":
            return f"{counted}  checking"
        case "fetching":
            left = "" if progress.seconds_left is None else f"  {_time(progress.seconds_left)} left"
            return f"{counted}  {_size(progress.speed)}/s{left}  from {progress.source}"


def _bar(progress: Progress) -> str:
    full = _BAR * progress.done // progress.total if progress.total else _BAR
    return f"[{'#' * full}{'.' * (_BAR - full)}]"


def _size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _time(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"
