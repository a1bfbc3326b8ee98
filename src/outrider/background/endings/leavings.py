"""Runs that are over, and that nobody ended: canceled while no worker held them, or given up. What stands open in their
sessions is still to be ended, their worktrees to be tidied up, and their ends to be told."""

from collections.abc import Callable, Collection, Sequence

import msgspec
import sqlalchemy as sa

from outrider.background.database import Database
from outrider.background.runs import EndReason


class Leaving(msgspec.Struct, frozen=True):
    """A run that nobody ended, and the worker that had it last, if any."""

    run_id: str
    status: str
    worker: str = ""

    @property
    def reason(self) -> EndReason:
        return "aborted" if self.status == "CANCELLED" else "error"


class Leavings:
    """Every run that somebody has begun gets a report at its end; these have none."""

    def __init__(self, database: Database) -> None:
        self._engine = database.engine
        self._status = database.status_table
        self._prefix = database.prefix
        self._before: set[Leaving] = set()

    def all(self, run_id: str | None = None) -> Sequence[Leaving]:
        statement = f"""
            SELECT line.id, status.status, coalesce(status.executor_id, '') AS worker
            FROM {self._status} AS status JOIN {self._prefix}line AS line ON line.id = status.workflow_uuid
            WHERE status.status IN ('CANCELLED', 'ERROR', 'MAX_RECOVERY_ATTEMPTS_EXCEEDED') AND line.begun IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM {self._prefix}reports AS report WHERE report.id = line.id)"""
        if run_id is not None:
            statement += " AND line.id = :id"
        with self._engine.connect() as db:
            rows = db.execute(sa.text(statement), {} if run_id is None else {"id": run_id}).all()
        return [Leaving(row.id, row.status, row.worker) for row in rows]

    def take(self, me: str, workers: Callable[[], Collection[str]], busy: Collection[str]) -> Sequence[Leaving]:
        """Those that nobody else sees to: one whose worker lives is left to it, since it may be about to do so, and so
        is one that was not there the last time, since somebody may be about to let it go on."""
        found, before = self.all(), self._before
        self._before = set(found)
        if not (left := [one for one in found if one in before and one.run_id not in busy]):
            return ()
        living = set(workers()) - {me}
        return [one for one in left if one.worker not in living and self._claim(one, me)]

    def _claim(self, one: Leaving, me: str) -> bool:
        statement = (
            f"UPDATE {self._status} SET executor_id = :me"
            " WHERE workflow_uuid = :id AND status = :status AND coalesce(executor_id, '') = :worker"
        )
        given = {"me": me, "id": one.run_id, "status": one.status, "worker": one.worker}
        with self._engine.begin() as db:
            return bool(db.execute(sa.text(statement), given).rowcount)
