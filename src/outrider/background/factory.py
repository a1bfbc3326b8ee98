"""Jobs and workers as every front end opens them: in the user's data directory, or on a server that many share."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from outrider.background.database import Database
from outrider.background.jobs import Jobs, open_jobs
from outrider.background.records import Job
from outrider.background.worker import Worker
from outrider.background.worktrees import Fitted, RunWorkspace, Worktrees
from outrider.config.paths import Folders, make_private
from outrider.config.settings import Flags, Settings, read_settings
from outrider.engine.approval_gate import Rules
from outrider.engine.factory import standard_engine, store_at
from outrider.errors import ConfigurationError
from outrider.models.local.weights import adapt_to_local_models
from outrider.sessions.store import Store


@asynccontextmanager
async def standard_jobs(folders: Folders, server: str | None = None) -> AsyncGenerator[Jobs, None]:
    database = _database(folders, server)
    try:
        async with store_at(folders.store, server) as store, open_jobs(database, store) as jobs:
            yield jobs
    finally:
        database.close()


@asynccontextmanager
async def jobs_beside(store: Store, folders: Folders, server: str | None = None) -> AsyncGenerator[Jobs, None]:
    """For whoever has the sessions open already."""
    database = _database(folders, server)
    try:
        async with open_jobs(database, store) as jobs:
            yield jobs
    finally:
        database.close()


@asynccontextmanager
async def standard_worker(
    settings: Settings, server: str | None = None, *, runs: int | None = None
) -> AsyncGenerator[Worker, None]:
    """With `runs` at once, or as many as the settings say. Questions of its runs are kept until somebody answers them,
    here or elsewhere."""
    folders, terms = settings.folders, settings.background
    database = _database(folders, server)
    store = store_at(folders.store, server)
    try:
        async with (
            standard_engine(settings, workspace=settings.workspace, attended=True, store=store) as engine,
            Worker(
                engine,
                database,
                terms=replace(terms, runs=runs or terms.runs),
                ground=RunWorkspace(engine.store, Worktrees(folders), fitted_by(settings)),
            ) as worker,
        ):
            yield worker
    finally:
        database.close()


def fitted_by(settings: Settings) -> Fitted:
    """A worker serves many workspaces: each has settings of its own, which may only tighten, and each order has words
    of its own. Keys and models are those of this machine."""

    def fitted(job: Job, workspace: str) -> dict[str, Any]:
        flags = Flags(model=job.terms.model or None, allow=job.terms.allow, ask=job.terms.ask, deny=job.terms.deny)
        own = read_settings(cwd=workspace or settings.workspace, environ=settings.environ, flags=flags)
        if own.missing:
            raise ConfigurationError(own.missing)
        return {
            "agents": adapt_to_local_models(own.agents, own.providers),
            "providers": own.providers,
            "rules": Rules(own.rules.allow, own.rules.ask, own.rules.deny),
            "titles": False,  # a model would be asked for it outside of the run's limits; its prompt is title enough
        }

    return fitted


def _database(folders: Folders, server: str | None) -> Database:
    return Database(server or f"sqlite:///{make_private(folders.data) / 'runs.sqlite'}")
