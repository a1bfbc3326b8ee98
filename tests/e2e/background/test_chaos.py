"""Workers are killed and paused at random while they work: nothing is lost, nothing is done twice. Every write that a
database saw, every call and every effect is looked at, and the numbers are printed."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from time import monotonic

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.records import FINAL_STATES, Run
from tests.e2e.background.worker_group import Watched, watched
from tests.e2e.background.worker_process import REPEATABLE
from tests.e2e.background.write_audit import Audit
from tests.fixtures.postgres import fresh_database

SOAK = bool(os.environ.get("OUTRIDER_SOAK"))
RUNS = int(os.environ.get("OUTRIDER_CHAOS_RUNS") or (200 if SOAK else 6))
STEPS = 4
pytestmark = [pytest.mark.soak, pytest.mark.timeout(3000)]
Record = Callable[[str, object], None]


@contextlib.asynccontextmanager
async def audited(folder: Path, server: str | None = None) -> AsyncIterator[tuple[Watched, Audit]]:
    async with watched(folder, server) as seen:
        audit = Audit(seen.workers.database, seen.workers.store_address)
        try:
            audit.install()
            yield seen, audit
        finally:
            audit.close()


class Storm:
    """What happens to workers, in an order that a seed fixes; the time depends on what the runs have done so far."""

    def __init__(self, seen: Watched, seed: int, workers: int) -> None:
        self.seen = seen
        self.dice = random.Random(seed)
        self.workers = [seen.workers.start_unready() for _ in range(workers)]
        self.kills = self.pauses = 0
        self.looked = monotonic()

    async def rage(self, *, pauses: float) -> list[Run]:
        """Until all runs are over. A share of the strikes are `pauses`, many of them longer than patience lasts."""
        while True:
            if ended := await self._runs_progress(self.dice.randrange(2, 12)):
                return ended
            victim = self.dice.randrange(len(self.workers))
            if self.kills and self.dice.random() < pauses:
                await self._pause(victim)
            else:
                self.seen.workers.kill(self.workers[victim])
                self.workers[victim] = self.seen.workers.start_unready()
                self.kills += 1

    async def _pause(self, victim: int) -> None:
        self.workers[victim].send_signal(signal.SIGSTOP)
        await asyncio.sleep(self.dice.choice([0.5, 2, 5]))
        self.workers[victim].send_signal(signal.SIGCONT)
        self.pauses += 1

    async def _runs_progress(self, effects: int) -> list[Run]:
        """Waits for this number of further effects, at most a minute; returns the runs if all have ended."""
        wanted, until = self.seen.workers.count_effects().total() + effects, monotonic() + 60
        while self.seen.workers.count_effects().total() < wanted and monotonic() < until:
            if monotonic() - self.looked > 1:
                self.looked, runs = monotonic(), list(await self.seen.jobs.list_runs(limit=RUNS))
                if all(run.state in FINAL_STATES for run in runs):
                    return runs
            await asyncio.sleep(0.05)
        return []


async def judge(seen: Watched, audit: Audit, storm: Storm, ended: list[Run], record: Record, where: str) -> None:
    faults = [*await seen.faults(ended), *audit.faults()]
    calls = [call for run in ended for call in await seen.calls(run.id)]
    cut = sum(call.state.status == "error" for call in calls)
    effects = seen.workers.count_effects()
    again = sum(count - 1 for name, count in effects.items() if name.startswith(REPEATABLE))
    record(
        "figures",
        f"chaos on {where}: {len(ended)} runs, {storm.kills} kills, {storm.pauses} pauses, {len(calls)} calls,"
        f" {cut} interrupted, {again} repeated, {sum(run.attempts for run in ended)} attempts, {len(faults)} faults",
    )
    assert not faults
    assert len(ended) == RUNS
    assert len(calls) == RUNS * STEPS


async def test_nothing_is_lost_or_done_twice_while_workers_of_one_server_are_killed_and_paused(
    tmp_path: Path, postgres_url: str, record_property: Record
):
    async with audited(tmp_path, fresh_database(postgres_url)) as (seen, audit):
        for number in range(RUNS):
            await seen.submit(f"{STEPS} mixed steps of r{number}x")
        storm = Storm(seen, seed=7, workers=3 if SOAK else 2)
        ended = await storm.rage(pauses=0.4)
        await judge(seen, audit, storm, ended, record_property, "Postgres")


async def test_nothing_is_lost_or_done_twice_while_the_only_worker_is_killed_again_and_again(
    tmp_path: Path, record_property: Record
):
    async with audited(tmp_path) as (seen, audit):
        for number in range(RUNS):
            await seen.submit(f"{STEPS} mixed steps of r{number}x")
        storm = Storm(seen, seed=11, workers=1)
        ended = await storm.rage(pauses=0)
        await judge(seen, audit, storm, ended, record_property, "SQLite")
