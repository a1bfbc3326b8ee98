"""A worker that works for long needs no more memory, files and connections at its end than it did in the beginning."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

pytest.importorskip("dbos", reason="SKIPPED: no tests of background runs, since dbos is not installed")

import msgspec
import psycopg

from outrider.background.records import FINAL_STATES
from tests.e2e.background.worker_group import Watched, watched
from tests.fixtures.postgres import fresh_database

SOAK = bool(os.environ.get("OUTRIDER_SOAK"))
STEPS = 20
ROUNDS, RUNS = (10, 30) if SOAK else (3, 4)  # the first round warms up
SLACK = 24 << 20  # bytes
pytestmark = [pytest.mark.soak, pytest.mark.timeout(3000)]
Record = Callable[[str, object], None]


class Needs(msgspec.Struct, frozen=True):
    memory: int
    files: int
    connections: int


def needs(pid: int, server: str | None) -> Needs:
    status = Path(f"/proc/{pid}/status").read_text().split()
    memory = int(status[status.index("VmRSS:") + 1]) * 1024
    return Needs(memory, len(list(Path(f"/proc/{pid}/fd").iterdir())), _connections(server) if server else 0)


def _connections(server: str) -> int:
    with psycopg.connect(server) as db:
        row = db.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()").fetchone()
    return row[0] - 1 if row else 0


async def one_round(seen: Watched, number: int) -> None:
    for run in range(RUNS):
        await seen.submit(f"{STEPS} steps of r{number}x{run}x")
    async with asyncio.timeout(1200):
        while not all(run.state in FINAL_STATES for run in await seen.jobs.list_runs(limit=RUNS)):
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_memory_files_and_connections_stay_as_they_were(
    kind: str, tmp_path: Path, postgres_url: str, record_property: Record
):
    server = fresh_database(postgres_url) if kind == "postgres" else None
    async with watched(tmp_path, server) as seen:
        child, _ = seen.workers.start(OUTRIDER_TEST_PAUSE="0", OUTRIDER_TEST_TERMS='{"runs": 8}')
        await one_round(seen, 0)
        first, started = needs(child.pid, server), monotonic()
        for number in range(1, ROUNDS):
            await one_round(seen, number)
        last = needs(child.pid, server)
        calls = seen.workers.count_effects()
    each = (monotonic() - started) / ((ROUNDS - 1) * RUNS * STEPS) * 1000
    record_property(
        "figures",
        f"soak on {kind}: {calls.total()} steps, {each:.0f} ms each,"
        f" memory {first.memory >> 20} to {last.memory >> 20} MB,"
        f" files {first.files} to {last.files}, connections {first.connections} to {last.connections}",
    )
    assert calls.total() == len(calls) == ROUNDS * RUNS * STEPS
    assert last.memory <= first.memory * 1.1 + SLACK
    assert last.files <= first.files + 8
    assert last.connections <= first.connections + 8
