"""Optional parts of a server: background jobs, model questions and additional routes."""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Self

import msgspec
from starlette.routing import BaseRoute

from outrider.config.settings import Settings
from outrider.engine.engine import Engine
from outrider.engine.frontend import QuestionQueue, list_processes
from outrider.errors import ConfigurationError, OutriderError, SessionNotFoundError
from outrider.types.events import Event

if TYPE_CHECKING:
    from outrider.background.jobs import JobClient
    from outrider.engine.mcp_servers import ServerLogins


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
    outside the API. `settings` are those of the engine, and `server_logins` the logins at its MCP servers."""

    background: BackgroundJobs | None = None
    questions: QuestionQueue | None = None
    routes: Sequence[BaseRoute] = ()
    settings: Settings | None = None
    server_logins: "ServerLogins | None" = None


IDLE_SECONDS = 60.0  # a session without events is closed after this
CHECK_SECONDS = 10.0


class IdleSessionCloser:
    """Closes sessions in which nothing happens, so that a terminal can open them. A session stays open while it has a
    turn, a process or an open question, and while a model or effort is chosen that ends with it."""

    def __init__(self, engine: Engine, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._engine = engine
        self._idle_seconds = idle_seconds
        self._active_at: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], object] = bool

    async def __aenter__(self) -> Self:
        self._unsubscribe = self._engine.bus.subscribe_all(self._note_event)
        self._task = asyncio.create_task(self._keep_closing())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _note_event(self, event: Event) -> None:
        self._active_at[event.session_id] = monotonic()

    async def _keep_closing(self) -> None:
        while True:
            await asyncio.sleep(min(CHECK_SECONDS, self._idle_seconds))
            with suppress(OutriderError):  # an outage of the store: the sessions are closed later
                await self.close_idle_sessions()

    async def close_idle_sessions(self) -> None:
        now = monotonic()
        asking = {approval.session_id for approval in await self._engine.approvals()}
        for session_id, live in list(self._engine.live.items()):
            active_at = self._active_at.setdefault(session_id, now)
            is_kept = live.in_turn or live.model or live.effort or session_id in asking
            if is_kept or now - active_at < self._idle_seconds:
                continue
            if not any(process.alive for process in list_processes(self._engine, session_id)):
                await self._engine.close(session_id)
        self._active_at = {name: at for name, at in self._active_at.items() if name in self._engine.live}
