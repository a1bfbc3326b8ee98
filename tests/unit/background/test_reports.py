"""Of what workers say about the end of a run, only the word of the one whose run it is counts."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import sqlalchemy as sa

from outrider.background.database import Database
from outrider.background.jobs import open_jobs
from outrider.background.records import Outcome
from outrider.background.reports import Report, Reports, Told
from outrider.sessions.memory_store import MemoryStore

TOLD = Told("https://example.org/hook", "look")
DONE, FAILED = (Report(outcome=Outcome(reason=reason)) for reason in ("completed", "error"))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[tuple[Database, str]]:
    database = Database(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with open_jobs(database, MemoryStore()) as jobs:
        yield database, (await jobs.submit("look")).id
    database.close()


def given_to(database: Database, worker: str, status: str) -> None:
    with database.engine.begin() as db:
        given = {"worker": worker, "status": status}
        db.execute(sa.text("UPDATE workflow_status SET executor_id = :worker, status = :status"), given)


@pytest.mark.parametrize("status", ["PENDING", "CANCELLED"])
async def test_a_worker_that_had_a_run_and_lost_it_reports_nothing_of_it(place: tuple[Database, str], status: str):
    database, run_id = place
    given_to(database, "bob", status)
    paused, other = Reports(database, "ann"), Reports(database, "bob")
    assert (paused.is_ours(run_id), other.is_ours(run_id)) == (False, True)
    paused.keep(run_id, FAILED, TOLD)
    assert (other.of(run_id), other.notices.are_left()) == (None, False)
    other.keep(run_id, DONE, TOLD)
    paused.keep(run_id, FAILED, TOLD)
    assert other.of(run_id) == DONE
    assert len(other.notices.claim(1 << 62)) == 1


async def test_a_run_that_was_given_back_is_nobody_s(place: tuple[Database, str]):
    database, run_id = place
    given_to(database, "ann", "ENQUEUED")
    reports = Reports(database, "ann")
    reports.keep(run_id, DONE)
    assert (reports.is_ours(run_id), reports.of(run_id)) == (False, None)
