"""Prints what happens on a bus, one calm line per event; the text of models and tools is never obeyed."""

import sys
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol, TextIO

from outrider.bus import EventBus
from outrider.tracing.format import can_encode, encodable, one_line, visible
from outrider.tracing.lines import ASCII_MARKS, DELTAS, MARKS, Line, Tone, line_of, said_in
from outrider.types.events import Event

_DELTA_LENGTH = 200


_STYLES: dict[Tone, str] = {
    "": "dim",
    "good": "green",
    "bad": "bold red",
    "warn": "yellow",
    "agent": "magenta",
    "model": "cyan",
    "tool": "blue",
}


class Printer(Protocol):
    """Where lines go: a rich console, or what stands in for one."""

    def line(self, time: str, line: Line) -> None: ...


class EventLogger:
    """`console` is a rich Console or a text file; by default a Console on stderr, or plain stderr where rich is not
    installed (`pip install outrider[console]`). `verbose` adds inputs, outputs, previews and what is being streamed."""

    def __init__(self, console: Any = None, verbose: bool = False) -> None:  # noqa: FBT001, FBT002  part of the contract
        self.verbose = verbose
        self._printer = _printer_for(console, whole_lines=verbose)
        self._streamed: dict[str, tuple[Event, str]] = {}
        self._lock = threading.RLock()

    def attach(self, bus: EventBus) -> Callable[[], None]:
        """Print what the bus says from now on. Returns what ends that."""
        return bus.subscribe_all(self.show)

    def show(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, DELTAS):
                if self.verbose:
                    self._gather(event)
                return
            line = line_of(event, verbose=self.verbose)
            if line is not None:
                self._print_streamed()
                self._print(event, line)

    def _gather(self, event: Event) -> None:
        """Deltas are single words; they are shown by the line."""
        place, delta = said_in(event)
        text = self._streamed.pop(place, (event, ""))[1] + delta
        *lines, rest = text.split("\n")
        for line in lines:
            self._print_delta(event, line)
        if len(rest) >= _DELTA_LENGTH or len(self._streamed) > 100:
            self._print_delta(event, rest)
        elif rest:
            self._streamed[place] = event, rest

    def _print_streamed(self) -> None:
        waiting, self._streamed = self._streamed, {}
        for event, text in waiting.values():
            self._print_delta(event, text)

    def _print_delta(self, event: Event, text: str) -> None:
        if text.strip():
            self._print(event, Line("dots", "", visible(text), agent=one_line(event.agent_name, 24)))

    def _print(self, event: Event, line: Line) -> None:
        self._printer.line(_clock(event.timestamp), line)


class RichPrinter:
    def __init__(self, console: Any, *, whole_lines: bool) -> None:
        from rich.text import Text

        self._text = Text
        self._console = console
        self._whole_lines = whole_lines
        self._marks = MARKS if can_encode("".join(MARKS.values()), console.encoding) else ASCII_MARKS

    def line(self, time: str, line: Line) -> None:
        """`Text` is not parsed for markup. A terminal shows what fits on one line; a file gets all."""
        style = _STYLES[line.tone]
        parts = [(time, "dim"), ("  ", ""), (f"{line.agent:<12}", "bold" if line.agent else ""), (" ", "")]
        parts += [(f"{self._marks[line.mark]} ", style), (line.what, style)]
        parts += [(" " if line.what else "", ""), (line.told, "")] if line.told else []
        text = self._text(end="")
        for words, look in parts:
            text.append(encodable(words, self._console.encoding), look)
        cut = self._console.is_terminal and not self._whole_lines
        self._console.print(text, no_wrap=cut, overflow="ellipsis" if cut else None, crop=cut, soft_wrap=not cut)


class PlainPrinter:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def line(self, time: str, line: Line) -> None:
        stream = self._stream or sys.stderr
        encoding = getattr(stream, "encoding", None) or "utf-8"
        marks = MARKS if can_encode("".join(MARKS.values()), encoding) else ASCII_MARKS
        words = f"{time}  {line.agent:<12} {marks[line.mark]} {line.what} {line.told}".rstrip()
        stream.write(encodable(words, encoding) + "\n")
        stream.flush()


def _printer_for(console: Any, *, whole_lines: bool) -> Printer:
    if hasattr(console, "write"):
        return PlainPrinter(console)
    if console is None:
        try:
            from rich.console import Console
        except ImportError:
            return PlainPrinter()
        console = Console(stderr=True)
    return RichPrinter(console, whole_lines=whole_lines)


def _clock(timestamp: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp / 1000).strftime("%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "--:--:--"
