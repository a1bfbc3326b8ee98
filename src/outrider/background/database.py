"""The database of the durable engine: one SQLite file on one machine, a Postgres server for many."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from time import sleep
from typing import Any

import msgspec
import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSConfig, Serializer, error
from sqlalchemy import event

from outrider.errors import ConfigurationError

NAME = "outrider"
SCHEMA = "outrider_runs"
QUEUE = "runs"
VERSION = "1"  # of what a workflow's rows mean; a hash of the code would leave old runs behind with every upgrade
_PREPARING = 0x6F757472  # the advisory lock of whoever makes the tables
_TABLES = (
    "CREATE TABLE IF NOT EXISTS {}workers (id TEXT PRIMARY KEY, owner TEXT NOT NULL, beats BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {}waiting (id TEXT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS {}line (id TEXT PRIMARY KEY, queue TEXT NOT NULL, owner TEXT NOT NULL, "
    "agent TEXT NOT NULL, provider TEXT NOT NULL, begun BIGINT)",
    "CREATE INDEX IF NOT EXISTS line_begun ON {}line (begun)",
    "CREATE TABLE IF NOT EXISTS {}turns (queue TEXT, owner TEXT, number BIGINT NOT NULL, PRIMARY KEY (queue, owner))",
    "CREATE TABLE IF NOT EXISTS {}reports (id TEXT PRIMARY KEY, report TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS {}notices (id TEXT PRIMARY KEY, url TEXT NOT NULL, body TEXT NOT NULL, "
    "tries BIGINT NOT NULL, due BIGINT)",
    "CREATE TABLE IF NOT EXISTS {}schedules (id TEXT PRIMARY KEY, schedule TEXT NOT NULL, due BIGINT NOT NULL)",
)


class JsonSerializer(Serializer):
    """Values as JSON. Nothing that is read back can run code, as pickles could."""

    def serialize(self, data: Any) -> str:
        return msgspec.json.encode(data, enc_hook=_as_text).decode()

    def deserialize(self, serialized_data: str) -> Any:
        return msgspec.json.decode(serialized_data)

    def name(self) -> str:
        return "outrider_json"


class Database:
    """`url` is sqlite:///path or postgresql://…; its connections are made when they are needed."""

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url)
        if self.url.get_backend_name() not in ("sqlite", "postgresql"):
            raise ConfigurationError(f"runs are kept in sqlite:///path or postgresql://…, not in {self.url!r}")
        self.shared = self.url.get_backend_name() == "postgresql"
        self.prefix = f"{SCHEMA}." if self.shared else "outrider_"
        self.status_table = f"{SCHEMA}.workflow_status" if self.shared else "workflow_status"
        self.engine = self._engine()

    def prepare(self) -> None:
        """Make the tables, or bring them up to date; several processes may do it at once."""
        with self._alone():
            DBOS.migrate(self.url.render_as_string(hide_password=False), schema=SCHEMA)
            with self.engine.begin() as db:
                for table in _TABLES:
                    db.execute(sa.text(table.format(self.prefix)))

    def client(self) -> DBOSClient:
        return DBOSClient(
            system_database_engine=self.engine,
            dbos_system_schema=SCHEMA,
            serializer=JsonSerializer(),
            application_name=NAME,
        )

    def config(self, worker_id: str) -> DBOSConfig:
        """For the one durable engine that a process may have."""
        return DBOSConfig(
            name=NAME,
            system_database_url=self.url.render_as_string(hide_password=False),
            system_database_engine=self.engine,
            dbos_system_schema=SCHEMA,
            serializer=JsonSerializer(),
            application_version=VERSION,
            executor_id=worker_id,
            run_migrations=False,
            log_level="ERROR",
        )

    def close(self) -> None:
        self.engine.dispose()

    def _engine(self) -> sa.Engine:
        if self.shared:
            return sa.create_engine(self.url.set(drivername="postgresql+psycopg"), pool_size=10, pool_pre_ping=True)
        engine = sa.create_engine(self.url)
        event.listen(engine, "connect", _set_up)
        return engine

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Without a transaction, and without waiting inside of a statement: indexes are built when none is open."""
        if not self.shared:
            yield
            return
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
            while not db.execute(sa.text("SELECT pg_try_advisory_lock(:key)"), {"key": _PREPARING}).scalar():
                sleep(0.2)
            try:
                yield
            finally:
                db.execute(sa.text("SELECT pg_advisory_unlock(:key)"), {"key": _PREPARING})


def give_back(client: DBOSClient, worker_id: str) -> None:
    """Put the runs that a worker has back into their queues, each only if it still has it.

    The public way to resume would also bring back what was canceled a moment ago, and what another worker has by now.
    """
    runs = client._sys_db  # pyright: ignore[reportPrivateUsage]
    for run in runs.get_pending_workflows(worker_id, VERSION):
        runs.reenqueue_for_recovery(run.workflow_id, [worker_id], QUEUE)


def is_unordered(record: logging.LogRecord) -> bool:
    """Of what the durable engine logs: a run that was canceled ends with an error, which is what was wanted."""
    raised = record.exc_info[1] if record.exc_info else None
    return not isinstance(raised, error.DBOSAwaitedWorkflowCancelledError)


def _set_up(connection: Any, _: Any) -> None:
    """Readers beside one writer, who waits for the other instead of failing."""
    connection.isolation_level = "IMMEDIATE"
    for pragma in ("busy_timeout=30000", "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _as_text(value: Any) -> Any:
    """Errors that end a workflow are kept as their words."""
    if isinstance(value, BaseException):
        return {"error": type(value).__name__, "message": str(value)}
    raise NotImplementedError(f"{type(value).__name__} is no value that can be kept")
