"""Recovery of runs whose worker died: one worker recovers each run; runs of live workers are not touched."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import sqlalchemy as sa

from outrider.background.database import RunDatabase
from outrider.background.jobs import JobClient, open_job_client
from outrider.background.queue import RunQueue
from outrider.background.records import RunOutcome
from outrider.background.reports import JobReport, OrphanedRunFinder, ReportTable
from outrider.sessions.memory_store import MemoryStore


class CanceledRun:
    """A run that was started by a worker and canceled."""

    def __init__(self, database: RunDatabase, jobs: JobClient, run_id: str) -> None:
        self.database = database
        self.jobs = jobs
        self.run_id = run_id
        self.client = database.open_client()
        self.orphans = OrphanedRunFinder(database, self.client)

    def started_by(self, worker: str | None) -> None:
        with self.database.engine.begin() as db:
            statement = "UPDATE outrider_entries SET state = 'assigned', attempts = 1, canceled = 1, worker = :worker"
            db.execute(sa.text(statement), {"worker": worker or ""})

    def recovered_by(self, by: str, *, living: tuple[str, ...] = (), carried: tuple[str, ...] = ()) -> list[str]:
        return [one.run_id for one in self.orphans.claim_orphans(by, living, carried)]


@pytest.fixture
async def left(tmp_path: Path) -> AsyncIterator[CanceledRun]:
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with open_job_client(database, MemoryStore()) as jobs:
        run = await jobs.submit_run("look")
        await jobs.cancel_run(run.id)
        canceled = CanceledRun(database, jobs, run.id)
        yield canceled
        canceled.client.destroy()
    database.close()


async def test_an_abandoned_run_that_no_worker_had_started_needs_no_end(left: CanceledRun):
    assert [left.recovered_by("ann"), left.recovered_by("ann")] == [[], []]
    assert not await left.jobs.needs_cleanup(left.run_id)


@pytest.mark.parametrize("worker", [None, "dead", "ann"])
async def test_an_abandoned_run_is_recovered_when_it_is_found_a_second_time(left: CanceledRun, worker: str | None):
    left.started_by(worker)
    assert await left.jobs.needs_cleanup(left.run_id)
    assert [left.recovered_by("ann"), left.recovered_by("ann")] == [[], [left.run_id]]


async def test_a_run_of_a_live_worker_is_not_recovered(left: CanceledRun):
    left.started_by("bob")
    assert [left.recovered_by("ann", living=("bob",)) for _ in range(3)] == [[], [], []]
    assert [left.recovered_by("ann"), left.recovered_by("ann")] == [[], [left.run_id]], "once that one is gone"


async def test_a_running_run_is_not_recovered(left: CanceledRun):
    left.started_by("ann")
    assert [left.recovered_by("ann", carried=(left.run_id,)) for _ in range(3)] == [[], [], []]


async def test_of_two_workers_one_takes_it(left: CanceledRun):
    left.started_by("dead")
    other = CanceledRun(left.database, left.jobs, left.run_id)
    assert [left.recovered_by("ann", living=("bob",)), other.recovered_by("bob", living=("ann",))] == [[], []]
    assert left.recovered_by("ann", living=("bob",)) == [left.run_id]
    assert [other.recovered_by("bob", living=("ann",)) for _ in range(3)] == [[], [], []]


async def test_a_run_that_continues_meanwhile_is_not_recovered(left: CanceledRun):
    left.started_by("dead")
    left.recovered_by("ann")
    await left.jobs.retry_run(left.run_id)
    assert left.recovered_by("ann") == []


async def test_an_abandoned_run_with_a_report_has_ended(left: CanceledRun):
    left.started_by("dead")
    assert await left.jobs.has_work()
    ReportTable(left.database).store_report(left.run_id, JobReport(outcome=RunOutcome(reason="aborted")))
    assert RunQueue(left.database).release_run(left.run_id, "dead")
    assert [left.recovered_by("ann"), left.recovered_by("ann")] == [[], []]
    assert not await left.jobs.has_work()
