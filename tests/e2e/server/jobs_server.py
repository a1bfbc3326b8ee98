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
from tests.e2e.background.worker_fleet import Fleet
from tests.e2e.server.http_server import Client, served


class Runs:
    """Who asks the server, and the workers that no server knows of; `woken` counts how often it wanted one."""

    def __init__(self, client: Client, fleet: Fleet, database: RunDatabase) -> None:
        self.client = client
        self.fleet = fleet
        self._reports = ReportTable(database)
        self.woken = 0

    def report(self, run: dict[str, Any], diff: str, stat: str) -> None:
        """As a worker would keep it that works in a repository."""
        outcome = msgspec.convert(run["outcome"], JobReport.__annotations__["outcome"], strict=False)
        self._reports.store_report(
            run["id"], JobReport(outcome=outcome, changes=WorktreeChanges(diff=diff, stat=stat, commits=1))
        )


@asynccontextmanager
async def serving_runs(folder: Path, users: UserDirectory | None = None) -> AsyncIterator[Runs]:
    fleet = Fleet(folder)
    fleet.place = str(folder / "sessions.db")
    database = RunDatabase(fleet.database)

    def background(engine: Engine) -> BackgroundJobs:
        return BackgroundJobs(lambda: open_job_client(database, engine.store), wake, workspace=folder)

    def wake() -> None:
        runs.woken += 1

    try:
        async with served(folder, ["never asked"], background=background, users=users) as client:
            runs = Runs(client, fleet, database)
            yield runs
    finally:
        fleet.clear()
        database.close()
