"""A worker goes on beating, whatever happens to it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider import Engine
from outrider.background.database import RunDatabase
from outrider.background.records import JobSpec, RunOutcome, derive_run_state, describe_failure
from outrider.background.worker import Worker
from outrider.sessions.memory_store import MemoryStore
from tests.scenario.stories import agent, scripted

SECONDS = 30


class Stumbling(Worker):
    """Is given up a second time while it begins anew: its queue is gone as soon as it is there."""

    stumbles = 0

    def _register_queue(self) -> None:
        if self.stumbles:
            self.stumbles -= 1
            raise AssertionError("the queue is missing from the database")
        super()._register_queue()


async def test_one_that_the_others_gave_up_twice_begins_anew_and_takes_runs(tmp_path: Path):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with (
        Engine([agent()], [scripted(["It is done."] * 2)], store=MemoryStore()) as engine,
        Stumbling(engine, database, poll=0.05, heartbeat=0.05) as worker,
        asyncio.timeout(SECONDS),
    ):
        run = await worker.job_client.submit_run("go", workspace=str(tmp_path))
        assert (await worker.job_client.wait_for_run(run.id, poll=0.05)).state == "done"
        worker.stumbles = 2
        worker._remove_worker(worker.id)  # as another one does
        while worker.stumbles:
            await asyncio.sleep(0.02)
        run = await worker.job_client.submit_run("go", workspace=str(tmp_path))
        assert (await worker.job_client.wait_for_run(run.id, poll=0.05)).state == "done"
    database.close()


class Broken(Worker):
    """Has a defect that no run can survive."""

    async def _start_run(self, run_id: str, job: JobSpec) -> RunOutcome:
        raise ValueError("a defect of the worker")


async def test_the_reason_is_stored_when_the_workflow_itself_breaks(tmp_path: Path):
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with (
        Engine([agent()], [scripted(["It is done."])], store=MemoryStore()) as engine,
        Broken(engine, database, poll=0.05, heartbeat=0.05) as worker,
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
