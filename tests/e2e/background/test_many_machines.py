"""Runs on many machines: several workers on one Postgres server, killed and paused while they work."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from time import monotonic

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from tests.e2e.background.worker_group import Watched, watched
from tests.e2e.background.write_audit import Audit
from tests.fixtures.postgres import fresh_database

SECONDS = 60
Record = Callable[[str, object], None]


@pytest.fixture
async def there(tmp_path: Path, postgres_url: str) -> AsyncIterator[Watched]:
    async with watched(tmp_path, fresh_database(postgres_url)) as seen:
        yield seen


async def test_a_run_whose_worker_is_killed_continues_in_another_worker(there: Watched, record_property: Record):
    workers = dict(reversed(there.workers.start()) for _ in range(2))
    run = await there.submit("40 steps of moved")
    async with asyncio.timeout(SECONDS):
        while there.workers.count_effects().total() < 2:
            await asyncio.sleep(0.02)
    first = (await there.jobs.get_run(run.id)).worker
    killed = monotonic()
    there.workers.kill(workers[first])
    async with asyncio.timeout(SECONDS):
        while (await there.jobs.get_run(run.id)).worker in ("", first):
            await asyncio.sleep(0.02)
        before = there.workers.count_effects().total()
        while there.workers.count_effects().total() <= before:
            await asyncio.sleep(0.02)
    record_property(
        "figures", f"a run whose worker was killed had gone on elsewhere after {monotonic() - killed:.1f} s"
    )
    await there.jobs.cancel_run(run.id)


async def test_a_worker_that_was_paused_cannot_write_into_a_run_that_continued_in_another_worker(there: Watched):
    audit = Audit(there.workers.database, there.workers.store_address)
    audit.install()
    workers = dict(reversed(there.workers.start()) for _ in range(2))
    run = await there.submit("12 steps of paused")
    async with asyncio.timeout(SECONDS):
        while there.workers.count_effects().total() < 2:
            await asyncio.sleep(0.02)
    first = (await there.jobs.get_run(run.id)).worker
    workers[first].send_signal(signal.SIGSTOP)
    async with asyncio.timeout(SECONDS):
        while (await there.jobs.get_run(run.id)).worker in ("", first):
            await asyncio.sleep(0.1)
    workers[first].send_signal(signal.SIGCONT)
    run = await asyncio.wait_for(there.jobs.wait_for_run(run.id), SECONDS)
    assert run.worker != first
    there.workers.kill(workers[run.worker])
    later = await there.submit("1 steps of later")
    later = await asyncio.wait_for(there.jobs.wait_for_run(later.id), SECONDS)
    assert later.worker == first, "it noticed that it had been given up, and goes on with others"
    assert not await there.faults([run, later])
    assert not audit.faults()
    audit.close()
