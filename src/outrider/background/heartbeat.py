"""Worker heartbeats: each worker increments a counter in a table, and the others detect counters that stop changing."""

from collections.abc import Callable, Sequence
from time import monotonic

import msgspec
import sqlalchemy as sa

from outrider.background.database import RunDatabase
from outrider.sessions.leases import current_process, is_process_alive
from outrider.sessions.records import ProcessIdentity

UNKNOWN_OWNER = ProcessIdentity("", "", 0)  # for workers without a row


class WorkerHeartbeat(msgspec.Struct, frozen=True):
    """A row of the workers table: the process that the worker runs in and its heartbeat counter."""

    worker_id: str
    owner: ProcessIdentity
    count: int


class WorkerRegistry:
    """The table of workers. Each worker writes its own row; others delete it when they consider the worker dead."""

    def __init__(self, database: RunDatabase) -> None:
        self._engine = database.engine
        self._table = f"{database.table_prefix}workers"
        self.owner = current_process()

    def record_heartbeat(self) -> bool:
        """Increments this worker's counter. Returns False if there was no row: the worker is new, or another worker
        removed it as dead."""
        with self._engine.begin() as db:
            updated = db.execute(
                sa.text(f"UPDATE {self._table} SET beats = beats + 1 WHERE id = :id"), {"id": self.owner.id}
            )
            if updated.rowcount:
                return True
            owner = msgspec.json.encode(self.owner).decode()
            db.execute(
                sa.text(f"INSERT INTO {self._table} VALUES (:id, :owner, 0)"), {"id": self.owner.id, "owner": owner}
            )
            return False

    def other_heartbeats(self) -> Sequence[WorkerHeartbeat]:
        with self._engine.connect() as db:
            rows = db.execute(
                sa.text(f"SELECT id, owner, beats FROM {self._table} WHERE id <> :id"), {"id": self.owner.id}
            )
            return [
                WorkerHeartbeat(row.id, msgspec.json.decode(row.owner, type=ProcessIdentity), row.beats) for row in rows
            ]

    def worker_ids(self) -> set[str]:
        return {self.owner.id, *(heartbeat.worker_id for heartbeat in self.other_heartbeats())}

    def remove_worker(self, worker_id: str) -> None:
        with self._engine.begin() as db:
            db.execute(sa.text(f"DELETE FROM {self._table} WHERE id = :id"), {"id": worker_id})


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
        known = self._seen.get(heartbeat.worker_id)
        return known if known is not None and known[0] == heartbeat.count else (heartbeat.count, now)
