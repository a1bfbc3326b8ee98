"""Who follows which session, and how they are woken."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager


class Followers:
    """May be told from any thread."""

    def __init__(self) -> None:
        self._ears: dict[str, dict[asyncio.Event, asyncio.AbstractEventLoop]] = {}

    @contextmanager
    def listen(self, session_id: str) -> Generator[asyncio.Event]:
        """An event that is set whenever the session may have changed."""
        ear = asyncio.Event()
        self._ears.setdefault(session_id, {})[ear] = asyncio.get_running_loop()
        try:
            yield ear
        finally:
            del self._ears[session_id][ear]
            if not self._ears[session_id]:
                del self._ears[session_id]

    def __bool__(self) -> bool:
        return bool(self._ears)

    def tell(self, session_id: str) -> None:
        for ear, loop in tuple(self._ears.get(session_id, {}).items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(ear.set)

    def tell_all(self) -> None:
        for session_id in tuple(self._ears):
            self.tell(session_id)
