"""The two streams of the program: data to stdout, the rest to stderr; harmless, and no more colourful than wanted."""

import os
import sys
from collections.abc import Mapping
from typing import TextIO

from outrider.app.screen import for_terminal
from outrider.errors import OutriderError

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
