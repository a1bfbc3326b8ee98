"""Only the owner of a run can report its end."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import sqlalchemy as sa

from outrider.background.database import RunDatabase
from outrider.background.jobs import open_job_client
from outrider.background.queue import RunQueue
from outrider.background.records import RunOutcome
from outrider.background.reports import JobReport, ReportTable, WebhookTarget
from outrider.sessions.memory_store import MemoryStore
from tests.fixtures.postgres import ON_POSTGRES, fresh_database, postgres_url

__all__ = ["postgres_url"]  # a fixture

WEBHOOK = WebhookTarget("https://example.org/hook", "look")
DONE, FAILED = (JobReport(outcome=RunOutcome(reason=reason)) for reason in ("completed", "error"))


@pytest.fixture(params=["sqlite", ON_POSTGRES])
async def place(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[RunDatabase, str]]:
    if request.param == "sqlite":
        database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    else:
        database = RunDatabase(fresh_database(request.getfixturevalue("postgres_url")))
    async with open_job_client(database, MemoryStore()) as jobs:
        yield database, (await jobs.submit_run("look")).id
    database.close()


def given_to(database: RunDatabase, worker: str, state: str, attempts: int = 1) -> None:
    with database.engine.begin() as db:
        db.execute(
            sa.text(
                f"UPDATE {database.table_prefix}entries SET worker = :worker, state = :state, attempts = :attempts"
            ),
            {"worker": worker, "state": state, "attempts": attempts},
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


async def test_a_report_that_ends_an_attempt_releases_the_run_and_may_be_repeated(place: tuple[RunDatabase, str]):
    database, run_id = place
    given_to(database, "ann", "assigned", attempts=2)
    reports, queue = ReportTable(database, "ann"), RunQueue(database)
    assert not reports.store_report(run_id, FAILED, WEBHOOK, ends_attempt=1), "the first attempt was another assignment"
    assert (reports.get_report(run_id), queue.get_entries([run_id])[run_id].state) == (None, "assigned")
    for _ in range(2):  # the response to the first commit may be lost
        assert reports.store_report(run_id, DONE, WEBHOOK, ends_attempt=2)
        assert (reports.get_report(run_id), queue.get_entries([run_id])[run_id].state) == (DONE, "released")
        assert queue.release_run(run_id, "ann", 2)
    assert len(reports.outbox.claim_due(1 << 62)) == 1
    assert queue.requeue_run(run_id, "ann")
    assert not reports.store_report(run_id, FAILED, WEBHOOK, ends_attempt=2)
    assert not queue.release_run(run_id, "ann", 2)
