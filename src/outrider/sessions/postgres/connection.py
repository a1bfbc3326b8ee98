"""Runs transactions on pooled Postgres connections, and notifies listeners of changes via LISTEN/NOTIFY."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from time import monotonic
from typing import TypeVar

import psycopg
from psycopg import errors, sql
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from outrider._sync import cancel_tasks
from outrider.errors import StorageFullError, StoreError, StoreUnavailableError
from outrider.sessions.postgres.schema import Connection
from outrider.sessions.postgres.writes import CHANNEL
from outrider.sessions.rows.session_rows import SessionListeners

T = TypeVar("T")
# The second argument is `retried`: an earlier attempt may have been committed, because the connection was lost before
# the response to its COMMIT arrived.
TransactionBody = Callable[[Connection, bool], Awaitable[T]]

MAX_CONNECTIONS = 8
MAX_IDLE_SECONDS = 60.0  # a connection that is not used for longer is closed
MAX_ATTEMPTS = 4
CONNECT_TIMEOUT_SECONDS = 10
POOL_WAIT_SECONDS = 2.0
RECONNECT_SECONDS = 0.5
POOL_RECONNECT_SECONDS = 5.0  # the pool doubles its delays up to this; afterwards each request connects anew
LONGEST_PAUSE_SECONDS = 5.0
POOLED_POLL_SECONDS = 1.0
_SET_PATH, _SET_LOCAL_PATH = sql.SQL("SET search_path TO {}"), sql.SQL("SET LOCAL search_path TO {}")

_log = logging.getLogger("outrider.sessions")


class TransactionPool:
    """Runs transactions on up to `max_connections` pooled connections and retries them after a lost connection.

    While the server cannot be reached, a transaction waits up to `outage_seconds`. Writes are fenced by the token of
    their lease, so a late one cannot overwrite what another owner has written in between.
    """

    def __init__(
        self, url: str, schema: str, outage_seconds: float = 0.0, max_connections: int = MAX_CONNECTIONS
    ) -> None:
        self.outage_seconds = outage_seconds
        self._outage_start: float | None = None
        self.is_pooled = False  # whether a pooler is between this process and the server
        self._url = url
        self._schema_name = sql.Identifier(schema)
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            url,
            kwargs={"autocommit": True, "connect_timeout": CONNECT_TIMEOUT_SECONDS},
            min_size=1,
            max_size=max_connections,
            max_idle=MAX_IDLE_SECONDS,
            open=False,
            configure=self._configure_connection,
            reconnect_timeout=POOL_RECONNECT_SECONDS,
            name="outrider",
        )

    async def connect(self) -> Connection:
        """Opens a connection outside the pool. Raises psycopg.OperationalError if the server cannot be reached."""
        db = await psycopg.AsyncConnection.connect(self._url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_SECONDS)
        await self._configure_connection(db)
        return db

    async def run_alone(self, body: Callable[[Connection], Awaitable[T]]) -> T:
        """Runs `body`, which begins its own transactions, on a connection outside the pool."""
        try:
            async with await self.connect() as db:
                return await body(db)
        except psycopg.Error as error:
            raise to_store_error(error) from error

    async def run(self, body: TransactionBody[T], *, is_statement: bool = False, is_snapshot: bool = False) -> T:
        """Runs `body` in a transaction and retries after a lost connection or a serialization error, with backoff. A
        body that writes with one statement (`is_statement`) needs no BEGIN and COMMIT, which are two of three round
        trips. A body that only reads (`is_snapshot`) sees one snapshot.

        `body` must have the same effect whether it is committed once or twice.
        """
        attempt, start = 0, monotonic()
        while True:
            try:
                result = await self._run_once(
                    body, retried=attempt > 0, is_statement=is_statement, is_snapshot=is_snapshot
                )
            except psycopg.Error as error:
                pause = self._choose_pause(error, attempt, monotonic() - start)
                if pause is None:
                    raise to_store_error(error) from error
                await asyncio.sleep(pause)
                attempt += 1
            else:
                self._end_outage()
                return result

    async def close(self) -> None:
        self.outage_seconds = 0.0
        await self._pool.close()

    def _choose_pause(self, error: psycopg.Error, attempt: int, elapsed: float) -> float | None:
        """Returns the seconds to wait before the next attempt; None if there is no further attempt."""
        if not _is_retryable(error):
            return None
        if attempt + 1 < MAX_ATTEMPTS:
            return 0.05 * 4**attempt
        if elapsed > self.outage_seconds or not _is_outage(error):
            return None
        if self._outage_start is None:
            self._outage_start = monotonic() - elapsed
            _log.warning("waiting for database: %s", error)
        exponent = min(attempt - MAX_ATTEMPTS, 10)
        return min(0.5 * 1.5**exponent, LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.0)

    def _end_outage(self) -> None:
        if self._outage_start is not None:
            _log.warning("the database is available again after %.0f s", monotonic() - self._outage_start)
            self._outage_start = None

    async def _run_once(self, body: TransactionBody[T], *, retried: bool, is_statement: bool, is_snapshot: bool) -> T:
        if retried and not self._pool.closed:
            await self._pool.check()  # a server restart breaks all idle connections, more than there are attempts
        db = await self._acquire_connection()
        try:
            if is_statement and not self.is_pooled:
                return await body(db, retried)
            async with _begin_snapshot(db) if is_snapshot else db.transaction():
                if self.is_pooled:
                    await db.execute(_SET_LOCAL_PATH.format(self._schema_name))
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

    async def _configure_connection(self, db: Connection) -> None:
        """Sets the search path. A pooler in transaction mode, such as PgBouncer, gives each transaction another server
        connection, so that settings and prepared statements of a session get lost: then each transaction sets the path.
        A pooler reports another process id than the server."""
        row = await (await db.execute("SELECT pg_backend_pid()")).fetchone()
        self.is_pooled = row is not None and row[0] != db.info.backend_pid
        if self.is_pooled:
            db.prepare_threshold = None
        else:
            await db.execute(_SET_PATH.format(self._schema_name))


@contextlib.asynccontextmanager
async def _begin_snapshot(db: Connection) -> AsyncGenerator[None, None]:
    """Opens a transaction whose BEGIN has the isolation level, which saves a round trip. It ends with COMMIT, because
    psycopg drops all prepared statements after a ROLLBACK. If the connection is lost, the pool discards it."""
    await db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    try:
        yield
    finally:
        with contextlib.suppress(psycopg.Error):
            await db.commit()


def _is_retryable(error: psycopg.Error) -> bool:
    """Returns whether an error is an unavailable server, a serialization error or a deadlock (40)."""
    return _is_outage(error) or (error.sqlstate or "").startswith("40")


def _is_outage(error: psycopg.Error) -> bool:
    """Returns whether an error is a lost connection (08), a server that stops or starts (57), or a server without free
    connections."""
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return False
    return error.sqlstate is None or error.sqlstate[:2] in ("08", "57") or error.sqlstate == "53300"


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
            await cancel_tasks([self._listening])

    async def _listen_forever(self) -> None:
        while True:
            with contextlib.suppress(psycopg.Error, OSError):
                async with await self._pool.connect() as db:
                    await self._forward_notifications(db)
            self.notify_all()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _forward_notifications(self, db: Connection) -> None:
        if self._pool.is_pooled:  # a pooler in transaction mode delivers no notifications, so listeners poll
            self._ready.set()
            self.notify_all()
            await asyncio.sleep(POOLED_POLL_SECONDS)
            return
        await db.execute(f"LISTEN {CHANNEL}".encode())
        self._ready.set()
        self.notify_all()
        async for notification in db.notifies():
            self.notify_session(notification.payload)
