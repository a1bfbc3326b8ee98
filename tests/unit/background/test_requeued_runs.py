"""A run that has ended is queued again once, also if processes die or are late meanwhile."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import msgspec
import sqlalchemy as sa
from dbos import DBOSClient, error

from outrider.background.database import SCHEMA, RunDatabase
from outrider.background.jobs import JobClient, open_job_client
from outrider.background.queue import QueueEntry, RunQueue
from outrider.background.records import RUN_QUEUE_NAME, Run, RunOutcome
from outrider.background.reports import JobReport, ReportTable
from outrider.sessions.memory_store import MemoryStore
from tests.fixtures.postgres import ON_POSTGRES, fresh_database, postgres_url

__all__ = ["postgres_url"]  # a fixture

FAILED = JobReport(outcome=RunOutcome(reason="error"))


class Ended:
    """A run that the worker "ann" has started once, and released."""

    def __init__(self, database: RunDatabase, jobs: JobClient, client: DBOSClient, run_id: str) -> None:
        self.database = database
        self.jobs = jobs
        self.client = client
        self.run_id = run_id
        self.queue = RunQueue(database)
        self.reports = ReportTable(database, "ann")

    @property
    def state(self) -> str:
        return self.queue.get_entries([self.run_id])[self.run_id].state

    def assign(self, attempt: int) -> None:
        self._execute(
            f"UPDATE {self.database.table_prefix}entries SET state = 'assigned', worker = 'ann', attempts = :attempt",
            attempt=attempt,
        )

    def end(self, attempt: int) -> None:
        """Ends an attempt with a report. A workflow that was canceled can be rewound, as one that has failed."""
        self.assign(attempt)
        assert self.reports.store_report(self.run_id, FAILED, ends_attempt=attempt)
        self.client.cancel_workflow(self.run_id)

    def wait(self, attempt: int) -> None:
        """Ends an attempt because the run waits for an answer."""
        self.assign(attempt)
        self.jobs.waiting_runs.add_run(self.run_id)
        assert self.queue.release_run(self.run_id, "ann", attempt)
        table = f"{SCHEMA}.workflow_status" if self.database.is_postgres else "workflow_status"
        outcome = msgspec.json.encode(RunOutcome(reason="waiting")).decode()
        self._execute(f"UPDATE {table} SET status = 'SUCCESS', output = :outcome", outcome=outcome)

    def _execute(self, statement: str, **values: Any) -> None:
        with self.database.engine.begin() as db:
            db.execute(sa.text(statement), values)


@pytest.fixture(params=["sqlite", ON_POSTGRES])
async def ended(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Ended]:
    if request.param == "sqlite":
        database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    else:
        database = RunDatabase(fresh_database(request.getfixturevalue("postgres_url")))
    async with open_job_client(database, MemoryStore()) as jobs:
        client = database.open_client()
        yield Ended(database, jobs, client, (await jobs.submit_run("look")).id)
        client.destroy()
    database.close()


async def read(ended: Ended) -> tuple[Run, QueueEntry]:
    """Returns the run and its entry as a process reads them that is late afterwards."""
    entry = ended.queue.get_entries([ended.run_id])[ended.run_id]
    return await ended.jobs.get_run(ended.run_id), entry


async def test_a_retried_run_has_no_report_of_the_worker_that_ended_it_a_moment_ago(ended: Ended):
    ended.assign(1)
    run, entry = await read(ended)
    assert ended.reports.store_report(ended.run_id, FAILED, ends_attempt=1)  # while the retry is under way
    assert ended.queue.reopen_run(run, entry)
    assert ended.reports.get_report(ended.run_id) is None
    assert not ended.reports.store_report(ended.run_id, FAILED, ends_attempt=1)
    assert ended.reports.get_report(ended.run_id) is None


async def test_a_worker_queues_a_run_whose_retry_was_killed_and_deletes_its_report(ended: Ended):
    ended.end(1)
    ended.jobs.waiting_runs.add_run(ended.run_id)
    ended.client.rewind_workflow(ended.run_id, queue_name=RUN_QUEUE_NAME)  # the last thing that the client does
    await ended.jobs.resume_if_answered(ended.run_id)
    assert (ended.state, ended.reports.get_report(ended.run_id)) == ("queued", None)
    assert ended.jobs.waiting_runs.list_runs() == []


async def test_a_late_retry_does_not_queue_a_run_that_has_ended_since(ended: Ended):
    ended.end(1)
    late = await read(ended)
    await ended.jobs.retry_run(ended.run_id)
    assert not ended.queue.reopen_run(*late), "it is in the queue"
    ended.end(2)
    assert not ended.queue.reopen_run(*late)
    assert (ended.state, ended.reports.get_report(ended.run_id)) == ("released", FAILED)


async def test_a_late_worker_does_not_start_a_run_that_was_canceled_since(ended: Ended):
    ended.wait(1)
    late: Any = CanceledByAnotherProcess(ended)
    await JobClient(late, ended.jobs.store, ended.database).resume_if_answered(ended.run_id)
    assert late.was_canceled
    assert (await ended.jobs.get_run(ended.run_id)).state == "canceled"


class OtherProcess:
    """A client of DBOS before whose rewinding of a workflow another process does something."""

    def __init__(self, client: DBOSClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class CanceledByAnotherProcess(OtherProcess):
    def __init__(self, ended: Ended) -> None:
        super().__init__(ended.client)
        self._ended = ended
        self.was_canceled = False

    async def rewind_workflow_async(self, *given: Any, **options: Any) -> None:
        await self._ended.jobs.cancel_run(self._ended.run_id)
        self.was_canceled = True
        await self._ended.client.rewind_workflow_async(*given, **options)


class RewoundByAnotherProcess(OtherProcess):
    async def rewind_workflow_async(self, *_: Any, **__: Any) -> None:
        raise error.DBOSException("only a workflow in a terminal state can be rewound")


async def test_a_run_is_looked_at_until_the_process_that_has_rewound_it_has_queued_it(ended: Ended):
    ended.wait(1)
    client: Any = RewoundByAnotherProcess(ended.client)
    await JobClient(client, ended.jobs.store, ended.database).resume_if_answered(ended.run_id)
    assert ended.jobs.waiting_runs.list_runs() == [ended.run_id]
    await ended.jobs.resume_if_answered(ended.run_id)
    assert (ended.state, ended.jobs.waiting_runs.list_runs()) == ("queued", [])
