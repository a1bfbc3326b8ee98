"""The database of background runs: one SQLite file for one machine, or a Postgres server for many."""

import asyncio
import logging
import random
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, ParamSpec, TypeVar

import msgspec
import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSConfig, Serializer, WorkflowStatus, error
from sqlalchemy import event
from sqlalchemy import exc as sql_errors
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from outrider.errors import ConfigurationError, StorageFullError, StoreDamagedError, StoreError, StoreUnavailableError
from outrider.sessions.database_files import check_encoding, configure_connection, prepare_file, to_store_error

# SQLAlchemy parses the string of a statement each time; runs have few different statements.
sql_text = lru_cache(maxsize=512)(sa.text)

T = TypeVar("T")
P = ParamSpec("P")
_log = logging.getLogger("outrider.worker")
APPLICATION_NAME = "outrider"
SCHEMA = "outrider_runs"
WORKFLOW_NAME = "outrider.run"
_WORKER_PREFIX = "worker:"
DEPENDENT_PREFIX = "after:"  # DBOS queue names of version 0.1 for runs that wait for another run
# Version of the stored workflow data; DBOS's default, a hash of the code, would strand old runs at every upgrade.
WORKFLOW_VERSION = "1"
_MIGRATION_LOCK_KEY = 0x6F757472  # Postgres advisory lock for migrations
_TABLE_STATEMENTS = (
    "CREATE TABLE IF NOT EXISTS {}workers (id TEXT PRIMARY KEY, owner TEXT NOT NULL, beats BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {}worker_status (id TEXT PRIMARY KEY, status TEXT NOT NULL, seen BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {}waiting (id TEXT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS {}line (id TEXT PRIMARY KEY, queue TEXT NOT NULL, owner TEXT NOT NULL, "
    "agent TEXT NOT NULL, provider TEXT NOT NULL, begun BIGINT)",
    "CREATE INDEX IF NOT EXISTS line_begun ON {}line (begun)",
    "CREATE TABLE IF NOT EXISTS {}turns (queue TEXT, owner TEXT, number BIGINT NOT NULL, PRIMARY KEY (queue, owner))",
    "CREATE TABLE IF NOT EXISTS {}reports (id TEXT PRIMARY KEY, report TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {}notices (id TEXT PRIMARY KEY, url TEXT NOT NULL, body TEXT NOT NULL, "
    "tries BIGINT NOT NULL, due BIGINT)",
    "CREATE TABLE IF NOT EXISTS {}retries (id TEXT PRIMARY KEY, failures BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {}breakers (id TEXT PRIMARY KEY, until BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {}snapshots (id TEXT PRIMARY KEY, info TEXT NOT NULL, body BYTEA)",
    "CREATE TABLE IF NOT EXISTS {}schedules (id TEXT PRIMARY KEY, schedule TEXT NOT NULL, due BIGINT NOT NULL)",
)

_ENTRIES_STATEMENTS = (
    "CREATE TABLE IF NOT EXISTS {}entries (id TEXT PRIMARY KEY, state TEXT NOT NULL, worker TEXT NOT NULL, "
    "priority BIGINT NOT NULL, created BIGINT NOT NULL, ready BIGINT NOT NULL, after_run TEXT NOT NULL, "
    "attempts BIGINT NOT NULL, canceled BIGINT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS entries_state ON {}entries (state, worker)",
)
# What the choice of the next run reads. A run is `held` until its start time; other runs in the queue can start now.
_ENTRY_COLUMNS = {
    "queue": "TEXT NOT NULL DEFAULT ''",
    "owner": "TEXT NOT NULL DEFAULT ''",
    "agent": "TEXT NOT NULL DEFAULT ''",
    "provider": "TEXT NOT NULL DEFAULT ''",
    "held": "BIGINT NOT NULL DEFAULT 0",
}
STARTABLE = "state = 'queued' AND canceled = 0 AND after_run = '' AND held = 0"
_CHOICE_STATEMENTS = (
    "UPDATE {}entries SET queue = line.queue, owner = line.owner, agent = line.agent, provider = line.provider, "
    "held = CASE WHEN ready > created THEN 1 ELSE 0 END FROM {}line AS line WHERE line.id = {}entries.id",
    "CREATE INDEX IF NOT EXISTS entries_startable ON {}entries "
    f"(queue, owner, agent, provider, priority, created, id) WHERE {STARTABLE}",
    "CREATE INDEX IF NOT EXISTS entries_held ON {}entries (ready) WHERE held = 1 AND state = 'queued'",
    "CREATE INDEX IF NOT EXISTS entries_after ON {}entries (after_run) WHERE after_run <> '' AND state = 'queued'",
    "CREATE INDEX IF NOT EXISTS entries_created ON {}entries (created, id)",
    "CREATE INDEX IF NOT EXISTS entries_started ON {}entries (id) WHERE state <> 'released' AND attempts > 0",
    "CREATE INDEX IF NOT EXISTS notices_due ON {}notices (due)",
)
_DBOS_TABLES = ("workflow_status", "dbos_migrations")
_POOL_TIMEOUT_SECONDS = 60
_LONGEST_PAUSE_SECONDS = 5.0
_POOL_SIZE = 3  # connections of the engine, which DBOS and all tables of runs share
_PING_AFTER_SECONDS = 2.0  # a connection that was not used for longer is checked first
QUEUE_CHANNEL = "outrider_runs"  # Postgres channel: a run can start, was canceled, or waits for nothing any more
STARTED = "started"  # payload
_SELF_TEST_SECONDS = 5.0
_POOLED = "pooled"  # key in the info of a connection
_CONNECT_ARGUMENTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
_ACTIVE = ["DELAYED", "ENQUEUED", "PENDING"]
_FAILED = ["CANCELLED", "ERROR", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]


def worker_queue(worker_id: str) -> str:
    """Returns the name of the DBOS queue that only this worker listens to."""
    return f"{_WORKER_PREFIX}{worker_id}"


def outage_pause(attempt: int) -> float:
    """Returns the seconds to wait before the next attempt to reach a database, with random jitter."""
    return min(0.25 * 1.5 ** min(attempt, 10), _LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.0)


async def repeat_during_outage(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `work` in a thread, and repeats it as long as the database cannot be reached or is locked. `work` must have
    the same effect whether it is committed once or twice. Without a time limit: a run must not end for an outage, and
    a worker that is closed cancels the wait."""
    attempt, start = 0, monotonic()
    while True:
        try:
            result = await asyncio.to_thread(work, *args, **kwargs)
        except sql_errors.SQLAlchemyError as problem:
            if not is_outage(problem):
                raise
            if attempt == 0:
                _log.warning("waiting for database: %s", problem)
            await asyncio.sleep(outage_pause(attempt))
            attempt += 1
        else:
            if attempt:
                _log.warning("the database is available again after %.0f s", monotonic() - start)
            return result


def is_outage(problem: BaseException) -> bool:
    """Returns whether the database is unreachable, locked or out of connections, so that a later attempt may
    succeed."""
    if isinstance(problem, sql_errors.DBAPIError) and problem.connection_invalidated:
        return True
    return isinstance(problem, sql_errors.OperationalError | sql_errors.InterfaceError | sql_errors.TimeoutError)


@contextmanager
def skip_failed_entry(entry: str) -> Generator[None]:
    """Logs why an entry cannot be processed, so that the entries after it are. Raises the error if the database or the
    store cannot be used, because then all of them fail."""
    try:
        yield
    except Exception as problem:  # an entry may contain anything
        if is_outage(problem) or isinstance(problem, StoreUnavailableError | StorageFullError):
            raise
        _log.warning("cannot process %s, will retry: %s: %s", entry, type(problem).__name__, problem)


class JsonSerializer(Serializer):
    """Serializes workflow values as JSON. Unlike pickle, the DBOS default, deserialized JSON cannot run code."""

    def serialize(self, data: Any) -> str:
        """Returns JSON."""
        return msgspec.json.encode(data, enc_hook=_encode_exception).decode()

    def deserialize(self, serialized_data: str) -> Any:
        """Returns a stored value."""
        return msgspec.json.decode(serialized_data)

    def name(self) -> str:
        """Returns the name that DBOS stores with each value."""
        return "outrider_json"


class RunDatabase:
    """Holds the SQLAlchemy engine for `url`, which is sqlite:///path or postgresql://…; it connects on first use."""

    def __init__(self, url: str) -> None:
        try:
            self.url = sa.make_url(url)
        except ArgumentError as error:
            raise ConfigurationError("the runs database is a URL: sqlite:///path or postgresql://…") from error
        if self.url.get_backend_name() not in ("sqlite", "postgresql"):
            raise ConfigurationError(f"the runs database must be sqlite:///path or postgresql://…, not {self.url!r}")
        self.is_postgres = self.url.get_backend_name() == "postgresql"
        self.table_prefix = f"{SCHEMA}." if self.is_postgres else "outrider_"
        self.engine = self._create_engine()
        # For single statements, on the same connections: BEGIN and COMMIT are two of three round trips.
        self.statements = (
            self.engine.execution_options(isolation_level="AUTOCOMMIT") if self.is_postgres else self.engine
        )

    def migrate(self) -> None:
        """Creates or upgrades the tables. Several processes may call it at the same time. Raises StoreError if the
        SQLite file cannot be used, for example because it is damaged or the disk is full."""
        if not self.is_postgres and self.url.database not in (None, "", ":memory:"):
            prepare_file(Path(self.url.database))
        with self._migration_lock(), self.translate_errors():
            self._reject_foreign_database()
            DBOS.migrate(self.url.render_as_string(hide_password=False), schema=SCHEMA)
            with self._begin_migration() as db:
                for statement in _TABLE_STATEMENTS:
                    db.execute(sa.text(statement.format(self.table_prefix)))
            self._create_entries()
            self._add_entry_columns()

    def _reject_foreign_database(self) -> None:
        """Raises StoreError for an SQLite file of another program."""
        names = [] if self.is_postgres else sa.inspect(self.engine).get_table_names()
        if names and not any(name.startswith(self.table_prefix) or name in _DBOS_TABLES for name in names):
            path, table_names = self.url.database, ", ".join(names[:3])
            raise StoreError(
                f"the runs database {path} is a database of another program (tables: {table_names}), so it was not "
                "changed; move it away",
                path=str(path),
            )

    def _add_entry_columns(self) -> None:
        """Adds the columns that the choice of the next run reads, and fills them from the table `line`."""
        name, schema = ("entries", SCHEMA) if self.is_postgres else (f"{self.table_prefix}entries", None)
        existing = {column["name"] for column in sa.inspect(self.engine).get_columns(name, schema)}
        missing_columns = {name: kind for name, kind in _ENTRY_COLUMNS.items() if name not in existing}
        if not missing_columns:
            return
        with self._begin_migration() as db:
            for column, kind in missing_columns.items():
                unless_exists = "IF NOT EXISTS" if self.is_postgres else ""
                add = f"ALTER TABLE {self.table_prefix}entries ADD COLUMN {unless_exists} {column} {kind}"
                db.execute(sa.text(add))
            for statement in _CHOICE_STATEMENTS:
                db.execute(sa.text(statement.replace("{}", self.table_prefix)))

    def entries_by(self, index: str) -> str:
        """Returns the queue's table for a FROM clause or an UPDATE, with the index to use. SQLite, which has no
        statistics of the table, would choose the index of the state and read the whole queue."""
        return f"{self.table_prefix}entries" if self.is_postgres else f"{self.table_prefix}entries INDEXED BY {index}"

    def notify_workers(self, db: sa.Connection, *, started: bool = False) -> None:
        """Wakes the workers when the caller's transaction is committed: a run can start or, with `started`, something
        has happened to one that has started. Workers on SQLite poll."""
        if self.is_postgres:
            db.execute(sa.text(f"SELECT pg_notify('{QUEUE_CHANNEL}', :payload)"), {"payload": STARTED * started})

    def _create_entries(self) -> None:
        """Creates the queue's table. In a database of version 0.1, which used DBOS queues, the same
        transaction fills it with the runs that are not over, so that a crash cannot leave it incomplete."""
        name, schema = ("entries", SCHEMA) if self.is_postgres else (f"{self.table_prefix}entries", None)
        if sa.inspect(self.engine).has_table(name, schema):
            return
        client = self.open_client()
        try:
            active = client.list_workflows(name=WORKFLOW_NAME, status=_ACTIVE, load_input=False, load_output=False)
            failed = client.list_workflows(name=WORKFLOW_NAME, status=_FAILED, load_input=False, load_output=False)
        finally:
            client.destroy()
        with self._begin_migration() as db:
            for statement in _ENTRIES_STATEMENTS:
                db.execute(sa.text(statement.format(self.table_prefix)))
            started = {
                row.id for row in db.execute(sa.text(f"SELECT id FROM {self.table_prefix}line WHERE begun IS NOT NULL"))
            }
            reported = {row.id for row in db.execute(sa.text(f"SELECT id FROM {self.table_prefix}reports"))}
            entries = [_entry_of(status, started=status.workflow_id in started) for status in active]
            orphans = [run for run in failed if run.workflow_id in started and run.workflow_id not in reported]
            entries += [_entry_of(status, started=True) for status in orphans]
            for entry in entries:
                columns = ", ".join(f":{column}" for column in entry)
                names = ", ".join(entry)
                statement = (
                    f"INSERT INTO {self.table_prefix}entries ({names}) VALUES ({columns}) ON CONFLICT DO NOTHING"
                )
                db.execute(sa.text(statement), entry)

    def open_client(self) -> DBOSClient:
        """Returns a DBOS client that shares this engine's connection pool."""
        return self._create_client(self.engine)

    def change_with_workflow(
        self, change: Callable[[sa.Connection], bool], call: Callable[[DBOSClient], object]
    ) -> bool:
        """Changes our tables and a workflow in one transaction, so that a process that dies or is late changes both or
        neither. `call` rewinds or cancels a workflow: DBOS does either in one transaction of the client's engine, and
        `change` is its first step. Returns False, with neither done, if `change` returns False or if DBOS refuses the
        call for the state of the workflow."""

        def begin(db: sa.Connection) -> None:
            if not change(db):
                raise _NothingToChangeError

        engine = self.engine.execution_options()  # a copy on the same connections, with separate listeners
        event.listen(engine, "begin", begin)
        client = self._create_client(engine, lazy=True)
        try:
            call(client)
        except (_NothingToChangeError, error.DBOSException):
            return False
        else:
            return True
        finally:
            client.destroy()

    def _create_client(self, engine: sa.Engine, *, lazy: bool = False) -> DBOSClient:
        return DBOSClient(
            system_database_engine=engine,
            lazy=lazy,
            dbos_system_schema=SCHEMA,
            serializer=JsonSerializer(),
            application_name=APPLICATION_NAME,
            # DBOS would repeat in the caller's thread with delays of up to a minute, which stops the heartbeat.
            retry_connection_errors=False,
        )

    def dbos_config(self, worker_id: str) -> DBOSConfig:
        """Returns the configuration of the DBOS runtime, of which a process can have only one."""
        return DBOSConfig(
            name=APPLICATION_NAME,
            system_database_url=self.url.render_as_string(hide_password=False),
            system_database_engine=self.engine,
            dbos_system_schema=SCHEMA,
            serializer=JsonSerializer(),
            application_version=WORKFLOW_VERSION,
            executor_id=worker_id,
            run_migrations=False,
            log_level="ERROR",
            # Events, streams and schedules of DBOS are not used. Without these settings it has a connection for LISTEN
            # and a thread that wakes every 10 ms. `migrate` uses the default of `use_listen_notify`, as always.
            use_listen_notify=False,
            # The thread sleeps that long also when DBOS is stopped, which waits for it.
            notification_listener_polling_interval_sec=0.25,
            scheduler_polling_interval_sec=3600.0,
        )

    def close_idle_connections(self) -> None:
        """Closes the connections that no one uses at the moment."""
        if self.is_postgres:
            self.engine.dispose()

    def close(self) -> None:
        """Closes all connections."""
        self.engine.dispose()

    def _create_engine(self) -> sa.Engine:
        if self.is_postgres:
            engine = sa.create_engine(
                self.url.set(drivername="postgresql+psycopg"),
                pool_size=_POOL_SIZE,
                max_overflow=0,
                pool_timeout=_POOL_TIMEOUT_SECONDS,
                pool_use_lifo=True,
                connect_args=_CONNECT_ARGUMENTS,
            )
            event.listen(engine, "connect", _reject_ascii, insert=True)  # first: SQLAlchemy fails with a TypeError
            event.listen(engine, "connect", _detect_pooler)
            event.listen(engine, "checkin", _note_use)
            event.listen(engine, "checkout", _ping_if_unused)
            return engine
        engine = sa.create_engine(self.url)
        event.listen(engine, "connect", self._configure_sqlite)
        event.listen(engine, "handle_error", self._raise_if_damaged)
        return engine

    def _configure_sqlite(self, connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = "IMMEDIATE"
        configure_connection(connection, Path(self.url.database or ""))
        connection.execute("PRAGMA foreign_keys = ON")
        if sqlite3.sqlite_version_info < (3, 42):
            connection.create_function("unixepoch", 1, _read_clock)

    @contextmanager
    def translate_errors(self) -> Generator[None]:
        """Raises StoreError in place of an SQLite error and of a row that cannot be decoded. DBOS migrates with a
        separate engine, which does not call `_raise_if_damaged`."""
        try:
            yield
        except DBAPIError as problem:
            if not isinstance(problem.orig, sqlite3.Error):
                raise
            raise self._to_store_error(problem.orig) from problem
        except (UnicodeDecodeError, msgspec.MsgspecError) as problem:
            if self.is_postgres:
                raise
            raise self._to_store_error(problem) from problem

    def _raise_if_damaged(self, context: ExceptionContext) -> None:
        """Raises StoreDamagedError for damage, which no retry repairs; SQLAlchemy raises all other errors."""
        problem = context.original_exception
        if not isinstance(problem, (sqlite3.Error, UnicodeDecodeError)):
            return
        translated = self._to_store_error(problem)
        if isinstance(translated, StoreDamagedError):
            raise translated from problem

    def _to_store_error(self, problem: Exception) -> StoreError:
        path = Path(self.url.database or "")
        translated = to_store_error(problem, path)
        if isinstance(problem, sqlite3.Error) and not isinstance(translated, StoreDamagedError):
            return translated
        remedy = "`outrider doctor --repair` moves the file aside, so that a new one is created; sessions are not lost"
        return StoreDamagedError(f"the runs database {path} is damaged: {problem}; {remedy}", path=str(path))

    @contextmanager
    def _migration_lock(self) -> Generator[None]:
        """Holds a Postgres advisory lock. It polls outside a transaction because CREATE INDEX CONCURRENTLY waits until
        no other transaction is open, and would deadlock with a blocking lock request. Behind a pooler a lock cannot
        outlive a transaction, so each transaction of a migration takes it. SQLite needs no lock: it has one writer."""
        if not self.is_postgres:
            yield
            return
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
            is_pooled = bool(db.info.get(_POOLED))
            while not (
                is_pooled
                or db.execute(sa.text("SELECT pg_try_advisory_lock(:key)"), {"key": _MIGRATION_LOCK_KEY}).scalar()
            ):
                sleep(0.2)
            try:
                yield
            finally:
                if not is_pooled:
                    db.execute(sa.text("SELECT pg_advisory_unlock(:key)"), {"key": _MIGRATION_LOCK_KEY})

    @contextmanager
    def _begin_migration(self) -> Generator[sa.Connection]:
        with self.engine.begin() as db:
            if db.info.get(_POOLED):
                db.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK_KEY})
            yield db


class QueueListener:
    """Calls `wake` with the payload when runs change, through one connection outside the pool that runs LISTEN.

    Nothing depends on it: a pooler in transaction mode, such as PgBouncer, delivers no notifications, and then workers
    look for work with each heartbeat. `url` is a direct address for this case; "" for none."""

    def __init__(self, database: RunDatabase, wake: Callable[[str], None], url: str | None = None) -> None:
        self._database = database
        self._wake = wake
        self._url = database.url.render_as_string(hide_password=False) if url is None else url
        self.is_pushed = False

    async def listen_forever(self) -> None:
        """Listens, and connects again when the connection is lost."""
        attempt = 0
        while self._url:
            with suppress(psycopg_errors(), OSError):
                await self._listen()
                attempt = 0
            self.is_pushed = False
            self._wake(STARTED)
            await asyncio.sleep(outage_pause(attempt))
            attempt += 1

    async def _listen(self) -> None:
        """Listens until the connection is lost, or until the notification of this method itself did not arrive."""
        import psycopg

        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True, **_CONNECT_ARGUMENTS) as db:
            await db.execute(f"LISTEN {QUEUE_CHANNEL}".encode())
            await asyncio.to_thread(self._notify_workers)
            async for _ in db.notifies(timeout=_SELF_TEST_SECONDS, stop_after=1):
                self.is_pushed = True
            if not self.is_pushed:
                _log.warning(
                    "the database delivers no notifications (a pooler in transaction mode?); this worker polls once a"
                    " second; OUTRIDER_LISTEN_URL can name the server itself"
                )
                self._url = ""
                return
            self._wake(STARTED)
            await self._forward_notifications(db.pgconn)

    async def _forward_notifications(self, connection: Any) -> None:
        """Wakes when the socket of the libpq connection is readable; `Connection.notifies` would wake up ten times a
        second. Raises OperationalError when the connection is lost."""
        loop, readable, socket = asyncio.get_running_loop(), asyncio.Event(), connection.socket
        loop.add_reader(socket, readable.set)
        try:
            while True:
                await readable.wait()
                readable.clear()
                connection.consume_input()
                while (notification := connection.notifies()) is not None:
                    self._wake(notification.extra.decode())
        finally:
            loop.remove_reader(socket)

    def _notify_workers(self) -> None:
        with self._database.engine.begin() as db:
            self._database.notify_workers(db)


class _NothingToChangeError(Exception):
    """Rolls a transaction back before DBOS has changed a workflow."""


def _entry_of(status: WorkflowStatus, *, started: bool) -> dict[str, Any]:
    """Returns the queue entry of a run that version 0.1 submitted."""
    queue = status.queue_name or ""
    is_queued = status.status in ("DELAYED", "ENQUEUED") and not queue.startswith(_WORKER_PREFIX)
    worker = status.executor_id or "" if status.status != "ENQUEUED" else queue.removeprefix(_WORKER_PREFIX)
    created = status.created_at or 0
    return {
        "id": status.workflow_id,
        "state": "queued" if is_queued else "assigned",
        "worker": "" if is_queued else worker,
        "priority": status.priority or 0,
        "created": created,
        "ready": status.delay_until_epoch_ms or created,
        "after_run": queue.removeprefix(DEPENDENT_PREFIX) if queue.startswith(DEPENDENT_PREFIX) else "",
        "attempts": max(status.recovery_attempts or 0, 1) if started else 0,
        "canceled": int(status.status == "CANCELLED"),
    }


def is_unexpected_error(record: logging.LogRecord) -> bool:
    """Filters log records of DBOS: drops the error of a canceled workflow, because cancellation is a requested end."""
    raised = record.exc_info[1] if record.exc_info else None
    return not isinstance(raised, error.DBOSAwaitedWorkflowCancelledError)


def _reject_ascii(connection: Any, _: ConnectionPoolEntry) -> None:
    check_encoding(connection.info.parameter_status("server_encoding"))


def _detect_pooler(connection: Any, record: ConnectionPoolEntry) -> None:
    """Disables prepared statements behind a pooler, such as PgBouncer, which gives each transaction another server
    connection. A pooler reports another process id than the server."""
    if connection.execute("SELECT pg_backend_pid()").fetchone() != (connection.info.backend_pid,):
        connection.prepare_threshold = None
        record.info[_POOLED] = True
    connection.rollback()


def _note_use(_: Any, record: ConnectionPoolEntry) -> None:
    record.info["used"] = monotonic()


def _ping_if_unused(connection: Any, record: ConnectionPoolEntry, _: Any) -> None:
    """Replaces a connection that the server has closed while it was not used. Other lost connections fail once, which
    empties the pool; all callers repeat. A ping before each use would double the transactions of a worker."""
    if monotonic() - record.info.get("used", monotonic()) < _PING_AFTER_SECONDS:
        return
    try:
        connection.execute("SELECT 1")
        connection.rollback()
    except psycopg_errors() as problem:
        raise sql_errors.DisconnectionError(str(problem)) from problem


def psycopg_errors() -> type[Exception]:
    """Returns the base class of the driver's errors; the driver is loaded with the first connection."""
    import psycopg

    return psycopg.Error


def _read_clock(unit: str) -> float:
    """Replaces SQL's `unixepoch('subsec')`, which DBOS calls on Python 3.12 and newer, and which returns NULL before
    SQLite 3.42."""
    if unit != "subsec":
        raise ValueError(f"unixepoch({unit!r}) is not used by DBOS; read another clock")
    return time()


def _encode_exception(value: Any) -> Any:
    """Encodes an exception that ended a workflow as its class name and message. Raises NotImplementedError for other
    types."""
    if isinstance(value, BaseException):
        return {"error": type(value).__name__, "message": str(value)}
    raise NotImplementedError(f"{type(value).__name__} cannot be stored as JSON")
