"""Runs on one machine: SQLite, and one worker at a time that may be killed at any moment."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.database import RunDatabase
from outrider.background.heartbeat import WorkerRegistry
from outrider.background.jobs import QueuePlacement
from outrider.background.records import Run
from outrider.errors import OutriderError
from outrider.types.agents import Limits
from outrider.types.ids import new_id
from tests.e2e.background.worker_group import Watched, watched

SECONDS = 40


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Watched]:
    async with watched(tmp_path) as seen:
        yield seen


async def over(here: Watched, run: Run) -> Run:
    return await asyncio.wait_for(here.jobs.wait_for_run(run.id, poll=0.1), SECONDS)


async def until_effects(here: Watched, count: int, seconds: float = SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while here.workers.count_effects().total() < count:
            await asyncio.sleep(0.02)


async def test_a_run_submitted_before_there_is_a_worker_is_carried_to_its_end(here: Watched):
    run = await here.submit("2 steps of early", limits=Limits(turns=10))
    assert run.state == "queued"
    here.workers.start()
    run = await over(here, run)
    assert run.outcome is not None
    assert (run.state, run.outcome.output, run.outcome.steps) == ("done", "early is done after 2 calls", 3)
    assert [found.id for found in await here.jobs.list_runs()] == [run.id]
    assert not await here.faults([run])


async def test_what_a_killed_worker_had_started_is_ended_as_interrupted_and_the_rest_continues(here: Watched):
    child, _ = here.workers.start(OUTRIDER_TEST_HANGS="cut-1")
    run = await here.submit("3 steps of cut")
    await until_effects(here, 2)
    here.workers.kill(child)
    here.workers.start()
    run = await over(here, run)
    calls = await here.calls(run.id)
    assert [call.state.status for call in calls] == ["completed", "error", "completed"]
    assert calls[1].state.reason == "interrupted"  # pyright: ignore[reportAttributeAccessIssue]
    assert here.workers.count_effects() == {"cut-0": 1, "cut-1": 1, "cut-2": 1}
    assert run.attempts == 2
    assert not await here.faults([run])


async def test_a_call_that_is_safe_to_repeat_is_run_again_after_its_worker_was_killed(here: Watched):
    child, _ = here.workers.start(OUTRIDER_TEST_HANGS="cut-1")
    run = await here.submit("4 mixed steps of cut")
    await until_effects(here, 2)
    here.workers.kill(child)
    here.workers.start()
    run = await over(here, run)
    assert [call.state.status for call in await here.calls(run.id)] == ["completed"] * 4
    assert here.workers.count_effects() == {"cut-0": 1, "again:cut-1": 2, "cut-2": 1, "again:cut-3": 1}
    assert not await here.faults([run])


async def test_the_limits_of_a_run_hold_for_all_its_workers_together(here: Watched):
    child, _ = here.workers.start()
    run = await here.submit("9 steps of long", limits=Limits(turns=3))
    await until_effects(here, 1)
    here.workers.kill(child)
    here.workers.start()
    run = await over(here, run)
    assert run.outcome is not None
    assert (run.state, run.outcome.reason, run.outcome.steps) == ("failed", "limit", 3)


async def test_a_worker_that_is_asked_to_stop_gives_its_runs_back(here: Watched):
    child, first = here.workers.start()
    run = await here.submit("4 steps of given")
    await until_effects(here, 1)
    child.terminate()
    assert await asyncio.to_thread(child.wait, SECONDS) == 0
    assert (await here.jobs.get_run(run.id)).state == "queued"
    _, second = here.workers.start()
    run = await over(here, run)
    assert run.worker == second != first
    assert not await here.faults([run])


async def test_runs_of_a_worker_that_is_on_no_roster_continue_too(here: Watched):
    child, first = here.workers.start()
    run = await here.submit("3 steps of orphaned")
    await until_effects(here, 1)
    here.workers.kill(child)
    database = RunDatabase(here.workers.database)
    WorkerRegistry(database).remove_worker(first)
    database.close()
    here.workers.start()
    run = await over(here, run)
    assert not await here.faults([run])


async def test_a_canceled_run_ends_and_can_be_retried(here: Watched):
    here.workers.start()
    run = await here.submit("4 steps of stopped")
    await until_effects(here, 1)
    await here.jobs.cancel_run(run.id)
    async with asyncio.timeout(SECONDS):
        while not all(call.ended for call in await here.calls(run.id)):
            await asyncio.sleep(0.1)
    assert (await over(here, run)).state == "canceled"
    run = await over(here, await here.jobs.retry_run(run.id))
    assert run.state == "done"
    with pytest.raises(OutriderError, match="only a failed or canceled run"):
        await here.jobs.retry_run(run.id)
    assert not await here.faults([run])


async def test_a_run_that_waits_for_an_answer_needs_no_worker_until_it_is_given(here: Watched):
    child, _ = here.workers.start()
    run = await over(here, await here.submit("2 steps of ask"))
    assert run.state == "waiting"
    here.workers.kill(child)
    (question,) = await here.jobs.open_approvals(run.id)
    await here.jobs.answer_approval(question.id, by="the test")
    here.workers.start()
    async with asyncio.timeout(SECONDS):
        while run.state != "done":
            run = await here.jobs.get_run(run.id)
            await asyncio.sleep(0.1)
    assert here.workers.count_effects() == {"ask-0": 1, "ask-1": 1}


async def test_a_run_that_waits_can_be_canceled(here: Watched):
    here.workers.start()
    run = await over(here, await here.submit("1 steps of ask"))
    await here.jobs.cancel_run(run.id)
    assert (await over(here, run)).state == "canceled"
    assert not here.workers.count_effects()


async def test_what_is_more_urgent_is_started_first_and_what_is_delayed_last(here: Watched):
    late = await here.submit("1 steps of late", place=QueuePlacement(after=0.5))
    slow = await here.submit("1 steps of slow", place=QueuePlacement(priority=200))
    soon = await here.submit("1 steps of soon", place=QueuePlacement(priority=1))
    here.workers.start(OUTRIDER_TEST_TERMS='{"runs": 1}')
    for run in (late, slow, soon):
        assert (await over(here, run)).state == "done"
    assert here.workers.effects.read_text().split().index("soon-0") < here.workers.effects.read_text().split().index(
        "slow-0"
    )


async def test_submitting_twice_with_one_id_submits_once(here: Watched):
    run_id = new_id()
    first = await here.submit("1 steps of once", run_id=run_id)
    second = await here.submit("1 steps of once", run_id=run_id)
    assert first.id == second.id
    here.workers.start()
    assert (await over(here, first)).state == "done"
    assert here.workers.count_effects() == {"once-0": 1}
