"""What a worker costs and how it is stopped: notifications, an idle worker, drain, lost assignments, old databases."""

import asyncio
import errno
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import sqlalchemy as sa

from outrider import Engine, Tool
from outrider.background.database import RunDatabase, worker_queue
from outrider.background.executor import RunExecutor
from outrider.background.heartbeat import WorkerRegistry
from outrider.background.jobs import QueuePlacement, open_job_client
from outrider.background.queue import RunQueue
from outrider.background.records import JobSpec, RunFilter
from outrider.background.reports import ReportTable
from outrider.background.worker import Worker
from outrider.background.worktrees import RunWorkspace
from outrider.config.file import BackgroundTable
from outrider.errors import ConfigurationError, StorageFullError
from outrider.sessions.memory_store import MemoryStore
from outrider.types.parts import ToolPart, ToolResultPart
from outrider.types.request import Request
from tests.fixtures.postgres import fresh_database, postgres_url
from tests.scenario.scripted_runs import agent, call, scripted

__all__ = ["postgres_url"]
pytestmark = pytest.mark.slow  # real workers and Postgres

SECONDS = 60


@asynccontextmanager
async def working(url: str, **options: Any) -> AsyncIterator[Worker]:
    database = RunDatabase(url)
    async with (
        Engine([agent()], [scripted(["It is done."] * 9)], store=MemoryStore()) as engine,
        Worker(engine, database, **options) as worker,
        asyncio.timeout(SECONDS),
    ):
        yield worker
    database.close()


async def done_after(worker: Worker, folder: Path) -> float:
    start = time.monotonic()
    run = await worker.job_client.submit_run("go", workspace=str(folder))
    assert (await worker.job_client.wait_for_run(run.id, poll=0.05)).state == "done"
    return time.monotonic() - start


@pytest.mark.parametrize("state", ["assigned", "released"])
async def test_a_run_that_dbos_dequeued_and_lost_is_executed(state: str, tmp_path: Path):
    """Simulates a connection that was lost when DBOS had taken the workflow, or had stopped to retry storing its
    outcome."""
    async with working(url := f"sqlite:///{tmp_path / 'runs.sqlite'}", heartbeat=0.05) as worker:
        await done_after(worker, tmp_path)
        run = await worker.job_client.submit_run("go", workspace=str(tmp_path), place=QueuePlacement(after=1000))
        database = RunDatabase(url)
        with database.engine.begin() as db:
            values = {"id": run.id, "state": state, "worker": worker.id, "queue": worker_queue(worker.id)}
            entry = "state = :state, worker = :worker, attempts = 1, held = 0, ready = 0"
            db.execute(sa.text(f"UPDATE outrider_entries SET {entry} WHERE id = :id"), values)
            columns = "status = 'PENDING', executor_id = :worker, owner_xid = 'lost', queue_name = :queue"
            db.execute(sa.text(f"UPDATE workflow_status SET {columns} WHERE workflow_uuid = :id"), values)
        database.close()
        assert (await worker.job_client.wait_for_run(run.id, poll=0.05)).state == "done"


async def test_a_waiting_run_is_continued_also_if_another_one_cannot_be(tmp_path: Path):
    def step() -> str:
        return "done"

    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with (
        Engine([agent()], [scripted(answer)], [Tool(step, policy="ask")], store=MemoryStore()) as engine,
        Worker(engine, database, poll=0.05, heartbeat=0.05) as worker,
        asyncio.timeout(SECONDS),
    ):
        jobs = worker.job_client
        jobs.waiting_runs.add_run("0")
        run = await jobs.submit_run("go", workspace=str(tmp_path), mode="agent")
        while not (found := await jobs.get_run(run.id)).is_over:
            for question in await jobs.open_approvals(run.id) if found.state == "waiting" else ():
                await engine.answer(question.id, allow=True)  # the worker finds the answer with a heartbeat
            await asyncio.sleep(0.05)
    database.close()


class SmallDisk(RunWorkspace):
    """A workspace on a disk that is full at first; what is raised depends on who notices it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.problems: list[Exception] = [
            OSError(errno.ENOSPC, "No space left on device"),
            ConfigurationError("cannot create a worktree for this run: fatal: No space left on device"),
            StorageFullError("the disk is full"),
        ]

    async def prepare_workspace(self, run_id: str, job: JobSpec) -> str:
        if self.problems:
            raise self.problems.pop()
        return await super().prepare_workspace(run_id, job)


async def test_a_full_disk_is_a_wait_and_not_the_end_of_a_run(tmp_path: Path):
    database, workspace = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}"), SmallDisk(store := MemoryStore())
    async with (
        asyncio.timeout(SECONDS),
        Engine([agent()], [scripted(["It is done."])], store=store) as engine,
        open_job_client(database, store) as jobs,
    ):
        run = await jobs.submit_run("go", workspace=str(tmp_path))
        executor = RunExecutor(engine, workspace, ReportTable(database), full_disk_seconds=0.05)
        outcome = await executor.execute_run(run.id, await jobs.get_job(run.id))
    assert (outcome.reason, outcome.output, workspace.problems) == ("completed", "It is done.", [])
    database.close()


async def until_pushed(worker: Worker) -> None:
    while not worker.status.is_pushed:
        await asyncio.sleep(0.02)


async def test_a_notification_starts_a_run_long_before_the_next_heartbeat(tmp_path: Path, postgres_url: str):
    async with working(fresh_database(postgres_url), heartbeat=40, dead_after=100) as worker:
        await until_pushed(worker)
        assert await done_after(worker, tmp_path) < 25


async def test_without_notifications_runs_start_with_the_next_heartbeat(tmp_path: Path, postgres_url: str):
    """Simulates a pooler in transaction mode: the listening connection gets no notifications of this database."""
    other = fresh_database(postgres_url)
    async with working(fresh_database(postgres_url), heartbeat=0.5, listen_url=other) as worker:
        await done_after(worker, tmp_path)
        assert not worker.status.is_pushed


@pytest.mark.slow
async def test_an_idle_worker_makes_few_transactions_on_few_connections(tmp_path: Path, postgres_url: str):
    url = fresh_database(postgres_url)
    observer = sa.create_engine(sa.make_url(postgres_url).set(drivername="postgresql+psycopg"))
    name = sa.make_url(url).database

    def read(column: str, table: str) -> int:
        with observer.connect() as db:
            return db.execute(
                sa.text(f"SELECT {column} FROM {table} WHERE datname = :name"), {"name": name}
            ).scalar_one()

    async with working(url) as worker:
        await until_pushed(worker)
        await done_after(worker, tmp_path)
        while worker.runtime.is_running:
            await asyncio.sleep(0.1)
        await asyncio.sleep(11)  # the server adds up its statistics late
        before = await asyncio.to_thread(read, "xact_commit + xact_rollback", "pg_stat_database")
        await asyncio.sleep(10)
        after = await asyncio.to_thread(read, "xact_commit + xact_rollback", "pg_stat_database")
        connections = await asyncio.to_thread(read, "count(*)", "pg_stat_activity")
        assert (after - before) / 10 <= 5
        assert connections <= 4, "the session store of this test has none"
        await done_after(worker, tmp_path)
    observer.dispose()


def answer(request: Request) -> Any:
    given = sum(isinstance(part, ToolResultPart) for message in request.prompt for part in message.content)
    return call("step", f"c{given}") if given < 3 else "done"


async def test_a_stopped_worker_lets_its_call_end_and_another_one_continues_without_an_interrupted_call(tmp_path: Path):
    database, store, started = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}"), MemoryStore(), asyncio.Event()
    ended = list[float]()

    async def step() -> str:
        started.set()
        await asyncio.sleep(0.4)
        ended.append(time.monotonic())
        return "stepped"

    async with asyncio.timeout(SECONDS), Engine([agent()], [scripted(answer)], [Tool(step)], store=store) as engine:
        async with Worker(engine, database, poll=0.05, heartbeat=0.1, grace=20) as worker:
            run = await worker.job_client.submit_run("go", workspace=str(tmp_path))
            await started.wait()
            start = time.monotonic()
        assert (len(ended), time.monotonic() - start < 15) == (1, True)
        async with Worker(engine, database, poll=0.05, heartbeat=0.1) as worker:
            assert (await worker.job_client.wait_for_run(run.id, poll=0.05)).state == "done"
    messages = (await store.load(run.id)).messages
    states = [part.state.status for message in messages for part in message.get_parts_by_type(ToolPart)]
    assert states == ["completed"] * 3
    database.close()


@asynccontextmanager
async def busy_worker(database: RunDatabase, store: MemoryStore, folder: Path, **options: Any) -> AsyncIterator[Worker]:
    """A worker that executes two runs, whose calls do not end."""
    started = asyncio.Semaphore(0)

    async def step() -> None:
        started.release()
        await asyncio.Event().wait()

    async with (
        asyncio.timeout(SECONDS),
        Engine([agent()], [scripted(answer)], [Tool(step)], store=store) as engine,
        Worker(engine, database, poll=0.05, heartbeat=0.1, **options) as worker,
    ):
        for _ in range(2):
            await worker.job_client.submit_run("go", workspace=str(folder))
            await started.acquire()
        yield worker
    assert not worker.runtime.is_running


class BrokenDisk(RunWorkspace):
    """A workspace whose files cannot be read."""

    async def save_snapshot(self, run_id: str, *, force: bool = False) -> None:
        if force:  # the run is released
            raise OSError(errno.EIO, f"the disk is broken: {run_id}")


async def test_a_worker_is_stopped_and_removed_although_the_files_of_its_runs_cannot_be_stored(tmp_path: Path):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    store = MemoryStore()
    async with busy_worker(database, store, tmp_path, workspace=BrokenDisk(store)) as worker:
        assert worker.status.runs == 2
    assert WorkerRegistry(database).other_heartbeats() == []
    async with open_job_client(database, store) as jobs:
        assert [run.state for run in await jobs.list_runs()] == ["queued"] * 2
    database.close()


async def test_a_worker_whose_drain_is_cancelled_is_stopped_and_removed(tmp_path: Path):
    database, is_busy = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}"), asyncio.Event()
    workers: list[Worker] = []

    async def work() -> None:
        async with busy_worker(database, MemoryStore(), tmp_path, grace=SECONDS) as worker:
            workers.append(worker)
            is_busy.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await is_busy.wait()
    task.cancel()
    while not workers[0].status.is_draining:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert (workers[0].runtime.is_running, WorkerRegistry(database).other_heartbeats()) == (False, [])
    database.close()


async def test_an_execution_that_lost_its_run_does_not_release_the_next_one_of_the_same_worker(tmp_path: Path):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with open_job_client(database, MemoryStore()) as jobs:
        run = await jobs.submit_run("go")
        queue, limits = RunQueue(database), BackgroundTable()
        assert list(queue.dequeue_runs("w", limits, str)) == [run.id]
        assert queue.requeue_run(run.id, "w")
        assert list(queue.dequeue_runs("w", limits, str)) == [run.id]
        assert not queue.release_run(run.id, "w", 1)
        assert queue.release_run(run.id, "w", 2)
    database.close()


async def test_the_file_of_runs_is_private(tmp_path: Path):
    for name in ("new", "old"):
        path = tmp_path / f"{name}.sqlite"
        if name == "old":
            path.touch(0o644)
        database = RunDatabase(f"sqlite:///{path}")
        await asyncio.to_thread(database.migrate)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        database.close()


def test_opening_the_file_of_runs_again_keeps_the_locks_of_open_connections(tmp_path: Path):
    path = tmp_path / "runs.sqlite"
    database, again = RunDatabase(f"sqlite:///{path}"), RunDatabase(f"sqlite:///{path}")
    database.migrate()
    with database.engine.connect() as db:
        db.execute(sa.text("SELECT count(*) FROM outrider_entries"))
        again.migrate()
        again.close()
        # The last connection of all processes deletes the log when it is closed: without a lock this one would.
        script = f"import sqlite3; db = sqlite3.connect({str(path)!r}); db.execute('SELECT 1 FROM outrider_entries')"
        subprocess.run([sys.executable, "-c", f"{script}; db.close()"], check=True)
        assert Path(f"{path}-wal").exists()
    database.close()


async def test_the_queue_of_an_older_database_is_completed(tmp_path: Path):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    columns = "id, state, worker, priority, created, ready, after_run, attempts, canceled"
    async with open_job_client(database, MemoryStore()) as jobs:
        run = await jobs.submit_run("go", agent="other", place=QueuePlacement(queue="q", user="ann"))
        with database.engine.begin() as db:
            db.execute(sa.text(f"CREATE TABLE old AS SELECT {columns} FROM outrider_entries"))
            db.execute(sa.text("DROP TABLE outrider_entries"))
            db.execute(sa.text("ALTER TABLE old RENAME TO outrider_entries"))
    async with open_job_client(database, MemoryStore()) as jobs:
        with database.engine.begin() as db:
            (row,) = db.execute(sa.text("SELECT queue, owner, agent, held FROM outrider_entries"))
        assert tuple(row) == ("q", "ann", "other", 0)
        assert list(RunQueue(database).dequeue_runs("w", BackgroundTable(), str)) == [run.id]
    database.close()


class ReadRows:
    """Counts the work of statements: instructions of SQLite's virtual machine, or rows read by Postgres."""

    def __init__(self, database: RunDatabase, table: str) -> None:
        self.instructions = 0
        self._database, self._table = database, table
        self._is_file = database.engine.dialect.name == "sqlite"
        sa.event.listen(database.engine, "checkout" if self._is_file else "checkin", self._watch)

    def _watch(self, connection: Any, *_: object) -> None:
        if self._is_file:
            connection.set_progress_handler(self._step, 100)
        elif connection is not None:  # the server publishes the counts of a connection later, unless it is asked
            connection.execute("SELECT pg_stat_force_next_flush()")
            connection.commit()

    def _step(self) -> int:
        self.instructions += 100
        return 0

    def read(self) -> int:
        if self._is_file:
            return self.instructions
        schema, _, name = self._table.rpartition(".")
        counted = "coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)"
        where = f"relname = '{name}'" + (f" AND schemaname = '{schema}'" if schema else "")
        with self._database.engine.connect() as db:
            return db.execute(sa.text(f"SELECT sum({counted}) FROM pg_stat_user_tables WHERE {where}")).scalar_one()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_choosing_and_listing_cost_the_same_in_a_long_queue(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
):
    url = f"sqlite:///{tmp_path / 'runs.sqlite'}"
    database = RunDatabase(fresh_database(request.getfixturevalue("postgres_url")) if kind == "postgres" else url)
    entries = f"{database.table_prefix}entries"

    def fill(first: int, count: int) -> None:
        values = ", ".join(
            f"('{number:09}', 'queued', '', 100, {number}, {number}, '', 0, 0, 'runs', 'u{number % 5}', '', 'p', 0)"
            for number in range(first, first + count)
        )
        columns = "id, state, worker, priority, created, ready, after_run, attempts, canceled, queue, owner, agent"
        with database.engine.begin() as db:
            db.execute(sa.text(f"INSERT INTO {entries} ({columns}, provider, held) VALUES {values}"))
        if kind == "postgres":
            with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
                db.execute(sa.text(f"ANALYZE {entries}"))

    rows = ReadRows(database, entries)

    def choose(queue: RunQueue, first: int) -> int:
        before = rows.read()
        for number in range(first, first + 8):
            assert len(queue.dequeue_runs(f"w{number}", BackgroundTable(), str)) == 4
            queue.list_active(["queued"], "", "", limit=50, offset=0)
        return rows.read() - before

    async with open_job_client(database, MemoryStore()) as jobs:
        queue = RunQueue(database)
        fill(0, 200)
        short = choose(queue, 0)
        for first in range(200, 30_200, 5000):
            fill(first, 5000)
        long = choose(queue, 8)
        assert 0 < long < 3 * short
        assert await jobs.find_runs(RunFilter(states=("queued",)), limit=1) == []
    database.close()


def test_the_clock_of_a_file_has_milliseconds_with_every_version_of_sqlite(tmp_path: Path):
    """DBOS reads it with Python 3.12 and newer; SQLite before 3.42 has no such clock."""
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    with database.engine.connect() as db:
        found = db.execute(sa.text("SELECT unixepoch('subsec')")).scalar_one()
    database.engine.dispose()
    assert abs(found - time.time()) < 60


async def test_runs_are_found_by_any_states_over_several_pages(tmp_path: Path):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with open_job_client(database, MemoryStore()) as jobs:
        runs = [await jobs.submit_run(f"job {number}") for number in range(12)]
        ids = [run.id for run in reversed(runs)]
        canceled = [id for number, id in enumerate(ids) if number % 3 == 0]
        for run_id in canceled:
            await jobs.cancel_run(run_id)

        async def find(*states: str, limit: int | None = None) -> list[str]:
            return [run.id for run in await jobs.find_runs(RunFilter(states=states), limit=limit)]

        assert await find("canceled") == await find("canceled", limit=50) == canceled
        assert await find("canceled", limit=2) == canceled[:2]
        assert await find("queued") == [id for id in ids if id not in canceled]
        assert await find("queued", "canceled") == await find("queued", "canceled", "delayed", limit=20) == ids
        assert await find("queued", "failed", limit=1) == [ids[1]]
        assert await find("failed") == await find("done", "waiting", "running") == []
    database.close()


async def test_a_postgres_database_without_an_encoding_is_refused_with_the_remedy(postgres_url: str):
    from outrider.sessions.postgres.store import PostgresStore

    url = fresh_database(postgres_url, "ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    database = RunDatabase(url)
    try:
        with pytest.raises(ConfigurationError, match="createdb -E UTF8"):
            database.migrate()
    finally:
        database.close()
    with pytest.raises(ConfigurationError, match="createdb -E UTF8"):
        await PostgresStore(url).open()
