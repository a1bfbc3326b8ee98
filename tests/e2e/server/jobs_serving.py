"""A server with background runs, and real workers beside it that carry them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from outrider import Engine
from outrider.background.database import Database
from outrider.background.jobs import open_jobs
from outrider.background.reports import Report, Reports
from outrider.background.worktrees import Changes
from outrider.server.state import Background
from tests.e2e.background.fleet import Fleet
from tests.e2e.server.serving import Client, served


class Runs:
    """Who asks the server, and the workers that no server knows of; `woken` counts how often it wanted one."""

    def __init__(self, client: Client, fleet: Fleet, database: Database) -> None:
        self.client = client
        self.fleet = fleet
        self._reports = Reports(database)
        self.woken = 0

    def report(self, run: dict[str, Any], diff: str, stat: str) -> None:
        """As a worker would keep it that works in a repository."""
        outcome = msgspec.convert(run["outcome"], Report.__annotations__["outcome"], strict=False)
        self._reports.keep(run["id"], Report(outcome=outcome, changes=Changes(diff=diff, stat=stat, commits=1)))


@asynccontextmanager
async def serving_runs(folder: Path) -> AsyncIterator[Runs]:
    fleet = Fleet(folder)
    fleet.place = str(folder / "sessions.db")
    database = Database(fleet.database)

    def background(engine: Engine) -> Background:
        return Background(lambda: open_jobs(database, engine.store), wake, workspace=folder)

    def wake() -> None:
        runs.woken += 1

    try:
        async with served(folder, ["never asked"], background=background) as client:
            runs = Runs(client, fleet, database)
            yield runs
    finally:
        fleet.clear()
        database.close()
