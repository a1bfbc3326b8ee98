"""Opens job clients and workers for the front ends: on the user's data directory, or on a shared Postgres server."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Protocol, runtime_checkable

from msgspec.structs import replace

from outrider.background.database import RunDatabase
from outrider.background.jobs import JobClient, open_job_client
from outrider.background.records import JobSpec
from outrider.background.worker import Worker
from outrider.background.worktrees import EngineOptionsBuilder, RunWorkspace, WorktreeManager
from outrider.config.paths import AppFolders, make_private_folder
from outrider.config.settings import CommandFlags, Settings, read_settings
from outrider.engine.approval_gate import Rules
from outrider.engine.factory import create_store, standard_engine
from outrider.errors import ConfigurationError
from outrider.models.clients import adapt_to_local_models
from outrider.sessions.store import Store

_STORE_CONNECTIONS = 3  # of a worker's session store; one more follows changes, and runs and notifications use four


@asynccontextmanager
async def standard_jobs(folders: AppFolders, server: str | None = None) -> AsyncGenerator[JobClient, None]:
    """Opens a job client with its own session store."""
    database = _open_database(folders, server)
    try:
        with database.translate_errors():
            async with create_store(folders.store_file, server) as store, open_job_client(database, store) as jobs:
                yield jobs
    finally:
        database.close()


@asynccontextmanager
async def jobs_with_store(
    store: Store, folders: AppFolders, server: str | None = None
) -> AsyncGenerator[JobClient, None]:
    """Opens a job client for a caller that already has the session store open."""
    database = _open_database(folders, server)
    try:
        async with open_job_client(database, store) as jobs:
            yield jobs
    finally:
        database.close()


@asynccontextmanager
async def standard_worker(
    settings: Settings,
    server: str | None = None,
    *,
    runs: int | None = None,
    grace: float | None = None,
    listen_url: str | None = None,
    version: str = "",
) -> AsyncGenerator[Worker, None]:
    """Opens a worker that executes up to `runs` runs at once and gives running calls `grace` seconds when it closes;
    the defaults come from the settings. `listen_url` is a direct address of a server behind a pooler. Approval requests
    of its runs stay in the store until any process answers them."""
    folders, limits = settings.folders, settings.background
    database = _open_database(folders, server)
    store = create_store(
        folders.store_file, server, outage_seconds=limits.outage_seconds, max_connections=_STORE_CONNECTIONS
    )
    try:
        async with (
            standard_engine(settings, workspace=settings.workspace, attended=True, store=store) as engine,
            Worker(
                engine,
                database,
                limits=replace(limits, runs=runs or limits.runs),
                grace=limits.grace_seconds if grace is None else grace,
                listen_url=listen_url,
                version=version,
                workspace=RunWorkspace(engine.store, WorktreeManager(folders), engine_options_builder(settings)),
            ) as worker,
            _stop_waiting_at_exit(store),
        ):
            yield worker
    finally:
        database.close()


@runtime_checkable
class WaitingStore(Protocol):
    """A store whose requests wait while its server is unavailable."""

    def stop_waiting(self) -> None: ...


@asynccontextmanager
async def _stop_waiting_at_exit(store: Store) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        if isinstance(store, WaitingStore):
            store.stop_waiting()


def engine_options_builder(settings: Settings) -> EngineOptionsBuilder:
    """Returns a function that builds the engine options of a job. Each workspace has its own settings file, which may
    only tighten the rules, and each job has overrides. API keys and models come from this machine's settings."""

    def build_options(job: JobSpec, workspace: str) -> dict[str, Any]:
        flags = CommandFlags(
            model=job.terms.model or None,
            effort=job.terms.effort or None,
            allow=job.terms.allow,
            ask=job.terms.ask,
            deny=job.terms.deny,
        )
        workspace_settings = read_settings(cwd=workspace or settings.workspace, environ=settings.environ, flags=flags)
        if workspace_settings.missing:
            raise ConfigurationError(workspace_settings.missing)
        return {
            "agents": adapt_to_local_models(workspace_settings.agents, workspace_settings.providers),
            "providers": workspace_settings.providers,
            "rules": Rules(workspace_settings.rules.allow, workspace_settings.rules.ask, workspace_settings.rules.deny),
            "titles": False,  # a title request would not count towards the run's limits
        }

    return build_options


def _open_database(folders: AppFolders, server: str | None) -> RunDatabase:
    if server is None:
        make_private_folder(folders.data)
    return RunDatabase(server or f"sqlite:///{folders.runs_file}")
