"""A run that has ended is queued again once, also if processes die or are late meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import msgspec
import sqlalchemy as sa
from dbos import DBOSClient
from sqlalchemy import event

from outrider import Engine, Tool
from outrider.background.database import SCHEMA, RunDatabase
from outrider.background.jobs import JobClient, open_job_client
from outrider.background.queue import QueueEntry, RunQueue
from outrider.background.records import RUN_QUEUE_NAME, QueuePlacement, Run, RunOutcome
from outrider.background.reports import JobReport, OrphanedRunFinder, ReportTable
from outrider.background.retries import RunRetries
from outrider.background.worker import Worker
from outrider.config.file import BackgroundTable
from outrider.errors import OutriderError, OverloadedError
from outrider.providers.scripted import call
from outrider.sessions.memory_store import MemoryStore
from outrider.types.parts import ToolResultPart
from outrider.types.request import Request
from tests.fixtures.postgres import ON_POSTGRES, fresh_database, postgres_url
from tests.scenario.scripted_runs import agent, scripted

__all__ = ["postgres_url"]  # a fixture

FAILED = JobReport(outcome=RunOutcome(reason="error"))
SECONDS = 60


class Ended:
    """A run that the worker "ann" has started once, and released."""

    def __init__(self, database: RunDatabase, jobs: JobClient, client: DBOSClient, run_id: str) -> None:
        self.database = database
        self.url = database.url.render_as_string(hide_password=False)
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

    def mark_canceled(self, state: str = "released") -> None:
        self._execute(
            f"UPDATE {self.database.table_prefix}entries SET canceled = 1, state = :state, worker = ''", state=state
        )

    def _execute(self, statement: str, **values: Any) -> None:
        with self.database.engine.begin() as db:
            db.execute(sa.text(statement), values)


@pytest.fixture(params=["sqlite", ON_POSTGRES])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.sqlite'}"
    return fresh_database(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def ended(url: str) -> AsyncIterator[Ended]:
    database = RunDatabase(url)
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
    ended.client.cancel_workflow(ended.run_id)
    run, entry = await read(ended)
    assert ended.reports.store_report(ended.run_id, FAILED, ends_attempt=1)  # while the retry is under way
    assert ended.queue.reopen_run(run, entry)
    assert ended.reports.get_report(ended.run_id) is None
    assert not ended.reports.store_report(ended.run_id, FAILED, ends_attempt=1)
    assert ended.reports.get_report(ended.run_id) is None


async def test_a_late_retry_does_not_queue_a_run_that_has_ended_since(ended: Ended):
    ended.end(1)
    late = await read(ended)
    await ended.jobs.retry_run(ended.run_id)
    assert not ended.queue.reopen_run(*late), "it is in the queue"
    ended.end(2)
    assert not ended.queue.reopen_run(*late)
    assert (ended.state, ended.reports.get_report(ended.run_id)) == ("released", FAILED)


@pytest.mark.parametrize("canceled", [False, True])
async def test_a_run_that_an_earlier_version_has_rewound_and_not_queued_is_queued(ended: Ended, canceled: bool):
    """Its process was killed between the two. A run that was canceled before does not start."""
    ended.end(1)
    ended.jobs.waiting_runs.add_run(ended.run_id)
    if canceled:
        ended.mark_canceled()
    ended.client.rewind_workflow(ended.run_id, queue_name=RUN_QUEUE_NAME)
    await ended.jobs.resume_if_answered(ended.run_id)
    assert (ended.state, ended.reports.get_report(ended.run_id)) == ("queued", None)
    assert ended.jobs.waiting_runs.list_runs() == []
    assert list(ended.queue.dequeue_runs("ann", BackgroundTable(), lambda _: "")) == [ended.run_id] * (not canceled)


async def test_a_late_look_at_a_run_that_was_over_does_not_end_its_next_wait(ended: Ended):
    ended.end(1)
    ended.jobs.waiting_runs.add_run(ended.run_id)  # by a worker that was late
    await ended.jobs.retry_run(ended.run_id)
    ended.wait(2)
    ended.jobs.waiting_runs.remove_ended(ended.run_id, 1)
    assert ended.jobs.waiting_runs.list_runs() == [ended.run_id]
    ended.jobs.waiting_runs.remove_ended(ended.run_id, 2)
    assert ended.jobs.waiting_runs.list_runs() == []


async def test_a_worker_that_has_read_a_canceled_run_late_does_not_end_its_retry(ended: Ended):
    ended.end(1)
    ended.mark_canceled(state="queued")
    finder = OrphanedRunFinder(ended.database, ended.client)
    (orphan,) = finder.list_orphans()
    await ended.jobs.retry_run(ended.run_id)
    assert not ended.queue.claim_run(orphan.entry, "ann")
    assert not ended.queue.finish_cancel(orphan.entry)
    assert (ended.state, (await ended.jobs.get_run(ended.run_id)).state) == ("queued", "queued")


async def test_a_waiting_run_that_was_queued_as_its_outcome_was_stored_can_be_canceled(ended: Ended):
    """A worker that was removed as dead may have stored it a moment later."""
    ended.wait(1)
    assert ended.queue.requeue_pending(ended.run_id, "ann")
    async with asyncio.timeout(SECONDS):
        assert (await ended.jobs.cancel_run(ended.run_id)).state == "canceled"


class OtherProcess:
    """A process that is stopped before its transaction with a number, and continues later or not at all."""

    def __init__(self, number: int, *, dies: bool = False) -> None:
        self._left = number
        self._dies = dies
        self.is_stopped, self._is_continued = threading.Event(), threading.Event()

    def continue_work(self) -> None:
        self._is_continued.set()

    async def wait_for_stop(self, late: asyncio.Future[object]) -> None:
        """Returns when the process is stopped, or has done its work without a stop."""
        async with asyncio.timeout(SECONDS):
            while not (late.done() or self.is_stopped.is_set()):
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def open_jobs(self, url: str, store: MemoryStore) -> AsyncIterator[JobClient]:
        database = RunDatabase(url)
        async with open_job_client(database, store) as jobs:
            event.listen(database.engine, "checkout", self._stop)
            yield jobs
            event.remove(database.engine, "checkout", self._stop)
        database.close()

    def _stop(self, *_: object) -> None:
        self._left -= 1
        if self._left > 0 or (self._left < 0 and not self._dies):
            return
        self.is_stopped.set()
        if self._dies:
            raise KilledError
        assert self._is_continued.wait(SECONDS)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("number", range(1, 6))
async def test_a_late_retry_leaves_the_failures_of_the_current_attempt(ended: Ended, number: int):
    retries, process = RunRetries(ended.database), OtherProcess(number)
    ended.end(1)
    retries.plan_retry(ended.run_id, OverloadedError("busy"))
    async with process.open_jobs(ended.url, MemoryStore()) as jobs:
        late = asyncio.ensure_future(jobs.retry_run(ended.run_id))
        await process.wait_for_stop(late)
        if not late.done():
            with suppress(OutriderError):  # it has retried the run already
                await ended.jobs.retry_run(ended.run_id)
            assert retries.list_runs() == []
            retries.plan_retry(ended.run_id, OverloadedError("busy"))
            ended.end(2)
        process.continue_work()
        with suppress(OutriderError):  # it has changed
            await late
    is_retried = ended.state == "queued"
    assert retries.list_runs() == [ended.run_id] * (not is_retried)


class Cluster:
    """A worker, and other processes of which each does one thing. Runs ask for an approval and then end."""

    def __init__(self, url: str, store: MemoryStore, jobs: JobClient) -> None:
        self.url = url
        self.store = store
        self.jobs = jobs

    async def submit(self, folder: Path) -> str:
        """Returns a run that waits for an answer."""
        run = await self.jobs.submit_run("go", workspace=str(folder), mode="agent")
        assert (await self.jobs.wait_for_run(run.id, poll=0.05)).state == "waiting"
        return run.id

    async def answer(self, run_id: str) -> None:
        for question in await self.jobs.open_approvals(run_id):
            await self.store.answer(question.id, "allowed")

    async def settle(self, run_id: str) -> Run:
        """Returns the run when it is over, its report is stored and no worker looks at it, or when it waits for an
        answer or its start time."""
        async with asyncio.timeout(SECONDS):
            return await self._settle(run_id)

    async def _settle(self, run_id: str) -> Run:
        while True:
            run = await self.jobs.get_run(run_id)
            if run.state == "delayed" or (run.state == "waiting" and await self.jobs.open_approvals(run_id)):
                return run
            if run.is_over and not await self.jobs.needs_cleanup(run_id):
                report = await self.jobs.get_report(run_id)
                assert (report is not None) == (run.attempts > 0)
                if run_id not in self.jobs.waiting_runs.list_runs():
                    return run
            await asyncio.sleep(0.05)

    async def interrupt(
        self,
        work: Callable[[JobClient], Awaitable[object]],
        number: int,
        meanwhile: Callable[[], Awaitable[object]] | None = None,
    ) -> bool:
        """Does the work in a process that is stopped at its transaction with the number. `meanwhile` is what happens
        before it continues; without it, the process is killed. Returns whether it had so many transactions."""
        process = OtherProcess(number, dies=meanwhile is None)
        async with process.open_jobs(self.url, MemoryStore()) as jobs:  # without the question: it knows an answer
            late = asyncio.ensure_future(work(jobs))
            try:
                await process.wait_for_stop(late)
                if meanwhile is not None and process.is_stopped.is_set():
                    await meanwhile()
            finally:
                process.continue_work()
                with suppress(KilledError, OutriderError):  # it may find that the run has changed
                    await late
        return process.is_stopped.is_set()


@pytest.fixture
async def cluster(url: str) -> AsyncIterator[Cluster]:
    def risky() -> str:
        return "ok"

    def respond(request: Request) -> object:
        is_answered = any(isinstance(part, ToolResultPart) for one in request.prompt for part in one.content)
        return "It is done." if is_answered else call("risky", "call-1")

    database, store = RunDatabase(url), MemoryStore()
    async with (
        Engine([agent()], [scripted(respond)], [Tool(risky, policy="ask")], store=store, attended=True) as engine,
        Worker(engine, database, poll=0.05, heartbeat=0.05) as worker,
    ):
        yield Cluster(url, store, worker.job_client)
    database.close()


@pytest.mark.slow
async def test_a_process_that_queues_a_run_late_does_not_change_one_that_has_ended(cluster: Cluster, tmp_path: Path):
    for number in count(1):
        run_id = await cluster.submit(tmp_path)

        async def end_run(run_id: str = run_id) -> None:
            await cluster.answer(run_id)
            assert (await cluster.settle(run_id)).state == "done"

        is_stopped = await cluster.interrupt(lambda jobs: jobs.resume_if_answered(run_id), number, end_run)  # noqa: B023
        await cluster.answer(run_id)
        run = await cluster.settle(run_id)
        assert (run.state, run.attempts, run.outcome and run.outcome.output) == ("done", 2, "It is done."), number
        if not is_stopped:
            break


@pytest.mark.slow
async def test_a_process_that_queues_a_run_late_does_not_start_one_that_was_canceled(cluster: Cluster, tmp_path: Path):
    for number in count(1):
        run_id = await cluster.submit(tmp_path)

        async def cancel_run(run_id: str = run_id) -> None:
            assert (await cluster.jobs.cancel_run(run_id)).state == "canceled"

        if not await cluster.interrupt(lambda jobs: jobs.resume_if_answered(run_id), number, cancel_run):  # noqa: B023
            break
        run = await cluster.settle(run_id)
        assert (run.state, run.attempts) == ("canceled", 1), number


@pytest.mark.slow
async def test_a_process_that_cancels_or_retries_a_run_late_does_not_change_a_retry_that_has_ended(
    cluster: Cluster, tmp_path: Path
):
    for number in count(1):
        canceled, retried = await cluster.submit(tmp_path), await cluster.submit(tmp_path)

        async def retry_run(run_id: str) -> None:
            await cluster.jobs.cancel_run(run_id)
            assert (await cluster.settle(run_id)).state == "canceled"
            await cluster.jobs.retry_run(run_id)
            assert (await cluster.settle(run_id)).state == "done"

        await cluster.jobs.cancel_run(retried)
        are_stopped = [
            await cluster.interrupt(lambda jobs: jobs.cancel_run(canceled), number, lambda: retry_run(canceled)),  # noqa: B023
            await cluster.interrupt(lambda jobs: jobs.retry_run(retried), number, lambda: retry_run(retried)),  # noqa: B023
        ]
        if not any(are_stopped):
            break
        for run_id, is_stopped in zip((canceled, retried), are_stopped, strict=True):
            run = await cluster.settle(run_id)
            # A retry that the late process had completed may have started before it was canceled.
            assert not is_stopped or (run.state, run.attempts in (2, 3)) == ("done", True), number


@pytest.mark.slow
async def test_a_worker_completes_what_a_process_that_dies_has_started(cluster: Cluster, tmp_path: Path):
    for number in count(1):
        resumed, canceled, retried = [await cluster.submit(tmp_path) for _ in range(3)]
        late = QueuePlacement(after=1000)
        unstarted = (await cluster.jobs.submit_run("go", workspace=str(tmp_path), place=late)).id
        await cluster.jobs.cancel_run(retried)
        await cluster.settle(retried)
        has_died = [
            await cluster.interrupt(lambda jobs: jobs.resume_if_answered(resumed), number),  # noqa: B023
            await cluster.interrupt(lambda jobs: jobs.cancel_run(canceled), number),  # noqa: B023
            await cluster.interrupt(lambda jobs: jobs.cancel_run(unstarted), number),  # noqa: B023
            await cluster.interrupt(lambda jobs: jobs.retry_run(retried), number),  # noqa: B023
        ]
        await cluster.answer(resumed)
        assert (await cluster.settle(resumed)).state == "done", number
        assert (await cluster.settle(canceled)).state in ("canceled", "waiting"), number
        assert (await cluster.settle(unstarted)).state in ("canceled", "delayed"), number
        assert (await cluster.settle(retried)).state in ("canceled", "done"), number
        if not any(has_died):
            break
        for run_id in (canceled, unstarted):
            await cluster.jobs.cancel_run(run_id)
            assert (await cluster.settle(run_id)).state == "canceled", number


@pytest.mark.slow
async def test_a_run_that_is_canceled_after_its_worker_has_taken_it_and_before_it_starts_has_a_report(tmp_path: Path):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    database.migrate()
    with database.engine.begin() as db:  # as another process does at this moment
        db.execute(
            sa.text(
                "CREATE TRIGGER cancel AFTER UPDATE OF status ON workflow_status WHEN NEW.status = 'PENDING' BEGIN"
                " UPDATE outrider_entries SET canceled = 1; END"
            )
        )
    async with (
        Engine([agent()], [scripted(["It is done."])], store=MemoryStore()) as engine,
        Worker(engine, database, poll=0.05, heartbeat=0.05) as worker,
    ):
        run = await worker.job_client.submit_run("go", workspace=str(tmp_path))
        async with asyncio.timeout(SECONDS):
            while (report := await worker.job_client.get_report(run.id)) is None:
                await asyncio.sleep(0.05)
            run = await worker.job_client.wait_for_run(run.id, poll=0.05)
    assert (report.outcome.reason, run.state) == ("aborted", "canceled")
    database.close()
