"""Parts that are being shown but not yet final, and when they are due to be kept."""

import asyncio
from collections.abc import Callable

from outrider.types.codec import AnyPart

# A little less than the law's 250 ms and 4 KiB, since storing takes its time as well.
FLUSH_SECONDS = 0.2
FLUSH_CHARACTERS = 3072


class Drafts:
    """`due` is called when what was shown has to be kept now."""

    def __init__(self, due: Callable[[], object]) -> None:
        self._due = due
        self._parts: dict[str, Callable[[], AnyPart]] = {}
        self._characters = 0
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, part_id: str, characters: int, current: Callable[[], AnyPart]) -> None:
        """More of a part was shown; `current` gives the part so far."""
        self._parts[part_id] = current
        self._characters += characters
        if self._characters >= FLUSH_CHARACTERS:
            self._ring()
        else:
            self.wake()

    def wake(self) -> None:
        """Something was shown: see to it that it is kept in time."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._ring)

    def drop(self, part_id: str) -> None:
        """The part is final."""
        self._parts.pop(part_id, None)

    def take(self) -> list[AnyPart]:
        parts, self._parts, self._characters = self._parts, {}, 0
        return [current() for current in parts.values()]

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self.stop()
        self._characters = 0
        self._due()
