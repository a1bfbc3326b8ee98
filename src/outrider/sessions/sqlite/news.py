"""Who follows a session hears of changes: at once from this process, within a moment from others."""

import asyncio
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from outrider.sessions.rows.followers import Followers

POLL_SECONDS = 0.1


class News(Followers):
    """Other processes are noticed by the file's version, which costs microseconds to ask for."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._poll: asyncio.Task[None] | None = None

    @contextmanager
    def listen(self, session_id: str) -> Generator[asyncio.Event]:
        if self._poll is None or self._poll.done():
            self._poll = asyncio.create_task(self._watch_others())
        try:
            with super().listen(session_id) as ear:
                yield ear
        finally:
            if not self:
                self._poll.cancel()

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
