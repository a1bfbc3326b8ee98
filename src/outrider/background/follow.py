"""A run as it goes on, seen from anywhere: what its sessions keep, in order, and where the run stands."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple, Self

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from outrider.background.jobs import Jobs
from outrider.background.records import Run
from outrider.errors import OutriderError, SessionNotFoundError, StoreUnavailableError
from outrider.sessions.records import ApprovalChange, Change, MessageChange, PartChange, SessionChange
from outrider.sessions.store import Store
from outrider.types.parts import SubtaskPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolRunning


class Called(msgspec.Struct, frozen=True, tag="called"):
    """A change in the session of an agent that was called, `depth` calls below the run; its number is one of that
    session, not of the run's."""

    session_id: str
    agent: str
    depth: int
    change: Change


def called_by(change: Change) -> str:
    """The session of the agent whose call is under way or has ended with this change; "" if there is none."""
    match change:
        case PartChange(part=SubtaskPart(child_session_id=str(child))):
            return child
        case PartChange(part=ToolPart(state=ToolRunning() | ToolCompleted() | ToolError() as state)):
            return str(state.metadata.get("child_session_id") or "")
        case _:
            return ""


def has_ended(change: Change) -> bool:
    """Whether it is the end of a call."""
    return isinstance(change, PartChange) and isinstance(change.part, ToolPart) and change.part.ended


async def at_work(store: Store, session_id: str) -> list[str]:
    """The sessions of agents that work for a session's last answer now."""
    messages = (await store.load(session_id, limit=1)).messages
    parts = [PartChange(0, part) for part in messages[-1].parts] if messages else []
    ended = {called_by(part) for part in parts if has_ended(part)}
    called = dict.fromkeys(called_by(part) for part in parts)
    return [child for child in called if child and child not in ended]


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


__all__ = [
    "ApprovalChange",
    "Called",
    "Change",
    "MessageChange",
    "PartChange",
    "SessionChange",
    "follow",
    "so_far",
    "until_left_alone",
]

POLL = 0.5


async def follow(
    jobs: Jobs, run_id: str, *, after: int = 0, called: bool = False, poll: float = POLL
) -> AsyncGenerator[Change | Called | Run, None]:
    """The run first and whenever it stands somewhere else, and every change newer than `after`, drafts of answers
    included; it ends when the run is over. With `called` also what the agents do that it calls. Whoever leaves and
    comes back gives the last number of the run's own that was seen, and hears again of the agents that are at work.
    To leave does nothing to the run."""
    run = await jobs.show(run_id)
    yield run
    async with Reader(jobs.store, run_id, after=after, pause=poll, called=called) as reader:
        while not run.is_over:
            if change := await reader.next(poll):
                yield change
                continue
            now = await jobs.show(run_id)
            if now.state != run.state:
                yield now
            run = now
    async with aclosing(reader.rest()) as rest:
        async for change in rest:
            yield change


def so_far(jobs: Jobs, run_id: str, *, after: int = 0) -> AsyncGenerator[Change | Called, None]:
    """What was kept of a run and of the agents that it called, until now."""
    return Reader(jobs.store, run_id, after=after, called=True).rest()


async def until_left_alone(jobs: Jobs, run_id: str, *, pause: float = 5.0) -> None:
    """Returns once a run was found twice in a row to have nobody who goes on with it."""
    found = 0
    while found < 2:
        await asyncio.sleep(pause)
        try:
            found = found + 1 if await jobs.left_alone([await jobs.show(run_id)]) else 0
        except (SQLAlchemyError, OutriderError):
            found = 0  # whoever follows the run hears of it there
