"""What came of a run: its last words, what it changed, and what it cost; kept until the run is deleted."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from outrider.background.database import Database
from outrider.background.records import EndReason, Outcome, state_of
from outrider.background.webhooks import Notice, Notices
from outrider.background.worktrees import Changes


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`changes` is None for a run that had no worktree. The trace is made from the session when somebody asks."""

    outcome: Outcome
    changes: Changes | None = None

    @property
    def summary(self) -> str:
        return self.outcome.output or self.outcome.error


class Told(msgspec.Struct, frozen=True):
    """Who wants to know of a run's end, and of which prompt."""

    url: str
    prompt: str


def notice_of(notice_id: str, told: Told, report: Report) -> Notice:
    """It holds what a person would be told, and nothing of the session besides."""
    body: dict[str, Any] = {
        "notice": notice_id,
        "run": notice_id.partition(":")[0],
        "state": state_of("SUCCESS", report.outcome),
        "prompt": told.prompt,
        "outcome": report.outcome,
        "stat": report.changes.stat if report.changes else "",
    }
    return Notice(id=notice_id, url=told.url, body=msgspec.json.encode(body).decode())


class Reports:
    """A table of them, one for each run: that of its last end, unless it goes on after it. With `worker_id` only those
    of this worker's own runs are kept: one that was paused may have been given up, and its runs given to others."""

    def __init__(self, database: Database, worker_id: str = "") -> None:
        self.notices = Notices(database)
        self._engine = database.engine
        self._worker_id = worker_id
        self._status = database.status_table
        self._table = f"{database.prefix}reports"

    def is_ours(self, run_id: str) -> bool:
        with self._engine.begin() as db:
            return self._hold(db, run_id)

    def keep(self, run_id: str, report: Report, told: Told | None = None) -> None:
        """Together with what others are to be told of it, unless they were: several workers may come to the same end,
        and only a run that goes on comes to another."""
        with self._engine.begin() as db:
            if not self._hold(db, run_id):
                return
            if told is not None and told.url and not _is_same(self._of(db, run_id), report):
                notice_id = f"{run_id}:{self.notices.count(db, run_id) + 1}"
                self.notices.keep(db, notice_of(notice_id, told, report))
            db.execute(
                sa.text(
                    f"INSERT INTO {self._table} VALUES (:id, :report) "
                    "ON CONFLICT (id) DO UPDATE SET report = excluded.report"
                ),
                {"id": run_id, "report": msgspec.json.encode(report).decode()},
            )

    def of(self, run_id: str) -> Report | None:
        with self._engine.connect() as db:
            return self._of(db, run_id)

    def withdraw(self, run_id: str) -> None:
        """The run goes on: what was its end is none, and it will have another, even if that is like this one."""
        with self._engine.begin() as db:
            db.execute(sa.text(f"DELETE FROM {self._table} WHERE id = :id"), {"id": run_id})

    def _hold(self, db: sa.Connection, run_id: str) -> bool:
        """Whether the run is the worker's, and stays so until the end of the transaction."""
        if not self._worker_id:
            return True
        statement = (
            f"UPDATE {self._status} SET executor_id = executor_id"
            " WHERE workflow_uuid = :id AND executor_id = :worker AND status NOT IN ('ENQUEUED', 'DELAYED')"
        )
        return bool(db.execute(sa.text(statement), {"id": run_id, "worker": self._worker_id}).rowcount)

    def _of(self, db: sa.Connection, run_id: str) -> Report | None:
        found = db.execute(sa.text(f"SELECT report FROM {self._table} WHERE id = :id"), {"id": run_id}).scalar()
        return None if found is None else msgspec.json.decode(found, type=Report)


def _is_same(known: Report | None, report: Report) -> bool:
    return known is not None and (known.outcome.reason, known.outcome.steps) == (
        report.outcome.reason,
        report.outcome.steps,
    )


class Leaving(msgspec.Struct, frozen=True):
    """A run that nobody ended, and the worker that had it last, if any."""

    run_id: str
    status: str
    worker: str = ""

    @property
    def reason(self) -> EndReason:
        return "aborted" if self.status == "CANCELLED" else "error"


class OrphanedRuns:
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
