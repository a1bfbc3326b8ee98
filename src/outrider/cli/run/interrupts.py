"""Signals: the first one ends the work with everything kept, the second one the program."""

import asyncio
import atexit
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress

from outrider.cli import exits

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupts:
    """`exit_code` is what programs end with that such a signal ended."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        self.exit_code = exits.INTERRUPTED

    def hear(self, number: int) -> None:
        """Whoever asks twice does not want to wait: what is kept is kept, and guards end what still runs."""
        self.exit_code = 128 + number
        if self.wanted.is_set():
            os._exit(self.exit_code)
        self.wanted.set()
        for known in _known():
            signal.signal(known, _end_at_once)  # what hangs may be the loop itself


@contextmanager
def interrupts() -> Generator[Interrupts, None, None]:
    heard, loop = Interrupts(), asyncio.get_running_loop()
    for number in _known():
        with suppress(NotImplementedError, RuntimeError):
            loop.add_signal_handler(number, heard.hear, number)
    try:
        yield heard
    finally:
        for number in _known():
            with suppress(NotImplementedError, RuntimeError):
                loop.remove_signal_handler(number)
            if heard.wanted.is_set():
                _listen_to_the_end(number)


def _known() -> list[int]:
    return [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]


def _end_at_once(number: int, _frame: object) -> None:
    os._exit(128 + number)


def _listen_to_the_end(number: int) -> None:
    """For what is left after an interrupt: last words, and an interpreter that forgets its handlers while it ends."""
    signal.signal(number, _end_at_once)
    atexit.register(signal.signal, number, signal.SIG_IGN)
