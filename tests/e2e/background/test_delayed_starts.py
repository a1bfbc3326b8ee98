"""Runs that start at a time, or after another run: on SQLite, and on Postgres with two workers."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import sqlalchemy as sa

from outrider.background.database import RunDatabase
from outrider.background.jobs import QueuePlacement
from outrider.types.ids import now_ms
from tests.e2e.background.worker_group import Watched, watched
from tests.fixtures.postgres import fresh_database

SECONDS = 60


def miss(there: Watched, *, days: int) -> None:
    """As if every schedule that is not paused had been due some days ago, while no worker ran."""
    database = RunDatabase(there.workers.database)
    with database.engine.begin() as db:
        statement = f"UPDATE {database.table_prefix}schedules SET due = :due WHERE due < :never"
        db.execute(sa.text(statement), {"due": now_ms() - days * 24 * 3600 * 1000, "never": 1 << 62})
    database.close()


async def until_submitted(there: Watched, *wanted: str) -> None:
    """These and no others."""
    async with asyncio.timeout(SECONDS):
        while len(found := [run.prompt for run in await there.jobs.list_runs()]) < len(wanted):
            await asyncio.sleep(0.1)
    assert sorted(found) == sorted(wanted)


async def test_a_run_starts_when_the_one_before_it_has_ended(tmp_path: Path):
    async with watched(tmp_path) as here:
        first = await here.submit("2 steps of first", place=QueuePlacement(priority=100))
        second = await here.submit("1 steps of second", place=QueuePlacement(priority=1, after_run=first.id))
        assert (first.state, second.state, second.after_run) == ("queued", "delayed", first.id)
        here.workers.start()
        for run in (first, second):
            assert (await asyncio.wait_for(here.jobs.wait_for_run(run.id, poll=0.1), SECONDS)).state == "done"
        assert here.workers.effects.read_text().split() == ["first-0", "first-1", "second-0"]


async def test_a_schedule_that_was_missed_is_caught_up_with_once_by_one_of_two_workers(
    tmp_path: Path, postgres_url: str
):
    async with watched(tmp_path, fresh_database(postgres_url)) as there:
        made = await there.jobs.add_schedule(
            "0 7 * * *", "1 steps of morning", timezone="UTC", workspace=str(tmp_path), place=QueuePlacement(user="me")
        )
        miss(there, days=5)
        for _ in range(2):
            there.workers.start()
        async with asyncio.timeout(SECONDS):
            while (await there.jobs.list_schedules())[0].due <= now_ms() or not await there.jobs.list_runs():
                await asyncio.sleep(0.1)
        (run,) = await there.jobs.list_runs()
        assert (await asyncio.wait_for(there.jobs.wait_for_run(run.id, poll=0.1), SECONDS)).state == "done"
        assert await there.jobs.list_runs() == [await there.jobs.get_run(run.id)]
        assert there.workers.count_effects() == {"morning-0": 1}
        assert run.user == "me"
        await there.jobs.remove_schedule(made.id)
        assert not await there.jobs.list_schedules()


@pytest.mark.parametrize("shared", [False, True], ids=["SQLite", "Postgres"])
async def test_a_paused_schedule_submits_nothing_and_what_it_missed_is_not_made_up_for(
    tmp_path: Path, shared: bool, request: pytest.FixtureRequest
):
    server = fresh_database(request.getfixturevalue("postgres_url")) if shared else None
    async with watched(tmp_path, server) as there:
        order = {"timezone": "UTC", "workspace": str(tmp_path)}
        paused = await there.jobs.add_schedule("0 7 * * *", "1 steps of paused", **order)
        await there.jobs.add_schedule("0 7 * * *", "1 steps of beside", **order)
        assert (await there.jobs.pause_schedule(paused.id)).paused
        there.workers.start()
        for number in range(3):  # times that come and go, each of which the worker is seen to have looked at
            miss(there, days=3 - number)
            await until_submitted(there, *["1 steps of beside"] * (number + 1))
        resumed = await there.jobs.resume_schedule(paused.id)
        assert (resumed.paused, resumed.due > now_ms()) == (False, True)
        miss(there, days=0)
        await until_submitted(there, *["1 steps of beside"] * 4, "1 steps of paused")


async def test_one_paused_schedule_is_nothing_to_do_for_a_worker(tmp_path: Path):
    async with watched(tmp_path) as here:
        made = await here.jobs.add_schedule("0 7 * * *", "1 steps of morning", timezone="UTC")
        assert await here.jobs.has_work()
        await here.jobs.pause_schedule(made.id)
        assert not await here.jobs.has_work()
        await here.jobs.resume_schedule(made.id)
        assert await here.jobs.has_work()
