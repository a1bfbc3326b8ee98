"""Connections to the server: a few, shared; work that lost its connection is done again on another."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
from psycopg import errors, sql

from outrider.errors import StorageFullError, StoreError, StoreUnavailableError
from outrider.sessions.postgres.schema import Connection
from outrider.sessions.postgres.writes import CHANNEL
from outrider.sessions.rows.rows import Followers

T = TypeVar("T")
# `again` says that an earlier attempt may have been committed: the answer to its COMMIT was lost.
Work = Callable[[Connection, bool], Awaitable[T]]

CONNECTIONS = 8
ATTEMPTS = 4


class Pool:
    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._schema = schema
        self._free: list[Connection] = []
        self._slots = asyncio.Semaphore(CONNECTIONS)

    async def connect(self) -> Connection:
        db = await psycopg.AsyncConnection.connect(self._url, autocommit=True, connect_timeout=10)
        await db.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(self._schema)))
        return db

    async def run(self, work: Work[T]) -> T:
        """One transaction. Work must leave the same behind whether it is committed once or twice."""
        for attempt in range(ATTEMPTS):
            try:
                return await self._attempt(work, again=attempt > 0)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if attempt + 1 == ATTEMPTS or not _is_lost(error):
                    raise explain(error) from error
                await asyncio.sleep(0.05 * 4**attempt)
            except psycopg.Error as error:
                raise explain(error) from error
        raise AssertionError("unreachable")

    async def close(self) -> None:
        while self._free:
            await self._free.pop().close()

    async def _attempt(self, work: Work[T], *, again: bool) -> T:
        async with self._slots:
            db = self._free.pop() if self._free else await self.connect()
            try:
                async with db.transaction():
                    return await work(db, again)
            finally:
                if db.closed or db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    await db.close()
                else:
                    self._free.append(db)


def _is_lost(error: psycopg.Error) -> bool:
    """The connection broke, or the server asks to try again; what it refused stays refused."""
    return error.sqlstate is None or error.sqlstate[:2] in ("08", "57", "40")


def explain(error: psycopg.Error) -> StoreError:
    if isinstance(error, errors.DiskFull):
        return StorageFullError(f"the server has no space left: {error}")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailableError(f"the server cannot be reached: {error}")
    return StoreError(f"the server refused: {error}")


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
