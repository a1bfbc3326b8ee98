"""Stands around the calls of an engine: keeps what files held before, and writes down what became of them."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from outrider.agents.run_context import AgentContext, Around
from outrider.errors import ConfigurationError, OutriderError, StoreError, ToolFailure
from outrider.event_bus import EventBus
from outrider.permissions.modes import shape_of
from outrider.sessions import snapshots as kept
from outrider.sessions.journal import Journal
from outrider.tools.context import ToolContext
from outrider.tools.edit_transaction import Change, clear_leftovers
from outrider.tools.threads import Threads
from outrider.tools.tool import Tool
from outrider.types.events import ErrorEvent, ProcessExitedEvent, ProcessStartedEvent
from outrider.types.messages import Message
from outrider.types.parts import PatchPart, TextPart, ToolPart


def may_change_anything(call: ToolPart, tool: Tool, workspace: Path, *, built_in: bool) -> bool:
    """Built-in tools that write tell which files; commands, one's own and foreign tools do not, unless they are
    known to read only. What a process in the background does belongs to the call that started it."""
    if tool.read_only or tool.options.delegates:
        return False
    match shape_of(tool.name).kind if built_in else "unknown":
        case "unknown":
            return True
        case "shell" if tool.name != "process":
            return not _only_reads(call, workspace)
        case _:
            return False


def _only_reads(call: ToolPart, workspace: Path) -> bool:
    from outrider.permissions.policy import assess  # with the first command: a shell's grammar takes long to load

    return assess(call.tool, call.state.input, workspace=str(workspace)).action == "shell that reads"


T = TypeVar("T")
FOLDER = "undo"
MOST_BYTES = 8 * 1024 * 1024 * 1024  # over all workspaces


class SnapshotLocations:
    """One folder below `data` for each workspace, opened when it is first needed."""

    def __init__(self, data: Path) -> None:
        self._data = data / FOLDER
        self._opened: dict[Path, kept.Snapshots | str] = {}
        self._lock = asyncio.Lock()
        self._threads = Threads(8)

    async def find(self, workspace: Path) -> "kept.Snapshots | str":
        """The workspace's changes, or the reason why none are kept. Raises StoreError if that does not work now."""
        async with self._lock:
            if workspace not in self._opened:
                self._opened[workspace] = await self.run(lambda: self._open(workspace))
            return self._opened[workspace]

    def has(self, workspace: Path) -> bool:
        """Whether anything was ever kept for it."""
        return self._folder(workspace).is_dir()

    async def run(self, function: Callable[[], T]) -> T:
        """In a thread: looking at files takes its time."""
        return await self._threads.run(function)

    async def close(self) -> None:
        used = [opened for opened in self._opened.values() if isinstance(opened, kept.Snapshots)]
        for opened in used:
            await self.run(opened.close)
        if used:
            await self.run(lambda: kept.shed(self._data, MOST_BYTES))
        self._opened.clear()
        self._threads.close()

    def _open(self, workspace: Path) -> "kept.Snapshots | str":
        try:
            return kept.Snapshots(self._folder(workspace), workspace)
        except ConfigurationError as error:
            return error.message

    def _folder(self, workspace: Path) -> Path:
        return self._data / sha256(os.fsencode(workspace.resolve())).hexdigest()[:16]


NAMED = 50  # files
_DONE = {
    "undo": "The user has undone changes. These files hold again what they held before them: {files}.",
    "redo": "The user has redone changes that had been undone, in these files: {files}.",
}
_LEFT = " Somebody else has changed these since, so they were left as they are: {files}."


async def write_down(journal: Journal, changed: "kept.ChangeSet", left: Sequence[str] = ()) -> str:
    """Once, whoever tries; says in which message."""
    messages = journal.session.messages
    for message in messages:
        if any(part.hash == changed.id for part in message.get_parts_by_type(PatchPart)):
            return message.id
    part = PatchPart(changed.id, changed.paths)
    if changed.origin.kind != "call":
        text = TextPart(_words(changed, left), synthetic=True)
        return (await journal.add_message(Message("user", [part, text]))).id
    beside = next((one for one in messages if any(known.id == changed.origin.part_id for known in one.parts)), None)
    if beside is None:
        return ""
    await journal.put_part(part, beside)
    return beside.id


def _words(changed: "kept.ChangeSet", left: Sequence[str]) -> str:
    done = _DONE[changed.origin.kind].format(files=_named(changed.paths))
    return done + (_LEFT.format(files=_named(left)) if left else "")


def _named(files: Sequence[str]) -> str:
    more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
    return (", ".join(files[:NAMED]) or "none") + more


Key = tuple[str, str]  # a session and one of its calls
Planned = dict[Path, str | None]  # files, and the hashes that they shall have


class _Call(msgspec.Struct, frozen=True):
    """A call at work, with what is needed to write down what it changed."""

    part: ToolPart
    seat: AgentContext
    origin: "kept.Origin"

    @property
    def key(self) -> Key:
        return self.origin.session_id, self.origin.call_id


class _Lasting(msgspec.Struct, frozen=True):
    """A call that has ended while its process goes on. Unless it was cut short, somebody else has the time to change
    files meanwhile."""

    call: _Call
    snapshots: "kept.Snapshots"
    before: "kept.Snapshot"
    doubtful: bool


class Undo:
    """One per engine; `around` goes around every call, `keep` around what the editor writes.

    A process in the background is looked at when its call ends, when it ends itself, and when somebody asks."""

    def __init__(self, data: Path, bus: EventBus) -> None:
        self.places = SnapshotLocations(data)
        self._bus = bus
        self._calls: dict[Key, _Call] = {}
        self._callers: dict[str, kept.Caller] = {}
        self._running: set[Key] = set()
        self._lasting: dict[Key, _Lasting] = {}
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._stop = [bus.subscribe(ProcessStartedEvent, self._started), bus.subscribe(ProcessExitedEvent, self._ended)]

    def watching(self, built_in: Collection[str]) -> Around:
        """For the calls of one crew, in which some tools are the built-in ones."""
        return lambda part, tool, seat: self.around(part, tool, seat, built_in=tool.name in built_in)

    @asynccontextmanager
    async def around(
        self, part: ToolPart, tool: Tool, seat: AgentContext, *, built_in: bool
    ) -> AsyncGenerator[None, None]:
        call = self._calls[seat.session.id, part.call_id] = _Call(part, seat, self._origin(part, seat))
        try:
            if not may_change_anything(part, tool, seat.workspace, built_in=built_in):
                yield
                return
            async with self._between(call, None):
                yield
        finally:
            self._calls.pop(call.key, None)

    @asynccontextmanager
    async def keep(self, context: ToolContext, changes: Sequence[Change]) -> AsyncGenerator[None, None]:
        """Files outside the workspace are written without an undo; whoever allowed that knew the path."""
        call = self._calls.get((context.session_id, context.call_id))
        if call is None:
            yield
            return
        planned = {Path(one.place.real): None if one.after is None else kept.name_of(one.after) for one in changes}
        async with self._between(call, planned):
            yield

    async def recover(self, journal: Journal) -> None:
        """What a killed program left under way is written down, and what the transcript does not know yet is added."""
        workspace, session_id = Path(journal.session.workspace_directory or "."), journal.session.id
        if not self.places.has(workspace):
            return
        with suppress(StoreError):
            found = await self.places.find(workspace)
            if isinstance(found, str):
                return
            await self.places.run(lambda: _tidy_up(found, session_id))
            await self.places.run(lambda: found.recover(session_id))
            for changed in await self.places.run(lambda: found.of_session(session_id)):
                if changed.origin.session_id == session_id:
                    await write_down(journal, changed)

    async def look(self, session_id: str) -> None:
        """Write down what processes in the background have changed so far."""
        for key, lasting in list(self._lasting.items()):
            if key[0] in _family(session_id, self._callers):
                await self._finish(lasting, goes_on=True)

    async def settle(self, session_id: str) -> None:
        """The session closes, and its processes have ended: write down what is left to."""
        for task in [task for task, owner in self._tasks.items() if owner == session_id]:
            await task
        family = _family(session_id, self._callers)
        for key in [key for key in self._lasting if key[0] in family]:
            await self._finish(self._lasting.pop(key), goes_on=False)
        for member in family:
            self._callers.pop(member, None)

    async def close(self) -> None:
        for stop in self._stop:
            stop()
        for task in list(self._tasks):
            await task
        for key in list(self._lasting):
            await self._finish(self._lasting.pop(key), goes_on=False)
        await self.places.close()

    @asynccontextmanager
    async def _between(self, call: _Call, planned: Planned | None) -> AsyncGenerator[None, None]:
        """With the files as they were before kept, and what changed written down afterwards, whatever happens."""
        begun = await self._begin(call, planned)
        cut_short = False
        try:
            yield
        except asyncio.CancelledError:
            cut_short = True
            raise
        finally:
            if begun is not None:
                await self._ending(msgspec.structs.replace(begun, doubtful=not cut_short))

    async def _begin(self, call: _Call, planned: Planned | None) -> _Lasting | None:
        """None where nothing is kept. Where undo was promised, a call that cannot be undone for want of space is not
        run; elsewhere it is, and somebody is told."""
        try:
            found = await self.places.find(call.seat.workspace)
            if isinstance(found, str):
                return None
            inside = _inside(planned, found.workspace)
            if inside is not None and not inside:
                return None
            return _Lasting(call, found, await self._look(found, call.origin, inside), doubtful=False)
        except StoreError as error:
            if call.seat.session.mode == "background":
                raise ToolFailure(f"what it changes could not be undone ({error.message}). It was not run") from error
            self._warn(call, f"{call.part.tool} runs without an undo: {error.message}")
            return None

    async def _look(
        self, snapshots: "kept.Snapshots", origin: "kept.Origin", planned: Planned | None
    ) -> "kept.Snapshot":
        looking = asyncio.ensure_future(self.places.run(lambda: snapshots.before(planned, origin, planned)))
        try:
            return await asyncio.shield(looking)
        except asyncio.CancelledError:
            await asyncio.wait([looking])
            if not looking.exception():
                await self.places.run(lambda: snapshots.drop(looking.result()))
            raise

    async def _ending(self, lasting: _Lasting) -> None:
        goes_on = lasting.call.key in self._running and lasting.before.paths is None
        if goes_on:
            self._lasting[lasting.call.key] = lasting
        certain = msgspec.structs.replace(lasting, doubtful=False)
        await asyncio.shield(self._task(self._finish(certain, goes_on=goes_on), lasting.call))

    async def _finish(self, lasting: _Lasting, *, goes_on: bool) -> None:
        snapshots, before = lasting.snapshots, lasting.before
        try:
            changed = await self.places.run(lambda: snapshots.after(before, doubtful=lasting.doubtful, goes_on=goes_on))
        except OutriderError as error:
            self._warn(lasting.call, f"what {lasting.call.part.tool} changed could not be kept: {error.message}")
            return
        if changed is not None:
            with suppress(StoreError):  # a full disk lets it wait, and what was lost is added when it opens again
                await write_down(lasting.call.seat.journal, changed)

    def _origin(self, part: ToolPart, seat: AgentContext) -> "kept.Origin":
        session = seat.session
        if seat.call_id and session.parent_id:
            self._callers[session.id] = kept.Caller(session.parent_id, seat.call_id)
        callers: list[kept.Caller] = []
        while caller := self._callers.get(callers[-1].session_id if callers else session.id):
            callers.append(caller)
        return kept.Origin(session_id=session.id, call_id=part.call_id, part_id=part.id, callers=tuple(callers))

    def _started(self, event: ProcessStartedEvent) -> None:
        self._running.add((event.session_id, event.call_id))

    def _ended(self, event: ProcessExitedEvent) -> None:
        key = (event.session_id, event.call_id)
        self._running.discard(key)
        if lasting := self._lasting.pop(key, None):
            self._task(self._finish(lasting, goes_on=False), lasting.call)

    def _task(self, work: Coroutine[Any, Any, None], call: _Call) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks[task] = call.origin.callers[-1].session_id if call.origin.callers else call.origin.session_id
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def _warn(self, call: _Call, message: str) -> None:
        self._bus.publish(
            call.seat.labelled(ErrorEvent, call_id=call.part.call_id, error_type="UndoUnavailable", message=message)
        )


def _tidy_up(snapshots: "kept.Snapshots", session_id: str) -> None:
    """Beside files that were about to be written their new content may lie still."""
    for begun in snapshots.interrupted(session_id):
        for path in begun.planned or ():
            clear_leftovers(snapshots.workspace / path)


def _inside(planned: Planned | None, root: Path) -> Planned | None:
    return None if planned is None else {path: name for path, name in planned.items() if path.is_relative_to(root)}


def _family(session_id: str, callers: "dict[str, kept.Caller]") -> set[str]:
    """A session and those that its agents opened."""
    family = {session_id}
    while more := {child for child, caller in callers.items() if caller.session_id in family} - family:
        family |= more
    return family
