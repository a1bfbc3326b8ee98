"""A run as it goes on, seen from anywhere: what its session keeps, in order, and where the run stands."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from sqlalchemy.exc import SQLAlchemyError

from outrider.background.jobs import Jobs
from outrider.background.runs import Run
from outrider.errors import OutriderError, StoreUnavailableError
from outrider.sessions.records import ApprovalChange, Change, MessageChange, PartChange, SessionChange
from outrider.sessions.store import Store

__all__ = ["ApprovalChange", "Change", "MessageChange", "PartChange", "SessionChange", "follow", "until_left_alone"]

POLL = 0.5
_AT_MOST = 1000  # changes that wait to be taken; the rest stays in the store


async def follow(jobs: Jobs, run_id: str, *, after: int = 0, poll: float = POLL) -> AsyncGenerator[Change | Run, None]:
    """The run first and whenever it stands somewhere else, and every change newer than `after`, drafts of answers
    included; it ends when the run is over. Whoever leaves and comes back gives the last number that was seen. To leave
    does nothing to the run."""
    run = await jobs.show(run_id)
    yield run
    async with _Reader(jobs.store, run_id, after, poll) as reader:
        while not run.is_over:
            if change := await reader.next(poll):
                yield change
                continue
            now = await jobs.show(run_id)
            if now.state != run.state:
                yield now
            run = now
        last = reader.last
    async with aclosing(jobs.store.changes(run_id, after=last, follow=False)) as rest:
        async for change in rest:
            yield change


async def until_left_alone(jobs: Jobs, run_id: str, *, pause: float = 5.0) -> None:
    """Returns once a run was found twice in a row to have nobody who goes on with it."""
    found = 0
    while found < 2:
        await asyncio.sleep(pause)
        try:
            found = found + 1 if await jobs.left_alone([await jobs.show(run_id)]) else 0
        except (SQLAlchemyError, OutriderError):
            found = 0  # whoever follows the run hears of it there


class _Reader:
    """Takes changes from the store as they come, and from where it was when the store could not be reached."""

    def __init__(self, store: Store, session_id: str, after: int, pause: float) -> None:
        self._store = store
        self._pause = pause
        self._session_id = session_id
        self._read = after
        self._found: asyncio.Queue[Change] = asyncio.Queue(_AT_MOST)
        self.last = after

    async def __aenter__(self) -> "_Reader":
        self._task = asyncio.create_task(self._read_on())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def next(self, seconds: float) -> Change | None:
        """None if there is none for so long, however many came before: then it is time to look at the run."""
        if self._task.done():
            self._task.result()
        try:
            async with asyncio.timeout(seconds):  # `wait_for` may forget a cancellation that comes with a change
                change = await self._found.get()
        except TimeoutError:
            return None
        self.last = change.seq
        return change

    async def _read_on(self) -> None:
        while True:
            try:
                return await self._read_all()
            except (StoreUnavailableError, OSError):
                await asyncio.sleep(self._pause)

    async def _read_all(self) -> None:
        async with aclosing(self._store.changes(self._session_id, after=self._read)) as changes:
            async for change in changes:
                await self._found.put(change)
                self._read = change.seq
