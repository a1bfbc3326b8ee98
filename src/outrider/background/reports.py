"""Reports of ended runs, and the detection of ended runs that have none."""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from dbos import DBOSClient

from outrider.background.database import RunDatabase, sql_text
from outrider.background.queue import IS_ATTEMPT, RELEASE, QueueEntry, RunQueue
from outrider.background.records import EndReason, RunOutcome, derive_run_state
from outrider.background.webhooks import WebhookNotice, WebhookOutbox
from outrider.background.worktrees import WorktreeChanges


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run. `changes` is None for a run without a worktree. The trace is not part of it; it is built
    from the stored session on request."""

    outcome: RunOutcome
    changes: WorktreeChanges | None = None

    @property
    def summary(self) -> str:
        """The answer of the run, or its error."""
        return self.outcome.output or self.outcome.error


class WebhookTarget(msgspec.Struct, frozen=True):
    """The URL that receives the report, and the redacted prompt."""

    url: str
    prompt: str


def build_notice(notice_id: str, target: WebhookTarget, report: JobReport) -> WebhookNotice:
    """Returns the webhook message of a report. It contains no session content besides the prompt and the final
    output."""
    body: dict[str, Any] = {
        "notice": notice_id,
        "run": notice_id.partition(":")[0],
        "state": derive_run_state("SUCCESS", report.outcome),
        "prompt": target.prompt,
        "outcome": report.outcome,
        "stat": report.changes.stat if report.changes else "",
    }
    return WebhookNotice(id=notice_id, url=target.url, body=msgspec.json.encode(body).decode())


class ReportTable:
    """The table of reports: one per run, for its latest end. With `worker_id` it stores only reports of runs that this
    worker owns, because a worker that was paused may have lost its runs to others."""

    def __init__(self, database: RunDatabase, worker_id: str = "") -> None:
        self.outbox = WebhookOutbox(database.engine, f"{database.table_prefix}notices")
        self._engine, self._statements = database.engine, database.statements
        self._is_postgres = database.is_postgres
        self._worker_id = worker_id
        self._entries = f"{database.table_prefix}entries"
        self._table = f"{database.table_prefix}reports"

    def owns_run(self, run_id: str) -> bool:
        """Returns whether the run is assigned to this worker."""
        with self._engine.begin() as db:
            return self._lock_ownership(db, run_id)

    def store_report(
        self, run_id: str, report: JobReport, target: WebhookTarget | None = None, *, ends_attempt: int | None = None
    ) -> bool:
        """Stores the report and its webhook notice in one transaction, and with `ends_attempt` releases the run, if the
        worker's assignment has this number. A second report of the same end adds no notice: several workers may reach
        the same end, and only a retried run reaches another one. Returns False if the run is not the worker's."""
        values = {"id": run_id, "report": msgspec.json.encode(report).decode()}
        notifies = target is not None and bool(target.url)
        if self._is_postgres and self._worker_id and not notifies:  # one statement: no BEGIN and COMMIT
            owned = self._own_statement(ends_attempt)
            statement = f"WITH owned AS ({owned} RETURNING id) {self._put_statement('SELECT id, :report FROM owned')}"
            with self._statements.connect() as db:
                return bool(db.execute(sql_text(statement), {**values, **self._ownership(ends_attempt)}).rowcount)
        with self._engine.begin() as db:
            if not self._lock_ownership(db, run_id, ends_attempt):
                return False
            if target is not None and notifies and not _is_same_end(self._select_report(db, run_id), report):
                notice_id = f"{run_id}:{self.outbox.count_notices(db, run_id) + 1}"
                self.outbox.add_notice(db, build_notice(notice_id, target, report))
            db.execute(sql_text(self._put_statement("VALUES (:id, :report)")), values)
            return True

    def _put_statement(self, source: str) -> str:
        return f"INSERT INTO {self._table} {source} ON CONFLICT (id) DO UPDATE SET report = excluded.report"

    def get_report(self, run_id: str) -> JobReport | None:
        """Returns the report; None before the run has ended."""
        with self._engine.connect() as db:
            return self._select_report(db, run_id)

    def _lock_ownership(self, db: sa.Connection, run_id: str, ends_attempt: int | None = None) -> bool:
        """Locks the entry of the run until the end of the transaction; returns whether the run is the worker's."""
        if not self._worker_id:
            return True
        values = {"id": run_id, **self._ownership(ends_attempt)}
        return bool(db.execute(sql_text(self._own_statement(ends_attempt)), values).rowcount)

    def _own_statement(self, ends_attempt: int | None) -> str:
        """Returns an UPDATE that locks the entry of the worker's run, and releases the run if its attempt ends."""
        if ends_attempt is not None:
            return f"UPDATE {self._entries} SET {RELEASE} WHERE {IS_ATTEMPT}"
        return f"UPDATE {self._entries} SET worker = worker WHERE id = :id AND worker = :worker AND state = 'assigned'"

    def _ownership(self, ends_attempt: int | None) -> dict[str, Any]:
        values = {"worker": self._worker_id}
        return values if ends_attempt is None else {**values, "attempt": ends_attempt}

    def _select_report(self, db: sa.Connection, run_id: str) -> JobReport | None:
        encoded = db.execute(sql_text(f"SELECT report FROM {self._table} WHERE id = :id"), {"id": run_id}).scalar()
        return None if encoded is None else msgspec.json.decode(encoded, type=JobReport)


def _is_same_end(previous: JobReport | None, report: JobReport) -> bool:
    return previous is not None and (previous.outcome.reason, previous.outcome.steps) == (
        report.outcome.reason,
        report.outcome.steps,
    )


class OrphanedRun(msgspec.Struct, frozen=True):
    """A run that ended without a report: its queue entry, and the status of its workflow."""

    entry: QueueEntry
    status: str

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.entry.id

    @property
    def reason(self) -> EndReason:
        """Why the run ended."""
        return "aborted" if self.status == "CANCELLED" else "error"


_ACTIVE = ("DELAYED", "ENQUEUED", "PENDING")  # statuses of workflows that have not ended


class OrphanedRunFinder:
    """Finds runs that were started and are over, but have no report because their worker died or lost them: their
    queue entry is not released, and their workflow has ended."""

    def __init__(self, database: RunDatabase, client: DBOSClient) -> None:
        self._queue = RunQueue(database)
        self._client = client
        self._seen_last_time: set[OrphanedRun] = set()

    def list_orphans(self, run_id: str | None = None, *, alive: Collection[str] = ()) -> Sequence[OrphanedRun]:
        """Returns the orphaned runs, without those of workers that are `alive`."""
        return _select_ended(self._list_unreleased(run_id, alive=alive))

    def _list_unreleased(
        self, run_id: str | None = None, *, alive: Collection[str]
    ) -> Sequence[tuple[QueueEntry, str]]:
        """Returns the entries of started runs that are not released, with the statuses of their workflows."""
        entries = {entry.id: entry for entry in self._queue.list_unreleased(run_id) if entry.worker not in alive}
        if not entries:
            return ()
        workflows = self._client.list_workflows(workflow_ids=list(entries), load_input=False, load_output=False)
        return [(entries[status.workflow_id], status.status) for status in workflows]

    def claim_orphans(
        self, worker_id: str, live_workers: Collection[str], active_runs: Collection[str]
    ) -> Sequence[OrphanedRun]:
        """Claims the orphaned runs for this worker. It skips runs of `others`, workers that are alive and may be about
        to store the report, and runs that were not orphaned at the last call, which may be about to be retried. It
        cancels the workflows of canceled runs in the queue if the process that canceled them has not."""
        unreleased, before = self._list_unreleased(alive=live_workers), self._seen_last_time
        for entry, status in unreleased:
            if entry.canceled and entry.state == "queued" and status in _ACTIVE:
                self._queue.finish_cancel(entry)
        ended = _select_ended(unreleased)
        self._seen_last_time = set(ended)
        orphans = [orphan for orphan in ended if orphan in before and orphan.run_id not in active_runs]
        claimed = [orphan for orphan in orphans if self._queue.claim_run(orphan.entry, worker_id)]
        for orphan in claimed:
            if orphan.status == "SUCCESS":  # the report was stored before the workflow ended
                self._queue.release_run(orphan.run_id, worker_id)
        return [orphan for orphan in claimed if orphan.status != "SUCCESS"]


def _select_ended(unreleased: Sequence[tuple[QueueEntry, str]]) -> Sequence[OrphanedRun]:
    return [OrphanedRun(entry, status) for entry, status in unreleased if status not in _ACTIVE]
