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


class Fleet:
    """The database of runs, the workers that execute them, and the effects of their calls."""

    def __init__(self, folder: Path, server: str | None = None) -> None:
        self.effects = folder / "effects"
        self.effects.touch()
        self.database = server or f"sqlite:///{folder / 'runs.sqlite'}"
        self.place = server or str(folder / "sessions.sqlite")
        self.workers: list[subprocess.Popen[bytes]] = []

    def store(self) -> Store:
        return PostgresStore(self.place) if self.place.startswith("postgresql") else SqliteStore(Path(self.place))

    def begin(self, **settings: str) -> subprocess.Popen[bytes]:
        """A worker that may still be starting."""
        child = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker_process", self.database, self.place, str(self.effects)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.workers.append(child)
        return child

    def start(self, **settings: str) -> tuple[subprocess.Popen[bytes], str]:
        """A worker that works, and its id."""
        child = self.begin(**settings)
        assert child.stdout is not None
        return child, msgspec.json.decode(child.stdout.readline())["worker"]

    def kill(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
        self.workers.remove(child)

    def clear(self) -> None:
        for child in list(self.workers):
            child.send_signal(signal.SIGCONT)
            self.kill(child)

    def happened(self) -> Counter[str]:
        return Counter(self.effects.read_text().split())


class Watched:
    """The runs of a fleet from the outside."""

    def __init__(self, fleet: Fleet, jobs: JobClient, store: Store) -> None:
        self.fleet = fleet
        self.jobs = jobs
        self.store = store

    async def submit(self, prompt: str, **given: Any) -> Run:
        return await self.jobs.submit_run(prompt, workspace=str(self.fleet.effects.parent), **given)

    async def calls(self, run_id: str) -> list[ToolPart]:
        messages = (await self.store.load(run_id)).messages
        return [call for message in messages for call in message.get_parts_by_type(ToolPart)]

    async def faults(self, runs: Sequence[Run]) -> list[str]:
        """What must not be: every run, every call and every effect is looked at."""
        written = self.fleet.happened()
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
    """A worker that lets go of a run cancels its call, which is an end that is known; this one is not, and the call was
    not repeated as often as it may be."""
    again = call.metadata.get(REPEATED, 0) < MAX_REPEATS
    return isinstance(call.state, ToolError) and call.state.reason != "canceled" and again


def _too_often(name: str, count: int) -> bool:
    """What is safe to repeat may happen once more for each crash that cut it off; all else happens once."""
    return count > (1 + MAX_REPEATS if name.startswith(REPEATABLE) else 1)


@contextlib.asynccontextmanager
async def watched(folder: Path, server: str | None = None) -> AsyncIterator[Watched]:
    fleet = Fleet(folder, server)
    database = RunDatabase(fleet.database)
    try:
        async with fleet.store() as store, open_job_client(database, store) as jobs:
            yield Watched(fleet, jobs, store)
    finally:
        fleet.clear()
        database.close()
