"""Who follows a session hears of changes: at once from this process, within a moment from others."""

import asyncio
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 0.1


class News:
    """Other processes are noticed by the file's version, which costs microseconds to ask for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ears: dict[str, dict[asyncio.Event, asyncio.AbstractEventLoop]] = {}
        self._poll: asyncio.Task[None] | None = None

    @contextmanager
    def listen(self, session_id: str) -> Generator[asyncio.Event]:
        ear = asyncio.Event()
        self._ears.setdefault(session_id, {})[ear] = asyncio.get_running_loop()
        if self._poll is None or self._poll.done():
            self._poll = asyncio.create_task(self._watch_others())
        try:
            yield ear
        finally:
            del self._ears[session_id][ear]
            if not self._ears[session_id]:
                del self._ears[session_id]
            if not self._ears:
                self._poll.cancel()

    def tell(self, session_id: str) -> None:
        for ear, loop in tuple(self._ears.get(session_id, {}).items()):
            if not loop.is_closed():
                loop.call_soon_threadsafe(ear.set)

    def tell_all(self) -> None:
        for session_id in tuple(self._ears):
            self.tell(session_id)

    async def close(self) -> None:
        self.tell_all()
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)

    async def _watch_others(self) -> None:
        db = sqlite3.connect(self._path, isolation_level=None)
        try:
            seen = -1
            while True:
                version = db.execute("PRAGMA data_version").fetchone()[0]
                if version != seen:
                    self.tell_all()
                seen = version
                await asyncio.sleep(POLL_SECONDS)
        finally:
            db.close()
