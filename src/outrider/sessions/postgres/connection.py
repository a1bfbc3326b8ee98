"""Runs transactions on pooled Postgres connections, and notifies listeners of changes via LISTEN/NOTIFY."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
from psycopg import errors, sql
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from outrider.errors import StorageFullError, StoreError, StoreUnavailableError
from outrider.sessions.postgres.schema import Connection
from outrider.sessions.postgres.writes import CHANNEL
from outrider.sessions.rows.session_rows import SessionListeners

T = TypeVar("T")
# The second argument is `retried`: an earlier attempt may have been committed, because the connection was lost before
# the response to its COMMIT arrived.
TransactionBody = Callable[[Connection, bool], Awaitable[T]]

MAX_CONNECTIONS = 8
MAX_ATTEMPTS = 4
CONNECT_TIMEOUT_SECONDS = 10
POOL_WAIT_SECONDS = 2.0
RECONNECT_SECONDS = 0.5


class TransactionPool:
    """Runs transactions on up to MAX_CONNECTIONS pooled connections and retries them after a lost connection."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._schema = schema
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            url,
            kwargs={"autocommit": True, "connect_timeout": CONNECT_TIMEOUT_SECONDS},
            min_size=1,
            max_size=MAX_CONNECTIONS,
            open=False,
            configure=self._set_search_path,
            name="outrider",
        )

    async def connect(self) -> Connection:
        """Opens a connection outside the pool. Raises psycopg.OperationalError if the server cannot be reached."""
        db = await psycopg.AsyncConnection.connect(self._url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS)
        await self._set_search_path(db)
        return db

    async def run(self, body: TransactionBody[T]) -> T:
        """Runs `body` in a transaction and retries after a lost connection or a serialization error, with backoff.

        `body` must have the same effect whether it is committed once or twice.
        """
        for attempt in range(MAX_ATTEMPTS):
            try:
                return await self._run_once(body, retried=attempt > 0)
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if attempt + 1 == MAX_ATTEMPTS or not _is_retryable(error):
                    raise to_store_error(error) from error
                await asyncio.sleep(0.05 * 4**attempt)
            except psycopg.Error as error:
                raise to_store_error(error) from error
        raise AssertionError("unreachable")

    async def close(self) -> None:
        await self._pool.close()

    async def _run_once(self, body: TransactionBody[T], *, retried: bool) -> T:
        if retried and not self._pool.closed:
            await self._pool.check()  # a server restart breaks all idle connections, more than there are attempts
        db = await self._acquire_connection()
        try:
            async with db.transaction():
                return await body(db, retried)
        finally:
            await self._pool.putconn(db)

    async def _acquire_connection(self) -> Connection:
        """Returns a pooled connection; opens the pool on first use.

        The pool itself reports an unreachable server only as a timeout. A direct connection raises the reason, and at
        once; if it succeeds, the pool was merely busy.
        """
        if self._pool.closed:
            await (await self.connect()).close()
            await self._pool.open()
        while True:
            try:
                return await self._pool.getconn(timeout=POOL_WAIT_SECONDS)
            except PoolTimeout:
                await (await self.connect()).close()

    async def _set_search_path(self, db: Connection) -> None:
        await db.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(self._schema)))


def _is_retryable(error: psycopg.Error) -> bool:
    """True for a lost connection (08), a server shutdown (57) and a serialization error or deadlock (40)."""
    return error.sqlstate is None or error.sqlstate[:2] in ("08", "57", "40")


def to_store_error(error: psycopg.Error) -> StoreError:
    """Converts a psycopg error to a StoreError."""
    if isinstance(error, errors.DiskFull):
        return StorageFullError(f"the Postgres server has no space left: {error}")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailableError(f"the Postgres server cannot be reached: {error}")
    return StoreError(f"the Postgres server rejected the statement: {error}")


class NotificationListener(SessionListeners):
    """Notifies all listeners through one connection that runs LISTEN.

    After a lost connection it wakes every listener, so that each queries again and misses no change.
    """

    def __init__(self, pool: TransactionPool) -> None:
        super().__init__()
        self._pool = pool
        self._listening: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def wait_ready(self) -> None:
        """Starts the LISTEN connection and waits until it receives notifications."""
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen_forever())
        await self._ready.wait()

    async def close(self) -> None:
        self.notify_all()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    async def _listen_forever(self) -> None:
        while True:
            with contextlib.suppress(psycopg.Error, OSError):
                async with await self._pool.connect() as db:
                    await self._forward_notifications(db)
            self.notify_all()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _forward_notifications(self, db: Connection) -> None:
        await db.execute(f"LISTEN {CHANNEL}".encode())
        self._ready.set()
        self.notify_all()
        async for notification in db.notifies():
            self.notify_session(notification.payload)
