"""Runs that nobody ended are found, each by one worker, and those that somebody sees to are left alone."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import sqlalchemy as sa

from outrider.background.database import Database
from outrider.background.jobs import Jobs, open_jobs
from outrider.background.records import Outcome
from outrider.background.reports import OrphanedRuns, Report, Reports
from outrider.sessions.memory_store import MemoryStore


class Left:
    """A run that was begun by a worker and canceled."""

    def __init__(self, database: Database, jobs: Jobs, run_id: str) -> None:
        self.database = database
        self.jobs = jobs
        self.run_id = run_id
        self.leavings = OrphanedRuns(database)

    def begun_by(self, worker: str | None) -> None:
        with self.database.engine.begin() as db:
            db.execute(sa.text("UPDATE outrider_line SET begun = 1"))
            db.execute(sa.text("UPDATE workflow_status SET executor_id = :worker"), {"worker": worker})

    def taken(self, by: str, *, living: tuple[str, ...] = (), carried: tuple[str, ...] = ()) -> list[str]:
        return [one.run_id for one in self.leavings.take(by, lambda: [by, *living], carried)]


@pytest.fixture
async def left(tmp_path: Path) -> AsyncIterator[Left]:
    database = Database(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with open_jobs(database, MemoryStore()) as jobs:
        run = await jobs.submit("look")
        await jobs.cancel(run.id)
        yield Left(database, jobs, run.id)
    database.close()


async def test_one_that_nobody_had_begun_needs_no_end(left: Left):
    assert [left.taken("ann"), left.taken("ann")] == [[], []]
    assert not await left.jobs.is_left_open(left.run_id)


@pytest.mark.parametrize("worker", [None, "dead", "ann"])
async def test_one_is_taken_when_it_is_found_a_second_time(left: Left, worker: str | None):
    left.begun_by(worker)
    assert await left.jobs.is_left_open(left.run_id)
    assert [left.taken("ann"), left.taken("ann")] == [[], [left.run_id]]


async def test_one_whose_worker_lives_is_left_to_it(left: Left):
    left.begun_by("bob")
    assert [left.taken("ann", living=("bob",)) for _ in range(3)] == [[], [], []]
    assert left.taken("ann") == [left.run_id], "once that one is gone"


async def test_one_that_is_being_carried_is_not_taken(left: Left):
    left.begun_by("ann")
    assert [left.taken("ann", carried=(left.run_id,)) for _ in range(3)] == [[], [], []]


async def test_of_two_workers_one_takes_it(left: Left):
    left.begun_by("dead")
    other = Left(left.database, left.jobs, left.run_id)
    assert [left.taken("ann", living=("bob",)), other.taken("bob", living=("ann",))] == [[], []]
    assert left.taken("ann", living=("bob",)) == [left.run_id]
    assert [other.taken("bob", living=("ann",)) for _ in range(3)] == [[], [], []]


async def test_one_that_goes_on_meanwhile_is_not_taken(left: Left):
    left.begun_by("dead")
    left.taken("ann")
    await left.jobs.retry(left.run_id)
    assert left.taken("ann") == []


async def test_one_with_a_report_was_ended(left: Left):
    left.begun_by("dead")
    assert await left.jobs.busy()
    Reports(left.database).keep(left.run_id, Report(outcome=Outcome(reason="aborted")))
    assert [left.taken("ann"), left.taken("ann")] == [[], []]
    assert not await left.jobs.busy()
