"""Only the owner of a run can report its end."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import sqlalchemy as sa

from outrider.background.database import RunDatabase
from outrider.background.jobs import open_job_client
from outrider.background.records import RunOutcome
from outrider.background.reports import JobReport, ReportTable, WebhookTarget
from outrider.sessions.memory_store import MemoryStore

WEBHOOK = WebhookTarget("https://example.org/hook", "look")
DONE, FAILED = (JobReport(outcome=RunOutcome(reason=reason)) for reason in ("completed", "error"))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[tuple[RunDatabase, str]]:
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with open_job_client(database, MemoryStore()) as jobs:
        yield database, (await jobs.submit_run("look")).id
    database.close()


def given_to(database: RunDatabase, worker: str, state: str) -> None:
    with database.engine.begin() as db:
        db.execute(
            sa.text("UPDATE outrider_entries SET worker = :worker, state = :state"), {"worker": worker, "state": state}
        )


async def test_a_worker_that_had_a_run_and_lost_it_reports_nothing_of_it(place: tuple[RunDatabase, str]):
    database, run_id = place
    given_to(database, "bob", "assigned")
    paused, other = ReportTable(database, "ann"), ReportTable(database, "bob")
    assert (paused.owns_run(run_id), other.owns_run(run_id)) == (False, True)
    paused.store_report(run_id, FAILED, WEBHOOK)
    assert (other.get_report(run_id), other.outbox.has_pending()) == (None, False)
    other.store_report(run_id, DONE, WEBHOOK)
    paused.store_report(run_id, FAILED, WEBHOOK)
    assert other.get_report(run_id) == DONE
    assert len(other.outbox.claim_due(1 << 62)) == 1


async def test_a_returned_run_has_no_owner(place: tuple[RunDatabase, str]):
    database, run_id = place
    given_to(database, "ann", "queued")
    reports = ReportTable(database, "ann")
    reports.store_report(run_id, DONE)
    assert (reports.owns_run(run_id), reports.get_report(run_id)) == (False, None)
