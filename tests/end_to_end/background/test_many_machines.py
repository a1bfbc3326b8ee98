"""Runs on many machines: several workers on one Postgres server, killed and paused while they work."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.runs import OVER
from tests.end_to_end.background.fleet import Watched, watched
from tests.postgres import fresh_database

RUNS = int(os.environ.get("OUTRIDER_CHAOS_RUNS", "16"))
PATIENCE = 600


@pytest.fixture
async def there(tmp_path: Path, postgres_url: str) -> AsyncIterator[Watched]:
    async with watched(tmp_path, fresh_database(postgres_url)) as seen:
        yield seen


async def test_a_run_whose_worker_is_killed_goes_on_elsewhere_within_ten_seconds(there: Watched):
    workers = dict(reversed(there.fleet.start()) for _ in range(2))
    run = await there.submit("40 steps of moved")
    async with asyncio.timeout(40):
        while there.fleet.happened().total() < 2:
            await asyncio.sleep(0.02)
    first = (await there.jobs.show(run.id)).worker
    before = there.fleet.happened().total()
    killed = monotonic()
    there.fleet.kill(workers[first])
    async with asyncio.timeout(10):
        while there.fleet.happened().total() <= before:
            await asyncio.sleep(0.02)
    sys.stdout.write(f"\ngone on after {monotonic() - killed:.1f} s\n")
    assert (await there.jobs.show(run.id)).worker != first
    await there.jobs.cancel(run.id)


async def test_a_worker_that_was_paused_cannot_write_into_a_run_that_went_on_elsewhere(there: Watched):
    workers = dict(reversed(there.fleet.start()) for _ in range(2))
    run = await there.submit("12 steps of paused")
    async with asyncio.timeout(40):
        while there.fleet.happened().total() < 2:
            await asyncio.sleep(0.02)
    first = (await there.jobs.show(run.id)).worker
    workers[first].send_signal(signal.SIGSTOP)
    async with asyncio.timeout(20):
        while (await there.jobs.show(run.id)).worker in ("", first):
            await asyncio.sleep(0.1)
    workers[first].send_signal(signal.SIGCONT)
    run = await asyncio.wait_for(there.jobs.wait(run.id), 60)
    assert run.worker != first
    assert not await there.faults([run])


@pytest.mark.timeout(PATIENCE)
async def test_nothing_is_lost_or_done_twice_while_workers_are_killed_and_paused(there: Watched):
    """$OUTRIDER_CHAOS_RUNS says how many runs there are."""
    kills = pauses = 0
    dice = random.Random(7)
    runs = [await there.submit(f"4 steps of r{number}x") for number in range(RUNS)]
    slow = {"OUTRIDER_TEST_PAUSE": "0.3"}
    workers = [there.fleet.start(**slow)[0] for _ in range(2)]
    while not all(run.state in OVER for run in await there.jobs.list(limit=RUNS)):
        await asyncio.sleep(dice.uniform(1.5, 4))
        victim = dice.randrange(2)
        if dice.random() < 0.6:
            there.fleet.kill(workers[victim])
            workers[victim] = there.fleet.begin(**slow)
            kills += 1
        else:
            workers[victim].send_signal(signal.SIGSTOP)
            await asyncio.sleep(dice.uniform(0.5, 5))
            workers[victim].send_signal(signal.SIGCONT)
            pauses += 1
    ended = await there.jobs.list(limit=RUNS)
    faults = await there.faults(ended)
    calls = [call for run in runs for call in await there.calls(run.id)]
    cut = sum(call.state.status == "error" for call in calls)
    sys.stdout.write(
        f"\n{RUNS} runs, {kills} kills, {pauses} pauses, {len(calls)} calls of which {cut} interrupted, "
        f"{sum(run.attempts for run in ended)} attempts, {len(faults)} faults\n"
    )
    assert len(ended) == RUNS
    assert not faults
