"""Slows a flood of text down to what a person or a listener can follow."""

import asyncio
from collections import deque
from collections.abc import Callable

EVERY = 0.1  # seconds
MOST = 8_192  # characters


class Pacer:
    """The first words are passed on at once, then a piece at most every `EVERY` seconds; of more than `MOST`
    characters in one piece, the last ones and a note."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._pending: deque[str] = deque()
        self._size = 0
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, text: str) -> None:
        self._dropped += max(0, len(text) - MOST)
        self._pending.append(text[-MOST:])
        self._size += len(self._pending[-1])
        while self._size - len(self._pending[0]) >= MOST:
            forgotten = len(self._pending.popleft())
            self._size -= forgotten
            self._dropped += forgotten
        if self._timer is None:
            self._pass_on()

    def flush(self) -> None:
        """Pass on what is left; nothing may be fed afterwards."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._pending:
            self._emit(self._taken())

    def _pass_on(self) -> None:
        self._timer = None
        if self._pending:
            self._timer = asyncio.get_running_loop().call_later(EVERY, self._pass_on)
            self._emit(self._taken())

    def _taken(self) -> str:
        note = f"[… {self._dropped:,} characters not shown …]\n" if self._dropped else ""
        text = "".join(self._pending)
        self._pending.clear()
        self._size = self._dropped = 0
        return note + text
