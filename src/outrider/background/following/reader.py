"""Reads what a run keeps while it goes on: its own session, and those that its agents open for each other."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple, Self

from outrider.background.following.called import Called, at_work, called_by, has_ended
from outrider.errors import SessionNotFoundError, StoreUnavailableError
from outrider.sessions.records import Change
from outrider.sessions.store import Store

_AT_MOST = 1000  # changes that wait to be taken; the rest stays in the store

Reached = dict[str, int]
"""Of each session the last number that was read, or given."""


class Voice(NamedTuple):
    """Whose session is read: the run's own, or, `depth` calls below it, that of an agent which was called."""

    session_id: str
    depth: int
    agent: str = ""

    def tell(self, change: Change) -> Change | Called:
        return Called(self.session_id, self.agent, self.depth, change) if self.depth else change


class Found(NamedTuple):
    session_id: str
    seq: int
    news: Change | Called


class Reader:
    """Takes changes from the store as they come, and from where it was when the store could not be reached. With
    `called` also those of the agents that are called: all that they said stands before the end of their call."""

    def __init__(self, store: Store, run_id: str, *, after: int = 0, pause: float = 0.5, called: bool = False) -> None:
        self._store = store
        self._pause = pause
        self._called = called
        self._run_id = run_id
        self._depths = {run_id: 0}
        self._read: Reached = {run_id: after}
        self._given: Reached = {run_id: after}
        self._found: asyncio.Queue[Found] = asyncio.Queue(_AT_MOST)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        self._tasks[self._run_id] = asyncio.create_task(self._read_on(self._run_id))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (tasks := list(self._tasks.values())):
            task.cancel()
        await asyncio.wait(tasks)

    async def next(self, seconds: float) -> Change | Called | None:
        """None if there is none for so long, however many came before: then it is time to look at the run."""
        for task in self._tasks.values():
            if task.done() and not task.cancelled():
                task.result()
        try:
            async with asyncio.timeout(seconds):  # `wait_for` may forget a cancellation that comes with a change
                found = await self._found.get()
        except TimeoutError:
            return None
        self._given[found.session_id] = found.seq
        return found.news

    async def rest(self) -> AsyncGenerator[Change | Called, None]:
        """All that was kept until now and was not given yet."""
        for session_id in reversed(list(self._depths)):  # who was called speaks before the end of the call
            for found in await self._kept(session_id, dict(self._given)):
                yield found.news
                self._given[found.session_id] = found.seq

    async def _read_on(self, session_id: str) -> None:
        while True:
            try:
                return await self._read_all(session_id)
            except (StoreUnavailableError, OSError):
                await asyncio.sleep(self._pause)
            except SessionNotFoundError:
                if session_id == self._run_id:
                    raise
                await asyncio.sleep(self._pause)  # an agent is told of before its session is there

    async def _read_all(self, session_id: str) -> None:
        voice, after = await self._voice(session_id), self._read.get(session_id, 0)
        if self._called and after:
            for child in await at_work(self._store, session_id):
                self._hear_of(child, voice)
        async with aclosing(self._store.changes(session_id, after=after)) as changes:
            async for change in changes:
                child = self._child(change, voice)
                if child and has_ended(change):
                    await self._hear_out(child)
                await self._found.put(Found(session_id, change.seq, voice.tell(change)))
                self._read[session_id] = change.seq
                if child and not has_ended(change):
                    self._hear_of(child, voice)

    def _hear_of(self, child: str, caller: Voice) -> None:
        if child not in self._tasks:
            self._depths.setdefault(child, caller.depth + 1)
            self._tasks[child] = asyncio.create_task(self._read_on(child))

    async def _hear_out(self, child: str) -> None:
        """Its call has ended: what is left of it comes now, and then no more."""
        if task := self._tasks.get(child):
            task.cancel()
            await asyncio.wait([task])
        for found in await self._kept(child, dict(self._read)):
            await self._found.put(found)
            self._read[found.session_id] = found.seq

    async def _kept(self, session_id: str, reached: Reached) -> list[Found]:
        """What one session holds beyond what was reached, each agent that it called before the end of that call."""
        try:
            voice = await self._voice(session_id)
        except SessionNotFoundError:
            if session_id == self._run_id:
                raise
            return []  # its caller was killed before it was there
        kept: list[Found] = []
        changes = self._store.changes(session_id, after=reached.get(session_id, 0), follow=False)
        async with aclosing(changes):
            async for change in changes:
                if child := self._child(change, voice):
                    kept += await self._kept(child, reached)
                kept.append(Found(session_id, change.seq, voice.tell(change)))
                reached[session_id] = change.seq
        return kept

    def _child(self, change: Change, voice: Voice) -> str:
        child = called_by(change) if self._called else ""
        if child:
            self._depths.setdefault(child, voice.depth + 1)
        return child

    async def _voice(self, session_id: str) -> Voice:
        depth = self._depths[session_id]
        return Voice(session_id, depth, (await self._store.get(session_id)).agent if depth else "")
