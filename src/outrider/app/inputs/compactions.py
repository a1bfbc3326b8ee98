"""A compaction that somebody asked for: it is done when nothing else is, and whoever asked hears what came of it."""

import asyncio

from outrider.errors import OutriderError
from outrider.types.parts import CompactionPart


class Wish:
    """True as long as it waits. Several may ask: they hear the same."""

    def __init__(self) -> None:
        self._end: asyncio.Future[CompactionPart | None] | None = None

    def __bool__(self) -> bool:
        return self._end is not None

    def ask(self) -> "asyncio.Future[CompactionPart | None]":
        self._end = self._end or asyncio.get_running_loop().create_future()
        return self._end

    def end(self, outcome: CompactionPart | OutriderError | None) -> None:
        end, self._end = self._end, None
        if end is None:
            return
        if isinstance(outcome, OutriderError):
            end.set_exception(outcome)
            end.exception()  # perhaps nobody waits any more
        else:
            end.set_result(outcome)
