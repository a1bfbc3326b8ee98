"""Terminal output of the CLI: data on stdout, messages on stderr, and tables."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from outrider.errors import OutriderError
from outrider.presentation.formats import fit_width, sanitize_for_terminal, width_of

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
NOTICE_STYLES = {"detail": "dim", "info": "dim", "success": "green", "warning": "yellow", "error": "red"}
STATUS_STYLES = {"quiet": "dim", "accent": "blue", "good": "green", "warn": "yellow", "bad": "red"}
DEFAULT_WIDTH = 100  # columns when stdout is not a terminal
MIN_WIDTH = 20
_ERASE_LINE = "\r\x1b[2K"


class Console:
    """Writes to stdout and stderr. On a terminal, control sequences are removed from the text, because it may come from
    a model or a tool; a file or a pipe receives the text unchanged."""

    def __init__(
        self, out: TextIO | None = None, err: TextIO | None = None, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self._environ = environ
        self.out_is_terminal = self.out.isatty()
        self.err_is_terminal = self.err.isatty()
        self.write_error: OutriderError | None = None  # why stdout could not be written
        self._status = ""
        for stream in (self.out, self.err):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure and stream.errors != "backslashreplace":  # reconfigure flushes and may fail again
                reconfigure(errors="backslashreplace")

    @property
    def width(self) -> int:
        if not self.out_is_terminal and "COLUMNS" not in self._environ:
            return DEFAULT_WIDTH
        from shutil import get_terminal_size  # imported late: shutil imports every compression module

        return max(MIN_WIDTH, get_terminal_size((80, 24)).columns)

    @property
    def is_plain(self) -> bool:
        """Whether styles are disabled, by NO_COLOR or because the terminal does not support them."""
        return bool(self._environ.get("NO_COLOR")) or self._environ.get("TERM", "") in ("", "dumb")

    def write(self, text: str) -> None:
        """Writes a chunk of data to stdout and flushes it, so that streamed text appears immediately."""
        self._write_stdout(sanitize_for_terminal(text) if self.out_is_terminal else text, flush=True)

    def print(self, text: str = "", style: str = "") -> None:
        if self.out_is_terminal:
            text = self._apply_style(sanitize_for_terminal(text), style)
        self._write_stdout(f"{text}\n")

    def _write_stdout(self, text: str, *, flush: bool = False) -> None:
        """Writes to stdout. Raises BrokenPipeError if the reader has closed the pipe (`main` ends quietly), and
        OutriderError for any other failure, such as a full disk."""
        self.clear_status()
        try:
            self.out.write(text)
            if flush:
                self.out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            self.write_error = OutriderError(f"cannot write to stdout: {error.strerror or error}")
            raise self.write_error from error

    def print_stderr(self, text: str, style: str = "") -> None:
        """Prints a message for the user to stderr."""
        self.clear_status()
        if self.err_is_terminal:
            text = self._apply_style(sanitize_for_terminal(text), style)
        self.err.write(f"{text}\n")
        self.err.flush()

    def show_status(self, text: str) -> None:
        """Shows one line on a terminal about the current activity; the next text of any kind replaces it."""
        if not self.err_is_terminal or self._environ.get("TERM", "") in ("", "dumb"):
            return
        line = truncate_text(sanitize_for_terminal(text), self.width - 1)
        self.err.write(f"{self._erase_status()}{self._apply_style(line, 'dim')}")
        self.err.flush()
        self._status = line

    def clear_status(self) -> None:
        if self._status:
            self.err.write(self._erase_status())
            self.err.flush()
            self._status = ""

    def _erase_status(self) -> str:
        """Returns the text that erases the status line; with NO_COLOR, it has no control sequences."""
        if not self.is_plain:
            return _ERASE_LINE
        return f"\r{' ' * width_of(self._status)}\r" if self._status else "\r"

    def _apply_style(self, text: str, style: str) -> str:
        return text if not style or self.is_plain else f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


NARROW_TABLE_WIDTH = 72
_COLUMN_GAP = 2
_MIN_COLUMN_WIDTH = 6
_BAR_EIGHTHS = " ▏▎▍▌▋▊▉█"


def format_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    right: Sequence[int] = (),
    narrow: Sequence[int] = (),
) -> list[str]:
    """Formats rows as aligned columns that fit into `width`; columns in `right` are right-aligned.

    Below NARROW_TABLE_WIDTH only the columns in `narrow` are shown. If the table is still too wide, the widest columns
    shrink first, then the last columns are dropped.
    """
    columns = narrow if narrow and width < NARROW_TABLE_WIDTH else range(len(heads))
    cells = [[row[index] for index in columns] for row in (heads, *rows)]
    widths = fit_column_widths([max(map(width_of, column)) for column in zip(*cells, strict=True)], width)
    aligned = [index for index, column in enumerate(columns) if column in right]
    return [_format_row(row[: len(widths)], widths, aligned) for row in cells]


def fit_column_widths(widths: list[int], room: int) -> list[int]:
    """Shrinks the widest columns until the table fits into `room`, then drops the last columns."""
    widths = list(widths)
    excess = sum(widths) + _COLUMN_GAP * (len(widths) - 1) - room
    while excess > 0 and max(widths) > _MIN_COLUMN_WIDTH:
        widest = widths.index(max(widths))
        widths[widest] -= 1
        excess -= 1
    while excess > 0 and len(widths) > 1:
        excess -= widths.pop() + _COLUMN_GAP
    return widths


def truncate_text(text: str, width: int) -> str:
    """Returns the text on one line, cut to `width` terminal columns."""
    return fit_width(" ".join(text.split()), width)


def draw_bar(value: float, maximum: float, width: int) -> str:
    """Draws a bar with a resolution of an eighth of a character; a value above zero gets at least one eighth."""
    if maximum <= 0 or value <= 0:
        return ""
    eighths = max(1, round(value / maximum * width * 8))
    return "█" * (eighths // 8) + _BAR_EIGHTHS[eighths % 8].strip()


def _format_row(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    cells = [
        _pad_cell(truncate_text(cell, width), width, right=index in right)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return (" " * _COLUMN_GAP).join(cells).rstrip()


def _pad_cell(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - width_of(text))
    return space + text if right else text + space
