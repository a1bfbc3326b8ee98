"""Runs that begin at a time, or after another run: on SQLite, and on Postgres with two workers."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import sqlalchemy as sa

from outrider.background.database import Database
from outrider.background.jobs import Place
from outrider.types.ids import now_ms
from tests.end_to_end.background.fleet import watched
from tests.postgres import fresh_database

SECONDS = 60


async def test_a_run_begins_when_the_one_before_it_is_over(tmp_path: Path):
    async with watched(tmp_path) as here:
        first = await here.submit("2 steps of first", place=Place(priority=100))
        second = await here.submit("1 steps of second", place=Place(priority=1, after_run=first.id))
        assert (first.state, second.state, second.after_run) == ("queued", "delayed", first.id)
        here.fleet.start()
        for run in (first, second):
            assert (await asyncio.wait_for(here.jobs.wait(run.id, poll=0.1), SECONDS)).state == "done"
        assert here.fleet.effects.read_text().split() == ["first-0", "first-1", "second-0"]


async def test_a_schedule_that_was_missed_is_caught_up_with_once_by_one_of_two_workers(
    tmp_path: Path, postgres_url: str
):
    async with watched(tmp_path, fresh_database(postgres_url)) as there:
        made = await there.jobs.schedule(
            "0 7 * * *", "1 steps of morning", timezone="UTC", workspace=str(tmp_path), place=Place(user="me")
        )
        database = Database(there.fleet.database)
        with database.engine.begin() as db:
            missed = made.due - 5 * 24 * 3600 * 1000
            db.execute(sa.text(f"UPDATE {database.prefix}schedules SET due = :due"), {"due": missed})
        database.close()
        for _ in range(2):
            there.fleet.start()
        async with asyncio.timeout(SECONDS):
            while (await there.jobs.schedules())[0].due <= now_ms() or not await there.jobs.list():
                await asyncio.sleep(0.1)
        (run,) = await there.jobs.list()
        assert (await asyncio.wait_for(there.jobs.wait(run.id, poll=0.1), SECONDS)).state == "done"
        assert await there.jobs.list() == [await there.jobs.show(run.id)]
        assert there.fleet.happened() == {"morning-0": 1}
        assert run.user == "me"
        await there.jobs.unschedule(made.id)
        assert not await there.jobs.schedules()
