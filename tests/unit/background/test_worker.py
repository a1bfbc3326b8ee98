"""A background worker after errors: heartbeats, registration, runs that it lost, and how its runs end."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import sqlalchemy as sa
from dbos import DBOSClient

from outrider import Agent, Engine, Tool
from outrider.background.database import RunDatabase, worker_queue
from outrider.background.heartbeat import WorkerRegistry
from outrider.background.records import JobSpec, RunOutcome, derive_run_state, describe_failure
from outrider.background.worker import Worker
from outrider.background.worktrees import RunWorkspace
from outrider.sessions.memory_store import MemoryStore
from outrider.testing import SimulatedRequest, Simulator
from outrider.testing import call as simulated_call
from tests.scenario.scripted_runs import agent, call, scripted

pytestmark = pytest.mark.slow  # a real worker for each test

SECONDS = 30


async def test_a_worker_that_others_removed_twice_registers_again_and_takes_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The others remove it again while it registers, so its queue is missing when DBOS looks for it."""
    failures = 0

    def fail_at_first() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise AssertionError("the queue is missing from the database")
        register_queue()

    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with (
        Engine([agent()], [scripted(["It is done."] * 2)], store=MemoryStore()) as engine,
        Worker(engine, database, poll=0.05, heartbeat=0.05) as worker,
        asyncio.timeout(SECONDS),
    ):
        register_queue = worker.runtime.register_queue
        monkeypatch.setattr(worker.runtime, "register_queue", fail_at_first)
        run = await worker.job_client.submit_run("go", workspace=str(tmp_path))
        assert (await worker.job_client.wait_for_run(run.id, poll=0.05)).state == "done"
        failures = 2
        worker.remove_worker(worker.id)  # as another one does
        while failures:
            await asyncio.sleep(0.02)
        run = await worker.job_client.submit_run("go", workspace=str(tmp_path))
        assert (await worker.job_client.wait_for_run(run.id, poll=0.05)).state == "done"
    database.close()


class SlowAborts(Engine):
    """An engine that aborts a turn only after `may_continue` is set."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.is_occupied, self.may_continue = asyncio.Event(), asyncio.Event()

    async def abort(self, session_id: str) -> None:
        self.is_occupied.set()
        await self.may_continue.wait()
        await super().abort(session_id)


async def test_an_occupied_worker_is_not_considered_dead(tmp_path: Path):
    database, started = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}"), asyncio.Event()

    async def wait() -> str:
        started.set()
        await asyncio.sleep(60)
        return "waited"

    async with (
        SlowAborts([agent()], [scripted([[call("wait", "c1")]])], [Tool(wait)], store=MemoryStore()) as engine,
        Worker(engine, database, poll=0.05, heartbeat=0.05) as worker,
        asyncio.timeout(SECONDS),
    ):
        run = await worker.job_client.submit_run("go", workspace=str(tmp_path))
        await started.wait()
        await worker.job_client.cancel_run(run.id)
        await engine.is_occupied.wait()
        observer = WorkerRegistry(database)
        (before,) = observer.other_heartbeats()
        while observer.other_heartbeats()[0].count < before.count + 5:
            await asyncio.sleep(0.02)
        engine.may_continue.set()
    database.close()


async def test_dbos_stops_at_once_when_there_are_no_more_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It waits for its threads; one that sleeps for long would delay the next run."""
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    warnings: list[str] = []
    monkeypatch.setattr(logging.getLogger("dbos"), "warning", warnings.append)
    async with (
        Engine([agent()], [scripted(["It is done."])], store=MemoryStore()) as engine,
        Worker(engine, database, poll=0.05, heartbeat=0.05, idle_after=0.2) as worker,
        asyncio.timeout(SECONDS),
    ):
        run = await worker.job_client.submit_run("go", workspace=str(tmp_path))
        assert (await worker.job_client.wait_for_run(run.id, poll=0.05)).state == "done"
        while worker.runtime.is_running:
            await asyncio.sleep(0.05)
    assert not [text for text in warnings if "did not exit within timeout" in text]
    database.close()


@pytest.mark.parametrize("status", ["PENDING", "ENQUEUED"])
@pytest.mark.parametrize("executor", ["dead", "itself"])
async def test_an_ended_run_whose_workflow_a_paused_worker_has_taken_is_done(
    tmp_path: Path, executor: str, status: str
):
    """The paused worker took the workflow after another one had ended the run; then it was killed, or forgot it."""
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with (
        Engine([agent()], [scripted(["It is done."])], store=MemoryStore()) as engine,
        Worker(engine, database, poll=0.05, heartbeat=0.05) as worker,
        asyncio.timeout(SECONDS),
    ):
        run = await worker.job_client.submit_run("go", workspace=str(tmp_path))
        assert (await worker.job_client.wait_for_run(run.id, poll=0.05)).state == "done"
        taken = "UPDATE workflow_status SET status = :status, executor_id = :id, queue_name = :queue, output = NULL"
        executor_id = worker.id if executor == "itself" else executor
        with database.engine.begin() as db:
            db.execute(sa.text("UPDATE outrider_entries SET worker = 'another'"))
            db.execute(sa.text(taken), {"status": status, "id": executor_id, "queue": f"worker:{executor_id}"})
        if executor == "dead":
            worker.remove_worker(executor)
        ended = await worker.job_client.wait_for_run(run.id, poll=0.05)
        assert (ended.state, ended.outcome and ended.outcome.output) == ("done", "It is done.")
    database.close()


class PausedClient:
    """A client of a worker that is paused before its first resume, while another worker gets its run. The other one has
    ended it, if `state` is "released", and has moved the workflow into its own queue last."""

    def __init__(self, database: RunDatabase, client: DBOSClient, state: str) -> None:
        self._database, self._client = database, client
        self._state = state
        self._is_paused = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def resume_workflows(self, run_ids: list[str], **options: Any) -> Any:
        if self._is_paused:
            self._is_paused = False
            statement = "UPDATE outrider_entries SET state = :state, worker = 'another', attempts = 2"
            with self._database.engine.begin() as db:
                db.execute(sa.text(statement), {"state": self._state})
            if self._state == "released":
                options["queue_name"] = worker_queue("another")
        return self._client.resume_workflows(run_ids, **options)


class PausedDatabase(RunDatabase):
    """A database whose clients are paused; `state` is the state of a run that another worker has got."""

    def __init__(self, url: str, state: str) -> None:
        super().__init__(url)
        self.state = state

    def open_client(self) -> Any:
        return PausedClient(self, super().open_client(), self.state)


@asynccontextmanager
async def paused_worker(folder: Path, state: str) -> AsyncIterator[tuple[Worker, RunDatabase]]:
    database = PausedDatabase(f"sqlite:///{folder / 'runs.sqlite'}", state)
    async with (
        Engine([agent()], [scripted(["It is done."])], store=MemoryStore()) as engine,
        Worker(engine, database, poll=0.05, heartbeat=3600) as worker,
        asyncio.timeout(SECONDS),
    ):
        yield worker, database
    database.close()


async def test_a_worker_returns_a_workflow_that_another_one_has_got_meanwhile(tmp_path: Path):
    async with paused_worker(tmp_path, "assigned") as (worker, database):
        await worker.job_client.submit_run("go", workspace=str(tmp_path))
        queue_name = ""
        while queue_name != worker_queue("another"):
            await asyncio.sleep(0.02)
            with database.engine.begin() as db:
                queue_name = db.execute(sa.text("SELECT queue_name FROM workflow_status")).scalar()


async def test_a_run_that_another_worker_has_ended_meanwhile_is_queued_again(tmp_path: Path):
    async with paused_worker(tmp_path, "released") as (worker, _):
        run = await worker.job_client.submit_run("go", workspace=str(tmp_path))
        assert (await worker.job_client.wait_for_run(run.id, poll=0.05)).state == "done"


async def test_no_call_starts_while_the_files_of_a_released_run_are_stored(tmp_path: Path):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    asked, answers, started = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class SlowSnapshots(RunWorkspace):
        async def save_snapshot(self, run_id: str, progress: object = None, *, force: bool = False) -> None:
            if force:
                answers.set()
                with suppress(TimeoutError):
                    await asyncio.wait_for(started.wait(), 0.5)

    def answer(_: SimulatedRequest) -> Any:
        asked.set()
        return [answers, simulated_call("wait", "c1")]

    async def wait() -> str:
        started.set()
        await asyncio.sleep(60)
        return "waited"

    store, writer = MemoryStore(), Agent("writer", "You write.", "claude-opus-4-6", "simulator")
    async with (
        simulating(answer) as simulator,
        Engine([writer], [simulator.provider()], [Tool(wait)], store=store) as engine,
        Worker(engine, database, poll=0.05, heartbeat=0.05, grace=5, workspace=SlowSnapshots(store)) as worker,
        asyncio.timeout(SECONDS),
    ):
        run = await worker.job_client.submit_run("go", workspace=str(tmp_path))
        await asked.wait()
        await worker.drain()
        assert answers.is_set()
        assert not started.is_set()
        calls = [call for message in (await store.load(run.id)).messages for call in message.get_calls()]
        assert calls == []
    database.close()


async def test_the_reason_of_a_failed_run_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "outrider.worker")
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with (
        Engine([agent()], [scripted([])], store=MemoryStore()) as engine,
        Worker(engine, database, poll=0.05, heartbeat=0.05) as worker,
        asyncio.timeout(SECONDS),
    ):
        run = await worker.job_client.submit_run("go", workspace=str(tmp_path))
        ended = await worker.job_client.wait_for_run(run.id, poll=0.05)
        while not worker.metrics.ended_runs:
            await asyncio.sleep(0.01)
    assert ended.state == "failed"
    assert f"failed: {describe_failure(ended.outcome)}" in caplog.text
    database.close()


async def test_an_execution_whose_run_has_moved_is_counted_as_moved(tmp_path: Path):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    started, ends = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        started.set()
        await ends.wait()
        return "waited"

    script = [[call("wait", "c1")], "It is done."]
    async with (
        Engine([agent()], [scripted(script)], [Tool(wait)], store=MemoryStore()) as engine,
        Worker(engine, database, poll=0.05, heartbeat=3600) as worker,
        asyncio.timeout(SECONDS),
    ):
        await worker.job_client.submit_run("go", workspace=str(tmp_path))
        await started.wait()
        with database.engine.begin() as db:
            db.execute(sa.text("UPDATE outrider_entries SET worker = 'another', attempts = 2"))
            db.execute(sa.text("UPDATE workflow_status SET executor_id = 'another'"))
        ends.set()
        while not worker.metrics.ended_runs:
            await asyncio.sleep(0.01)
        assert dict(worker.metrics.ended_runs) == {"moved": 1}
    database.close()


@asynccontextmanager
async def simulating(answer: Any) -> AsyncIterator[Simulator]:
    with Simulator(answer) as simulator:
        yield simulator


class Broken(RunWorkspace):
    """Has a defect that no run can survive."""

    async def prepare_workspace(self, run_id: str, job: JobSpec) -> str:
        raise ValueError("a defect of the worker")


async def test_the_reason_is_stored_when_the_workflow_itself_breaks(tmp_path: Path):
    database, store = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}"), MemoryStore()
    async with (
        Engine([agent()], [scripted(["It is done."])], store=store) as engine,
        Worker(engine, database, poll=0.05, heartbeat=0.05, workspace=Broken(store)) as worker,
        asyncio.timeout(SECONDS),
    ):
        run = await worker.job_client.submit_run("go", workspace=str(tmp_path))
        run = await worker.job_client.wait_for_run(run.id, poll=0.05)
        while (report := await worker.job_client.get_report(run.id)) is None:
            await asyncio.sleep(0.05)
    assert run.state == "failed"
    assert run.outcome is not None
    assert [run.outcome.error, report.outcome.error] == ["ValueError: a defect of the worker"] * 2
    database.close()


@pytest.mark.parametrize("reason", ["limit", "repetition", "empty_answers", "refusal", "length", "error"])
def test_every_failure_has_a_reason(reason: Any):
    assert derive_run_state("SUCCESS", RunOutcome(reason=reason)) == "failed"
    assert describe_failure(RunOutcome(reason=reason))
    assert describe_failure(RunOutcome(reason=reason, error="why")) == "why"
