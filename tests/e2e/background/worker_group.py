"""Starts real worker processes and checks everything that they stored."""

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from outrider.background.database import RunDatabase
from outrider.background.jobs import JobClient, open_job_client
from outrider.background.records import Run
from outrider.sessions.postgres.store import PostgresStore
from outrider.sessions.recovery import MAX_REPEATS, REPEATED
from outrider.sessions.sqlite.store import SqliteStore
from outrider.sessions.store import Store
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolError
from tests.e2e.background.worker_process import REPEATABLE

ROOT = Path(__file__).parents[3]


class WorkerGroup:
    """The database of runs, the workers that execute them, and the effects of their calls."""

    def __init__(self, folder: Path, server: str | None = None) -> None:
        self.effects = folder / "effects"
        self.effects.touch()
        self.database = server or f"sqlite:///{folder / 'runs.sqlite'}"
        self.store_address = server or str(folder / "sessions.sqlite")
        self.processes: list[subprocess.Popen[bytes]] = []

    def store(self) -> Store:
        return (
            PostgresStore(self.store_address)
            if self.store_address.startswith("postgresql")
            else SqliteStore(Path(self.store_address))
        )

    def start_unready(self, **settings: str) -> subprocess.Popen[bytes]:
        """Starts a worker and does not wait until it is ready."""
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                f"{__package__}.worker_process",
                self.database,
                self.store_address,
                str(self.effects),
            ],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.processes.append(child)
        return child

    def start(self, **settings: str) -> tuple[subprocess.Popen[bytes], str]:
        """Starts a worker, and returns its process and its id when it is ready."""
        child = self.start_unready(**settings)
        assert child.stdout is not None
        return child, msgspec.json.decode(child.stdout.readline())["worker"]

    def kill(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
        self.processes.remove(child)

    def kill_all(self) -> None:
        for child in list(self.processes):
            child.send_signal(signal.SIGCONT)
            self.kill(child)

    def count_effects(self) -> Counter[str]:
        return Counter(self.effects.read_text().split())


class Watched:
    """Reads and checks the runs of a group of workers through the client and the store."""

    def __init__(self, workers: WorkerGroup, jobs: JobClient, store: Store) -> None:
        self.workers = workers
        self.jobs = jobs
        self.store = store

    async def submit(self, prompt: str, **given: Any) -> Run:
        return await self.jobs.submit_run(prompt, workspace=str(self.workers.effects.parent), **given)

    async def calls(self, run_id: str) -> list[ToolPart]:
        messages = (await self.store.load(run_id)).messages
        return [call for message in messages for call in message.get_parts_by_type(ToolPart)]

    async def faults(self, runs: Sequence[Run]) -> list[str]:
        """Returns the errors that a check of every run, call and effect finds."""
        written = self.workers.count_effects()
        happened = Counter({name.removeprefix(REPEATABLE): count for name, count in written.items()})
        found = [f"{name} happened {count} times" for name, count in written.items() if _too_often(name, count)]
        for run in runs:
            if run.state != "done":
                found.append(f"{run.prompt}: {run.state} {run.outcome}")
            calls = await self.calls(run.id)
            steps = Counter(call.call_id for call in calls)
            found += [f"{call_id} was recorded {count} times" for call_id, count in steps.items() if count > 1]
            ids = [call.call_id for call in calls if call.state.status == "completed"]
            found += [f"{call.call_id} has no end" for call in calls if not call.ended]
            found += [f"{call_id} is completed without its effect" for call_id in ids if not happened[call_id]]
            found += [f"{call.call_id} could have been repeated" for call in calls if call.repeatable and _cut(call)]
            known = {call.call_id for call in calls}
            name = run.prompt.partition(" steps of ")[2]
            lost = [effect for effect in happened if effect.startswith(f"{name}-") and effect not in known]
            found += [f"{effect} happened and was never recorded" for effect in lost]
        return found


def _cut(call: ToolPart) -> bool:
    """Returns whether a call was interrupted, although it could have been repeated. A worker that releases a run
    cancels its call instead."""
    again = call.metadata.get(REPEATED, 0) < MAX_REPEATS
    return isinstance(call.state, ToolError) and call.state.reason != "canceled" and again


def _too_often(name: str, count: int) -> bool:
    """Returns whether an effect happened more often than allowed: repeatable calls run again after each crash, others
    once."""
    return count > (1 + MAX_REPEATS if name.startswith(REPEATABLE) else 1)


@contextlib.asynccontextmanager
async def watched(folder: Path, server: str | None = None) -> AsyncIterator[Watched]:
    workers = WorkerGroup(folder, server)
    database = RunDatabase(workers.database)
    try:
        async with workers.store() as store, open_job_client(database, store) as jobs:
            yield Watched(workers, jobs, store)
    finally:
        workers.kill_all()
        database.close()
