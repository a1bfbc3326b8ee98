"""What came of a run: its last words, what it changed, and what it cost; kept until the run is deleted."""

from typing import Any

import msgspec
import sqlalchemy as sa

from outrider.background.database import Database
from outrider.background.endings.notices import Notice, Notices
from outrider.background.runs import Outcome, state_of
from outrider.background.worktrees.worktrees import Changes


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`changes` is None for a run that had no worktree. The trace is made from the session when somebody asks."""

    outcome: Outcome
    changes: Changes | None = None

    @property
    def summary(self) -> str:
        return self.outcome.output or self.outcome.error


def notice_of(run_id: str, url: str, prompt: str, report: Report) -> Notice | None:
    """None if nobody wants to know. It holds what a person would be told, and nothing of the session besides."""
    if not url:
        return None
    outcome = report.outcome
    notice_id = f"{run_id}:{outcome.steps}:{outcome.reason}"
    body: dict[str, Any] = {
        "notice": notice_id,
        "run": run_id,
        "state": state_of("SUCCESS", outcome),
        "prompt": prompt,
        "outcome": outcome,
        "stat": report.changes.stat if report.changes else "",
    }
    return Notice(id=notice_id, url=url, body=msgspec.json.encode(body).decode())


class Reports:
    """A table of them, one for each run: that of its last end."""

    def __init__(self, database: Database) -> None:
        self.notices = Notices(database)
        self._engine = database.engine
        self._table = f"{database.prefix}reports"

    def keep(self, run_id: str, report: Report, notice: Notice | None = None) -> None:
        """Together with what others are to be told of it."""
        with self._engine.begin() as db:
            if notice is not None:
                self.notices.keep(db, notice)
            db.execute(
                sa.text(
                    f"INSERT INTO {self._table} VALUES (:id, :report) "
                    "ON CONFLICT (id) DO UPDATE SET report = excluded.report"
                ),
                {"id": run_id, "report": msgspec.json.encode(report).decode()},
            )

    def of(self, run_id: str) -> Report | None:
        with self._engine.connect() as db:
            found = db.execute(sa.text(f"SELECT report FROM {self._table} WHERE id = :id"), {"id": run_id}).scalar()
        return None if found is None else msgspec.json.decode(found, type=Report)
