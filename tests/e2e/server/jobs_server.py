"""Starts a server with background runs, and worker processes that execute them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from outrider import Engine
from outrider.background.database import RunDatabase
from outrider.background.jobs import open_job_client
from outrider.background.reports import JobReport, ReportTable
from outrider.background.worktrees import WorktreeChanges
from outrider.server.state import BackgroundJobs
from outrider.server.users import UserDirectory
from tests.e2e.background.worker_group import WorkerGroup
from tests.e2e.server.http_server import Client, served


class Runs:
    """A client of a server with background runs, and the worker processes. `woken` counts the requests of the server
    for a worker."""

    def __init__(self, client: Client, workers: WorkerGroup, database: RunDatabase) -> None:
        self.client = client
        self.workers = workers
        self._reports = ReportTable(database)
        self.woken = 0

    def report(self, run: dict[str, Any], diff: str, stat: str) -> None:
        """Stores the report that a worker in a repository stores."""
        outcome = msgspec.convert(run["outcome"], JobReport.__annotations__["outcome"], strict=False)
        self._reports.store_report(
            run["id"], JobReport(outcome=outcome, changes=WorktreeChanges(diff=diff, stat=stat, commits=1))
        )


@asynccontextmanager
async def serving_runs(folder: Path, users: UserDirectory | None = None) -> AsyncIterator[Runs]:
    workers = WorkerGroup(folder)
    workers.store_address = str(folder / "sessions.db")
    database = RunDatabase(workers.database)

    def background(engine: Engine) -> BackgroundJobs:
        return BackgroundJobs(lambda: open_job_client(database, engine.store), wake, workspace=folder)

    def wake() -> None:
        runs.woken += 1

    try:
        async with served(folder, ["never asked"], background=background, users=users) as client:
            runs = Runs(client, workers, database)
            yield runs
    finally:
        workers.kill_all()
        database.close()
