"""A follower learns that no worker executes a run, but not while a worker may still be starting."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.database import RunDatabase
from outrider.background.follow import wait_until_unattended
from outrider.background.heartbeat import WorkerRegistry
from outrider.background.jobs import WORKER_START_MS, JobClient, open_job_client
from outrider.background.records import Run, RunState
from outrider.sessions.memory_store import MemoryStore
from outrider.types.ids import now_ms

BEAT = """
import sys
from outrider.background.database import RunDatabase
from outrider.background.heartbeat import WorkerRegistry
WorkerRegistry(RunDatabase(sys.argv[1])).record_heartbeat()
"""


def run(state: RunState, age: int = 0) -> Run:
    return Run(id="one", state=state, prompt="look", queue="runs", created=now_ms() - age)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[tuple[JobClient, RunDatabase]]:
    database = RunDatabase(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    async with MemoryStore() as store, open_job_client(database, store) as jobs:
        yield jobs, database
    database.close()


@pytest.mark.slow
async def test_a_run_that_should_continue_and_has_no_worker_is_left_alone(place: tuple[JobClient, RunDatabase]):
    jobs, database = place
    old = WORKER_START_MS + 1
    stuck = [run("running"), run("queued", old)]
    others = [run("queued"), run("waiting", old), run("delayed", old), run("done", old)]
    assert await jobs.unattended_runs([*others, *stuck]) == stuck
    subprocess.run([sys.executable, "-c", BEAT, str(database.url)], check=True)
    assert await jobs.unattended_runs(stuck) == stuck, "a worker that died on this machine is none"
    WorkerRegistry(database).record_heartbeat()
    assert not await jobs.unattended_runs(stuck)


class FewJobs:
    """A job client with one run; `answers` specifies for each check whether it is unattended."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)

    async def get_run(self, run_id: str) -> str:
        return run_id

    async def unattended_runs(self, runs: Sequence[str]) -> Sequence[str]:
        return runs if self.answers.pop(0) else ()


async def test_a_run_is_reported_to_be_left_alone_when_it_was_twice_in_a_row():
    jobs: Any = FewJobs(True, False, True, True)
    await asyncio.wait_for(wait_until_unattended(jobs, "one", pause=0.001), 30)
    assert not jobs.answers
