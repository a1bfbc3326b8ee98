"""Signals: the first one ends the turn with everything kept, the second one the program."""

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


@contextmanager
def interrupts() -> Generator[Interrupts, None, None]:
    heard, loop = Interrupts(), asyncio.get_running_loop()
    known = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    for number in known:
        with suppress(NotImplementedError, RuntimeError):
            loop.add_signal_handler(number, heard.hear, number)
    try:
        yield heard
    finally:
        for number in known:
            with suppress(NotImplementedError, RuntimeError):
                loop.remove_signal_handler(number)
            if heard.wanted.is_set():
                _end_at_once(number, heard.exit_code)


def _end_at_once(number: int, exit_code: int) -> None:
    """For what is left after an interrupt: last words, and an interpreter that forgets its handlers while it ends."""
    signal.signal(number, lambda _number, _frame: os._exit(exit_code))
    atexit.register(signal.signal, number, signal.SIG_IGN)
