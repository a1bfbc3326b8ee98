"""Canceling a run that no worker holds: its calls and questions are closed, and its end is reported."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.executor import iterate_session_tree
from outrider.background.records import Run
from outrider.background.reports import JobReport
from outrider.types.tool_state import ToolError
from tests.e2e.background.worker_group import Watched, watched
from tests.fixtures.postgres import fresh_database

SECONDS = 60


async def reported(there: Watched, run: Run) -> JobReport:
    async with asyncio.timeout(SECONDS):
        while (report := await there.jobs.get_report(run.id)) is None:
            await asyncio.sleep(0.1)
    return report


async def ends(there: Watched, run: Run) -> dict[str, str]:
    """Returns how each call of the run and of its called agents ended; "" for an open one."""
    found: dict[str, str] = {}
    async for session_id in iterate_session_tree(there.store, run.id):
        for call in await there.calls(session_id):
            reason = call.state.reason if isinstance(call.state, ToolError) else call.state.status
            found[call.call_id] = reason if call.ended else ""
    return found


async def test_a_canceled_run_whose_worker_was_killed_is_ended_by_another_worker(tmp_path: Path, postgres_url: str):
    async with watched(tmp_path, fresh_database(postgres_url)) as there:
        worker, _ = there.workers.start(OUTRIDER_TEST_HANGS="long-0")
        run = await there.submit("2 steps of long")
        async with asyncio.timeout(SECONDS):
            while not there.workers.count_effects():
                await asyncio.sleep(0.05)
        there.workers.kill(worker)
        assert (await there.jobs.cancel_run(run.id)).state == "canceled"
        assert await there.jobs.needs_cleanup(run.id)
        for _ in range(2):
            there.workers.start_unready()
        assert (await reported(there, run)).outcome.reason == "aborted"
        assert await ends(there, run) == {"long-0": "interrupted"}
        assert there.workers.count_effects() == {"long-0": 1}
        assert not await there.jobs.has_work()


async def test_a_canceled_run_that_waits_for_an_answer_is_ended_and_its_question_withdrawn(tmp_path: Path):
    async with watched(tmp_path) as here:
        here.workers.start()
        run = await here.submit("1 steps of delegate")
        assert (await asyncio.wait_for(here.jobs.wait_for_run(run.id, poll=0.1), SECONDS)).state == "waiting"
        await here.jobs.cancel_run(run.id)
        assert (await reported(here, run)).outcome.reason == "aborted"
        assert await ends(here, run) == {"delegate-0": "interrupted", "ask-0": "completed", "ask-1": "interrupted"}
        assert not await here.jobs.open_approvals()
        assert here.workers.count_effects() == {"ask-0": 1}
