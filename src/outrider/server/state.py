"""What not every server has besides its engine and its feeds."""

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
from outrider.engine.frontend import OpenQuestions
from outrider.errors import ConfigurationError, SessionNotFoundError

if TYPE_CHECKING:
    from outrider.background.jobs import Jobs


Open = Callable[[], "AbstractAsyncContextManager[Jobs]"]


class Background:
    """`wake` sees to it that somebody works on what was submitted, in `workspace` unless another folder is named."""

    def __init__(self, open: Open, wake: Callable[[], object] = bool, *, workspace: Path | None = None) -> None:
        self.workspace = workspace or Path.cwd()
        self._open = open
        self._wake = wake
        self._jobs: Jobs | None = None
        self._first = asyncio.Lock()
        self._opened = AsyncExitStack()

    async def jobs(self) -> "Jobs":
        async with self._first:
            if self._jobs is None:
                if find_spec("dbos") is None:
                    raise ConfigurationError("background runs are not installed: pip install 'outrider[background]'")
                self._jobs = await self._opened.enter_async_context(self._open())
        return self._jobs

    async def wake(self) -> None:
        await asyncio.to_thread(self._wake)

    async def has(self, session_id: str) -> bool:
        """Whether a session is that of a run."""
        if find_spec("dbos") is None:
            return False
        try:
            await (await self.jobs()).show(session_id)
        except SessionNotFoundError:
            return False
        return True

    async def answered(self) -> None:
        """A question that nobody here waits for: perhaps a run does, which no worker has held since."""
        if find_spec("dbos") is not None and await (await self.jobs()).busy():
            await self.wake()

    async def aclose(self) -> None:
        await self._opened.aclose()


def background_of(settings: Settings, engine: Engine, server: str | None = None) -> Background:
    """The runs of this user on this machine, for which a worker starts when there is work and none; or those of a
    database `server`, whose users have workers of their own."""

    def open_jobs() -> "AbstractAsyncContextManager[Jobs]":
        from outrider.background.factory import jobs_beside

        return jobs_beside(engine.store, settings.folders, server)

    def wake() -> None:
        from outrider.background.local_worker import ensure_worker

        if server is None and not settings.missing:
            ensure_worker(settings.folders, os.environ)

    return Background(open_jobs, wake, workspace=settings.workspace)


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """`background` are its runs, `questions` those of its models, `routes` are such that are not the API's."""

    background: Background | None = None
    questions: OpenQuestions | None = None
    routes: Sequence[BaseRoute] = ()
