"""Worker heartbeats: each worker increments a counter in a table, and the others detect counters that stop changing."""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import msgspec
import sqlalchemy as sa

from outrider.background.database import RunDatabase
from outrider.background.queue import RunQueue
from outrider.sessions.leases import current_process, is_process_alive
from outrider.sessions.records import ProcessIdentity
from outrider.types.ids import now_ms

SILENT_SECONDS = 8.0  # a worker that reported nothing for longer cannot reach the database, or has died
UNKNOWN_OWNER = ProcessIdentity("", "", 0)  # for workers without a row


class WorkerHeartbeat(msgspec.Struct, frozen=True):
    """A row of the workers table: the process that the worker runs in and its heartbeat counter."""

    worker_id: str
    owner: ProcessIdentity
    count: int


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reports about itself.

    - `version`: the version of the program.
    - `runs`: the number of runs that it executes.
    - `capacity`: how many runs it may execute at once.
    - `started`: when it started, in Unix milliseconds of its clock.
    - `is_draining`: whether it is being stopped and takes no more runs.
    - `is_pushed`: whether the database notifies it of runs.
    - `waits`: the number of its runs that wait for the database at the moment.
    - `providers`: the provider of each agent.
    """

    version: str = ""
    runs: int = 0
    capacity: int = 0
    started: int = 0
    is_draining: bool = False
    is_pushed: bool = False
    waits: int = 0
    providers: dict[str, str] = {}


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A registered worker as any process sees it. `age` is the time in seconds since its last heartbeat, by the clock
    of the database; None for a worker of version 0.1, which reports nothing."""

    id: str
    owner: ProcessIdentity
    status: WorkerStatus = WorkerStatus()
    age: float | None = None

    @property
    def is_version_0_1(self) -> bool:
        """Whether a living worker of version 0.1 wrote the row, or a newer one that has just started."""
        return self.age is None and is_process_alive(self.owner) is not False

    @property
    def state(self) -> str:
        """How the worker is doing: alive, draining, waiting for database, silent or dead."""
        if is_process_alive(self.owner) is False:
            return "dead"
        if self.age is not None and self.age > SILENT_SECONDS:
            return "silent"
        if self.status.waits:
            return "waiting for database"
        return "draining" if self.status.is_draining else "alive"


class PendingWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a heartbeat finds.

    - `is_known`: False if the worker had no row.
    - `others`: the heartbeats of all other workers.
    - `startable`: whether a run can start.
    - `waiting`: whether a run waits for an answer or a retry.
    - `scheduled`: whether a schedule is due.
    - `awaited`: whether runs wait for the end of another run.
    - `noticed`: whether a webhook notice is due.
    - `started`: whether a worker has started a run that is not released.
    - `unregistered`: whether a run is assigned to a worker without a row.
    """

    is_known: bool
    others: Sequence[WorkerHeartbeat]
    startable: bool = False
    waiting: bool = False
    scheduled: bool = False
    awaited: bool = False
    noticed: bool = False
    started: bool = False
    unregistered: bool = False


class WorkerRegistry:
    """The table of workers. Each worker writes its own row; others delete it when they consider the worker dead."""

    def __init__(self, database: RunDatabase) -> None:
        self._engine = database.engine
        self._database = database
        self._table = f"{database.table_prefix}workers"
        self._status_table = f"{database.table_prefix}worker_status"
        self._clock = (
            "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
            if database.is_postgres
            else "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
        )
        self.owner = current_process()
        self._pending_query = sa.text(self._build_pending_query())

    def record_heartbeat(self) -> bool:
        """Increments this worker's counter. Returns False if there was no row: the worker is new, or another worker
        removed it as dead."""
        with self._engine.begin() as db:
            return self._increment_count(db)

    def beat(self, status: WorkerStatus) -> PendingWork:
        """Increments this worker's counter, stores its status and looks for work. It is one transaction, because
        an idle worker executes nothing else."""
        with self._engine.begin() as db:
            is_known = self._increment_count(db)
            db.execute(
                sa.text(
                    f"INSERT INTO {self._status_table} VALUES (:id, :status, {self._clock})"
                    " ON CONFLICT (id) DO UPDATE SET status = excluded.status, seen = excluded.seen"
                ),
                {"id": self.owner.id, "status": msgspec.json.encode(status).decode()},
            )
            row = db.execute(self._pending_query, {"now": now_ms()}).mappings().one()
            flags = {name: bool(value) for name, value in row.items()}
            return PendingWork(is_known=is_known, others=self._select_others(db), **flags)

    def _build_pending_query(self) -> str:
        prefix = self._database.table_prefix
        started = (
            f"SELECT 1 FROM {self._database.entries_by('entries_started')} WHERE state <> 'released' AND attempts > 0"
        )
        after = self._database.entries_by("entries_after")
        registered = f"SELECT 1 FROM {self._table} AS worker WHERE worker.id = entry.worker"
        return f"""SELECT {RunQueue(self._database).startable_condition()} AS startable,
            EXISTS (SELECT 1 FROM {prefix}waiting) AS waiting,
            EXISTS (SELECT 1 FROM {prefix}schedules WHERE due <= :now) AS scheduled,
            EXISTS (SELECT 1 FROM {after} WHERE after_run <> '' AND state = 'queued') AS awaited,
            EXISTS (SELECT 1 FROM {prefix}notices WHERE due <= :now) AS noticed,
            EXISTS ({started}) AS started,
            EXISTS (SELECT 1 FROM {prefix}entries AS entry WHERE state = 'assigned' AND NOT EXISTS ({registered}))
                AS unregistered"""

    def list_workers(self) -> Sequence[WorkerInfo]:
        """Returns all registered workers, of all machines."""
        statement = (
            f"SELECT worker.id, owner, status, {self._clock} - seen AS age FROM {self._table} AS worker"
            f" LEFT JOIN {self._status_table} AS status ON status.id = worker.id ORDER BY worker.id"
        )
        with self._engine.connect() as db:
            return [_decode_worker(row) for row in db.execute(sa.text(statement))]

    def _increment_count(self, db: sa.Connection) -> bool:
        updated = db.execute(
            sa.text(f"UPDATE {self._table} SET beats = beats + 1 WHERE id = :id"), {"id": self.owner.id}
        )
        if updated.rowcount:
            return True
        owner = msgspec.json.encode(self.owner).decode()
        db.execute(sa.text(f"INSERT INTO {self._table} VALUES (:id, :owner, 0)"), {"id": self.owner.id, "owner": owner})
        return False

    def _select_others(self, db: sa.Connection) -> Sequence[WorkerHeartbeat]:
        rows = db.execute(sa.text(f"SELECT id, owner, beats FROM {self._table} WHERE id <> :id"), {"id": self.owner.id})
        return [
            WorkerHeartbeat(row.id, msgspec.json.decode(row.owner, type=ProcessIdentity), row.beats) for row in rows
        ]

    def other_heartbeats(self) -> Sequence[WorkerHeartbeat]:
        """Returns the rows of all workers but this one."""
        with self._engine.connect() as db:
            return self._select_others(db)

    def worker_ids(self) -> set[str]:
        """Returns the ids of all registered workers."""
        return {self.owner.id, *(heartbeat.worker_id for heartbeat in self.other_heartbeats())}

    def remove_worker(self, worker_id: str) -> None:
        """Deletes the rows of a worker."""
        with self._engine.begin() as db:
            for table in (self._status_table, self._table):
                db.execute(sa.text(f"DELETE FROM {table} WHERE id = :id"), {"id": worker_id})


def _decode_worker(row: sa.Row[Any]) -> WorkerInfo:
    owner = msgspec.json.decode(row.owner, type=ProcessIdentity)
    if row.status is None:
        return WorkerInfo(id=row.id, owner=owner)
    try:
        status = msgspec.json.decode(row.status, type=WorkerStatus)
    except msgspec.MsgspecError:  # written by a newer version
        status = WorkerStatus()
    return WorkerInfo(id=row.id, owner=owner, status=status, age=row.age / 1000)


class FailureDetector:
    """Detects dead workers with its own monotonic clock, because clocks of machines differ and may jump."""

    def __init__(
        self,
        timeout: float,
        *,
        clock: Callable[[], float] = monotonic,
        alive: Callable[[ProcessIdentity], bool | None] = is_process_alive,
    ) -> None:
        self._timeout = timeout
        self._clock = clock
        self._alive = alive
        self._seen: dict[str, tuple[int, float]] = {}
        self._last_look: float | None = None

    def find_dead_workers(self, heartbeats: Sequence[WorkerHeartbeat]) -> list[str]:
        """Returns the workers whose process no longer exists, and those whose counter has not changed for `timeout`
        seconds. Time in which this worker could not read the table does not count: after an outage of the database
        all counters have stopped."""
        now = self._clock()
        if self._last_look is not None and now - self._last_look > self._timeout / 2:
            self._seen = {worker_id: (count, now) for worker_id, (count, _) in self._seen.items()}
        self._last_look = now
        self._seen = {heartbeat.worker_id: self._last_change(heartbeat, now) for heartbeat in heartbeats}
        return [
            heartbeat.worker_id
            for heartbeat in heartbeats
            if self._alive(heartbeat.owner) is False or now - self._seen[heartbeat.worker_id][1] > self._timeout
        ]

    def _last_change(self, heartbeat: WorkerHeartbeat, now: float) -> tuple[int, float]:
        previous = self._seen.get(heartbeat.worker_id)
        return previous if previous is not None and previous[0] == heartbeat.count else (heartbeat.count, now)
