"""The two streams of the program: data to stdout, the rest to stderr; harmless, and no more colourful than wanted."""

import os
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TextIO

from outrider.errors import OutriderError
from outrider.permissions.redaction.terminal import for_terminal

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
WIDE = 100  # columns where there is no terminal to ask
NARROW = 20


class Console:
    """Foreign text is shown without what a terminal would act on; a file or a pipe gets it as it is."""

    def __init__(
        self, out: TextIO | None = None, err: TextIO | None = None, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self._environ = environ
        self.out_is_terminal = self.out.isatty()
        self.err_is_terminal = self.err.isatty()
        self.lost: OutriderError | None = None  # why data could not be written
        for stream in (self.out, self.err):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure and stream.errors != "backslashreplace":  # it writes what waits, and may fail again
                reconfigure(errors="backslashreplace")

    @property
    def width(self) -> int:
        if not self.out_is_terminal and "COLUMNS" not in self._environ:
            return WIDE
        from shutil import get_terminal_size  # brings every kind of archive along

        return max(NARROW, get_terminal_size((80, 24)).columns)

    @property
    def is_plain(self) -> bool:
        """Neither colours nor a cursor that moves: asked for, or all that this terminal can do."""
        return bool(self._environ.get("NO_COLOR")) or self._environ.get("TERM", "") in ("", "dumb")

    def write(self, text: str) -> None:
        """Data, as it comes; seen at once where somebody looks on."""
        self._put(for_terminal(text) if self.out_is_terminal else text, at_once=True)

    def print(self, text: str = "", style: str = "") -> None:
        if self.out_is_terminal:
            text = self._painted(for_terminal(text), style)
        self._put(f"{text}\n")

    def _put(self, text: str, *, at_once: bool = False) -> None:
        """A reader that went away is no error of ours; a full disk is one that has to be said."""
        try:
            self.out.write(text)
            if at_once:
                self.out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            self.lost = OutriderError(f"stdout cannot be written: {error.strerror or error}")
            raise self.lost from error

    def say(self, text: str, style: str = "") -> None:
        """A word to the person in front of the terminal, or to a log."""
        if self.err_is_terminal:
            text = self._painted(for_terminal(text), style)
        self.err.write(f"{text}\n")
        self.err.flush()

    def _painted(self, text: str, style: str) -> str:
        return text if not style or self.is_plain else f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


NARROW_TABLES = 72
_GAP = 2
_SMALLEST = 6
_MARKS = " ▏▎▍▌▋▊▉█"


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    right: Sequence[int] = (),
    narrow: Sequence[int] = (),
) -> list[str]:
    """Columns as wide as they need to be. Where the terminal is narrow only those count that `narrow` names, the widest
    give way, and then the last."""
    kept = narrow if narrow and width < NARROW_TABLES else range(len(heads))
    cells = [[row[at] for at in kept] for row in (heads, *rows)]
    widths = fitted([max(map(columns, column)) for column in zip(*cells, strict=True)], width)
    aligned = [at for at, column in enumerate(kept) if column in right]
    return [_line(row[: len(widths)], widths, aligned) for row in cells]


def fitted(widths: list[int], room: int) -> list[int]:
    widths = list(widths)
    excess = sum(widths) + _GAP * (len(widths) - 1) - room
    while excess > 0 and max(widths) > _SMALLEST:
        at = widths.index(max(widths))
        widths[at] -= 1
        excess -= 1
    while excess > 0 and len(widths) > 1:
        excess -= widths.pop() + _GAP
    return widths


def cut(text: str, width: int) -> str:
    """The beginning of a text on one line, in so many columns."""
    text = " ".join(text.split())
    if columns(text) <= width:
        return text
    kept, used = "", 0
    for char in text:
        used += _columns(char)
        if used > width - 1:
            break
        kept += char
    return f"{kept}…"


def columns(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_columns, text))


def bar(part: float, whole: float, width: int) -> str:
    """A bar in eighths of a character; something is never drawn as nothing."""
    if whole <= 0 or part <= 0:
        return ""
    eighths = max(1, round(part / whole * width * 8))
    return "█" * (eighths // 8) + _MARKS[eighths % 8].strip()


def tokens_text(count: int) -> str:
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if count >= size:
            return f"{count / (1000 if letter == 'k' else size):.1f}{letter}"
    return f"{count:,}"


def counted(number: int, name: str) -> str:
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"


def cost_text(cost: Decimal | None) -> str:
    if cost is None:
        return "unknown"
    if cost and cost < Decimal("0.0001"):
        return "<$0.0001"
    return f"${cost:.4f}" if cost < 10 else f"${cost:,.2f}"


def ago(then: int, now: int) -> str:
    seconds = max(0, now - then) // 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "just now"


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    shown = [
        _padded(cut(cell, width), width, right=at in right)
        for at, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return (" " * _GAP).join(shown).rstrip()


def _padded(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - columns(text))
    return space + text if right else text + space


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
