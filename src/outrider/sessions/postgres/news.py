"""Who follows a session is woken by the server's notifications, whichever machine made the change."""

import asyncio
import contextlib

import psycopg

from outrider.sessions.postgres.pool import Pool
from outrider.sessions.postgres.schema import Connection
from outrider.sessions.postgres.writes import CHANNEL
from outrider.sessions.rows.followers import Followers

AGAIN_SECONDS = 0.5


class News(Followers):
    """One connection listens for all. When it is lost everybody looks again, so that nothing is missed."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool
        self._listening: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def ready(self) -> None:
        """Wait until what changes from now on will be heard."""
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen())
        await self._ready.wait()

    async def close(self) -> None:
        self.tell_all()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            with contextlib.suppress(psycopg.Error, OSError):
                async with await self._pool.connect() as db:
                    await self._hear(db)
            self.tell_all()
            await asyncio.sleep(AGAIN_SECONDS)

    async def _hear(self, db: Connection) -> None:
        await db.execute(f"LISTEN {CHANNEL}".encode())
        self._ready.set()
        self.tell_all()
        async for notice in db.notifies():
            self.tell(notice.payload)
