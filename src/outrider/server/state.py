"""Optional parts of a server: background jobs, model questions and additional routes."""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from starlette.routing import BaseRoute

from outrider.config.settings import Settings
from outrider.engine.engine import Engine
from outrider.engine.frontend import QuestionQueue
from outrider.errors import ConfigurationError, SessionNotFoundError

if TYPE_CHECKING:
    from outrider.background.jobs import JobClient


JobClientFactory = Callable[[], "AbstractAsyncContextManager[JobClient]"]


class BackgroundJobs:
    """Opens the job client on first use. `start_worker` ensures that a worker executes submitted runs; runs work in
    `workspace` unless another folder is named."""

    def __init__(
        self, open: JobClientFactory, start_worker: Callable[[], object] = bool, *, workspace: Path | None = None
    ) -> None:
        self.workspace = workspace or Path.cwd()
        self._open = open
        self._start_worker = start_worker
        self._client: JobClient | None = None
        self._open_lock = asyncio.Lock()
        self._exit_stack = AsyncExitStack()

    async def open_client(self) -> "JobClient":
        """Returns the job client. Raises ConfigurationError if the `background` extra is not installed."""
        async with self._open_lock:
            if self._client is None:
                if find_spec("dbos") is None:
                    raise ConfigurationError("background runs are not installed: pip install 'outrider[background]'")
                self._client = await self._exit_stack.enter_async_context(self._open())
        return self._client

    async def ensure_worker(self) -> None:
        await asyncio.to_thread(self._start_worker)

    async def is_run(self, session_id: str) -> bool:
        """Returns whether the session belongs to a background run."""
        if find_spec("dbos") is None:
            return False
        try:
            await (await self.open_client()).get_run(session_id)
        except SessionNotFoundError:
            return False
        return True

    async def resume_waiting_runs(self) -> None:
        """Starts a worker if an answer has made a run ready: a waiting run is held by no worker."""
        if find_spec("dbos") is not None and await (await self.open_client()).has_work():
            await self.ensure_worker()

    async def aclose(self) -> None:
        await self._exit_stack.aclose()


def create_background_jobs(settings: Settings, engine: Engine, server: str | None = None) -> BackgroundJobs:
    """Returns the jobs of this user and machine, for which a worker is started on demand, or those of the Postgres
    `server`, whose users run their own workers."""

    def open_jobs() -> "AbstractAsyncContextManager[JobClient]":
        from outrider.background.factory import jobs_with_store

        return jobs_with_store(engine.store, settings.folders, server)

    def start_worker() -> None:
        from outrider.background.local_worker import ensure_worker

        if server is None and not settings.missing:
            ensure_worker(settings.folders, os.environ)

    return BackgroundJobs(open_jobs, start_worker, workspace=settings.workspace)


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """`background` are the server's runs, `questions` the open questions of its models, `routes` additional routes
    outside the API."""

    background: BackgroundJobs | None = None
    questions: QuestionQueue | None = None
    routes: Sequence[BaseRoute] = ()
