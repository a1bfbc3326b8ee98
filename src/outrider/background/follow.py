"""Follows a run from any process: streams the stored changes of its sessions in order, and the run's state."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple, Self

import msgspec
from msgspec.structs import replace
from sqlalchemy.exc import SQLAlchemyError

from outrider.background.database import is_outage
from outrider.background.jobs import JobClient
from outrider.background.records import Run
from outrider.errors import OutriderError, SessionNotFoundError, StoreUnavailableError
from outrider.sessions.records import (
    ApprovalChange,
    Change,
    DamagedChange,
    DeletedChange,
    InboxChange,
    MessageChange,
    PartChange,
    SessionChange,
)
from outrider.sessions.store import Store
from outrider.types.parts import SubtaskPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolRunning


class ChildChange(msgspec.Struct, frozen=True, tag="called"):
    """A change in the session of a called agent, `depth` calls below the run. Its sequence number belongs to that
    session, not to the run's."""

    session_id: str
    agent: str
    depth: int
    change: Change


def child_session_of(change: Change) -> str:
    """Returns the id of the child session whose call this change starts, updates or ends; "" if there is none."""
    match change:
        case PartChange(part=SubtaskPart(child_session_id=str(child))):
            return child
        case PartChange(part=ToolPart(state=ToolRunning() | ToolCompleted() | ToolError() as state)):
            return str(state.metadata.get("child_session_id") or "")
        case _:
            return ""


def ends_call(change: Change) -> bool:
    """Returns whether the change ends a tool call."""
    return isinstance(change, PartChange) and isinstance(change.part, ToolPart) and change.part.ended


async def active_child_sessions(store: Store, session_id: str) -> list[str]:
    """Returns the child sessions that work for the session's last answer now."""
    messages = (await store.load(session_id, limit=1)).messages
    parts = [PartChange(0, part) for part in messages[-1].parts] if messages else []
    ended_ids = {child_session_of(part) for part in parts if ends_call(part)}
    called_ids = dict.fromkeys(child_session_of(part) for part in parts)
    return [child for child in called_ids if child and child not in ended_ids]


_MAX_BUFFERED_CHANGES = 1000  # further changes stay in the store until there is room

LastSequences = dict[str, int]
"""The last sequence number that was read or returned, by session."""


class ChangeSource(NamedTuple):
    """The session that a change comes from: the run's own (`depth` 0), or a child session `depth` calls below it."""

    session_id: str
    depth: int
    agent: str = ""

    def wrap_change(self, change: Change) -> Change | ChildChange:
        return ChildChange(self.session_id, self.agent, self.depth, change) if self.depth else change


class SourcedChange(NamedTuple):
    session_id: str
    seq: int
    item: Change | ChildChange


class RunChangeReader:
    """Reads changes from the store as they are written, and resumes at the last sequence number after a store failure.
    With `called` it also reads child sessions; all changes of a child come before the end of its call."""

    def __init__(self, store: Store, run_id: str, *, after: int = 0, pause: float = 0.5, called: bool = False) -> None:
        self._store = store
        self._pause = pause
        self._include_children = called
        self._run_id = run_id
        self._depths = {run_id: 0}
        self._read_sequences: LastSequences = {run_id: after}
        self._returned_sequences: LastSequences = {run_id: after}
        self._buffer: asyncio.Queue[SourcedChange] = asyncio.Queue(_MAX_BUFFERED_CHANGES)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        self._tasks[self._run_id] = asyncio.create_task(self._read_with_retry(self._run_id))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (tasks := list(self._tasks.values())):
            task.cancel()
        await asyncio.wait(tasks)

    async def next_change(self, seconds: float) -> Change | ChildChange | None:
        """Returns the next change; None after `seconds` without one, so that the caller can poll the run's state.
        Raises the error of a reader task that failed."""
        for task in self._tasks.values():
            if task.done() and not task.cancelled():
                task.result()
        try:
            async with asyncio.timeout(seconds):  # `wait_for` may lose a cancellation that arrives with a change
                sourced = await self._buffer.get()
        except TimeoutError:
            return None
        self._returned_sequences[sourced.session_id] = sourced.seq
        return sourced.item

    async def remaining_changes(self) -> AsyncGenerator[Change | ChildChange, None]:
        """Yields all stored changes that were not returned yet."""
        for session_id in reversed(list(self._depths)):  # changes of a child come before the end of its call
            for sourced in await self._stored_changes(session_id, dict(self._returned_sequences)):
                yield sourced.item
                self._returned_sequences[sourced.session_id] = sourced.seq

    async def _read_with_retry(self, session_id: str) -> None:
        while True:
            try:
                return await self._read_changes(session_id)
            except (StoreUnavailableError, OSError):
                await asyncio.sleep(self._pause)
            except SessionNotFoundError:
                if session_id == self._run_id:
                    raise
                await asyncio.sleep(self._pause)  # the call is stored before the child session is created

    async def _read_changes(self, session_id: str) -> None:
        source, after = await self._load_source(session_id), self._read_sequences.get(session_id, 0)
        if self._include_children and after:
            for child in await active_child_sessions(self._store, session_id):
                self._start_child(child, source)
        async with aclosing(self._store.changes(session_id, after=after)) as changes:
            async for change in changes:
                child = self._register_child(change, source)
                if child and ends_call(change):
                    await self._drain_child(child)
                await self._buffer.put(SourcedChange(session_id, change.seq, source.wrap_change(change)))
                self._read_sequences[session_id] = change.seq
                if child and not ends_call(change):
                    self._start_child(child, source)

    def _start_child(self, child: str, caller: ChangeSource) -> None:
        if child not in self._tasks:
            self._depths.setdefault(child, caller.depth + 1)
            self._tasks[child] = asyncio.create_task(self._read_with_retry(child))

    async def _drain_child(self, child: str) -> None:
        """Cancels the child's reader task and buffers the rest of its changes, because its call has ended."""
        if task := self._tasks.get(child):
            task.cancel()
            await asyncio.wait([task])
        for sourced in await self._stored_changes(child, dict(self._read_sequences)):
            await self._buffer.put(sourced)
            self._read_sequences[sourced.session_id] = sourced.seq

    async def _stored_changes(self, session_id: str, sequences: LastSequences) -> list[SourcedChange]:
        """Returns the stored changes of a session after the given sequence numbers; the changes of each child come
        before the end of its call."""
        try:
            source = await self._load_source(session_id)
        except SessionNotFoundError:
            if session_id == self._run_id:
                raise
            return []  # the worker died before it created the child session
        stored: list[SourcedChange] = []
        changes = self._store.changes(session_id, after=sequences.get(session_id, 0), follow=False)
        async with aclosing(changes):
            async for change in changes:
                if child := self._register_child(change, source):
                    stored += await self._stored_changes(child, sequences)
                stored.append(SourcedChange(session_id, change.seq, source.wrap_change(change)))
                sequences[session_id] = change.seq
        return stored

    def _register_child(self, change: Change, source: ChangeSource) -> str:
        child = child_session_of(change) if self._include_children else ""
        if child:
            self._depths.setdefault(child, source.depth + 1)
        return child

    async def _load_source(self, session_id: str) -> ChangeSource:
        depth = self._depths[session_id]
        return ChangeSource(session_id, depth, (await self._store.get(session_id)).agent if depth else "")


__all__ = [
    "ApprovalChange",
    "Change",
    "ChildChange",
    "DamagedChange",
    "DeletedChange",
    "InboxChange",
    "MessageChange",
    "PartChange",
    "SessionChange",
    "follow_run",
    "stored_changes",
    "wait_until_unattended",
]

POLL_SECONDS = 0.5


async def follow_run(
    jobs: JobClient, run_id: str, *, after: int = 0, called: bool = False, poll: float = POLL_SECONDS
) -> AsyncGenerator[Change | ChildChange | Run, None]:
    """Yields the run first and whenever its state changes, and every change with a sequence number above `after`,
    drafts of answers included. While the database cannot be reached, the run is `waiting_for` "database". It returns
    when the run is over. With `called` it includes child sessions. A caller that reconnects passes the last sequence
    number of the run's own session, and receives the changes of active children again. Closing the generator does not
    affect the run."""
    run = await jobs.get_run(run_id)
    yield run
    async with RunChangeReader(jobs.store, run_id, after=after, pause=poll, called=called) as reader:
        while not run.is_over:
            if change := await reader.next_change(poll):
                yield change
                continue
            current = await _poll_run(jobs, run)
            if (current.state, current.waiting_for) != (run.state, run.waiting_for):
                yield current
            run = current
    async with aclosing(reader.remaining_changes()) as remaining:
        async for change in remaining:
            yield change


async def _poll_run(jobs: JobClient, run: Run) -> Run:
    try:
        return await jobs.get_run(run.id)
    except (SQLAlchemyError, StoreUnavailableError) as problem:
        if isinstance(problem, SQLAlchemyError) and not is_outage(problem):
            raise
        return replace(run, waiting_for="database")


def stored_changes(jobs: JobClient, run_id: str, *, after: int = 0) -> AsyncGenerator[Change | ChildChange, None]:
    """Yields the changes of a run and of its child sessions that are stored now."""
    return RunChangeReader(jobs.store, run_id, after=after, called=True).remaining_changes()


async def wait_until_unattended(jobs: JobClient, run_id: str, *, pause: float = 1.5) -> None:
    """Returns once two polls in a row found that no worker executes the run."""
    unattended_polls = 0
    while unattended_polls < 2:
        await asyncio.sleep(pause)
        try:
            unattended_polls = unattended_polls + 1 if await jobs.unattended_runs([await jobs.get_run(run_id)]) else 0
        except (SQLAlchemyError, OutriderError):
            unattended_polls = 0  # the caller's own request reports the error
