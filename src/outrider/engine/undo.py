"""Records what tool calls change in files: takes snapshots before calls and stores the changes after them, for undo."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from outrider._sync import ThreadPool, run_to_end, wait_to_end
from outrider.agents.run_context import AgentContext, CallWrapper
from outrider.errors import ConfigurationError, OutriderError, SessionNotFoundError, StoreError, ToolFailure
from outrider.event_bus import EventBus
from outrider.sessions import snapshots as snapshots_api
from outrider.sessions.journal import Journal
from outrider.sessions.store import Store
from outrider.tools.edit_transaction import PlannedChange, remove_leftovers
from outrider.tools.tool import Tool, ToolContext
from outrider.types.events import ErrorEvent, ProcessExitedEvent, ProcessStartedEvent
from outrider.types.messages import Message
from outrider.types.parts import PatchPart, SnapshotPart, TextPart, ToolPart


def may_change_files(tool: Tool, *, built_in: bool) -> bool:
    """Returns whether a call may change unknown files. Built-in file tools name their files, and the command runner
    knows what a sandboxed command changed, so they record that themselves; custom tools do not."""
    if tool.read_only or tool.options.delegates:
        return False
    match tool.declaration.kind if built_in else "unknown":
        case "unknown":
            return True
        case _:
            return False


T = TypeVar("T")
UNDO_FOLDER = "undo"
MAX_UNDO_BYTES = 8 * 1024 * 1024 * 1024  # over all workspaces


class SnapshotStores:
    """The snapshot stores of all workspaces, one folder each below the data folder, opened on first use."""

    def __init__(self, data: Path) -> None:
        self._data = data / UNDO_FOLDER
        self._opened: dict[Path, snapshots_api.ChangeTracker | str] = {}
        self._lock = asyncio.Lock()
        self._threads = ThreadPool(8)

    async def open_snapshots(self, workspace: Path) -> "snapshots_api.ChangeTracker | str":
        """Returns the snapshots of a workspace, or the reason why undo is not available. Raises StoreError if the store
        cannot be opened now."""
        async with self._lock:
            if workspace not in self._opened:
                self._opened[workspace] = await self.run_in_thread(lambda: self._open_folder(workspace))
            return self._opened[workspace]

    def has_snapshots(self, workspace: Path) -> bool:
        """Returns whether anything was ever stored for the workspace."""
        return self._workspace_folder(workspace).is_dir()

    async def run_in_thread(self, function: Callable[[], T]) -> T:
        """Runs a blocking file operation in a thread."""
        return await self._threads.run(function)

    async def close(self) -> None:
        """Closes all stores. Deletes the oldest snapshots if their total size exceeds `MAX_UNDO_BYTES`."""
        used = [opened for opened in self._opened.values() if isinstance(opened, snapshots_api.ChangeTracker)]
        for opened in used:
            await self.run_in_thread(opened.close)
        if used:
            await self.run_in_thread(lambda: snapshots_api.enforce_total_quota(self._data, MAX_UNDO_BYTES))
        self._opened.clear()
        self._threads.close()

    def _open_folder(self, workspace: Path) -> "snapshots_api.ChangeTracker | str":
        try:
            return snapshots_api.ChangeTracker(self._workspace_folder(workspace), workspace)
        except ConfigurationError as error:
            return error.message

    def _workspace_folder(self, workspace: Path) -> Path:
        return self._data / sha256(os.fsencode(workspace.resolve())).hexdigest()[:16]


MAX_LISTED_FILES = 50
_DONE = {
    "undo": "The user has undone changes. These files have their earlier content again: {files}.",
    "redo": "The user has redone changes that had been undone, in these files: {files}.",
}
_PARTLY_DONE = "The user has undone a part of the changes in these files: {files}. Read them before you edit them."
_LEFT = " These files were changed again later, so they were not restored: {files}."


async def record_change_set(
    journal: Journal, changed: "snapshots_api.ChangeSet", unrestored: Sequence[str] = ()
) -> str:
    """Stores the changes in the transcript, once, and returns the id of the message."""
    messages = journal.session.messages
    for message in messages:
        if any(part.hash == changed.id for part in message.get_parts_by_type(PatchPart)):
            return message.id
    part = PatchPart(changed.id, changed.paths)
    if changed.origin.kind != "call":
        text = TextPart(_change_text(changed, unrestored), synthetic=True)
        return (await journal.add_message(Message("user", [part, text, SnapshotPart(changed.id)]))).id
    part_id = changed.origin.part_id
    call_message = next(
        (message for message in messages if any(call_part.id == part_id for call_part in message.parts)), None
    )
    if call_message is None:
        return ""
    await journal.put_part(part, call_message)
    return call_message.id


def _change_text(changed: "snapshots_api.ChangeSet", unrestored: Sequence[str]) -> str:
    is_part = changed.origin.kind == "undo" and not changed.origin.earlier
    text = (_PARTLY_DONE if is_part else _DONE[changed.origin.kind]).format(files=_format_files(changed.paths))
    return text + (_LEFT.format(files=_format_files(unrestored)) if unrestored else "")


def _format_files(files: Sequence[str]) -> str:
    suffix = f" and {len(files) - MAX_LISTED_FILES} more" if len(files) > MAX_LISTED_FILES else ""
    return (", ".join(files[:MAX_LISTED_FILES]) or "none") + suffix


CallKey = tuple[str, str]  # session id, call id
PlannedWrites = dict[Path, str | None]  # files, and the hashes of their new contents (None: deleted)


class _ActiveCall(msgspec.Struct, frozen=True):
    """A running call, with what is needed to store its changes."""

    part: ToolPart
    context: AgentContext
    callers: "tuple[snapshots_api.ParentCall, ...]"

    @property
    def key(self) -> CallKey:
        return self.context.session.id, self.part.call_id

    @property
    def origin(self) -> "snapshots_api.ChangeOrigin":
        """The cause of the call's changes. Created when a snapshot is taken, because most calls need none."""
        session_id, call_id = self.key
        return snapshots_api.ChangeOrigin(
            session_id=session_id, call_id=call_id, part_id=self.part.id, callers=self.callers
        )


class _OpenSnapshot(msgspec.Struct, frozen=True):
    """The snapshot before a call. With `doubtful`, other programs may have changed files too, so changes may not come
    from the agent."""

    call: _ActiveCall
    snapshots: "snapshots_api.ChangeTracker"
    before: "snapshots_api.WorkspaceSnapshot"
    doubtful: bool


class UndoRecorder:
    """Records the file changes of all calls of an engine: `record_call` wraps calls that may change any file,
    `record_edit` wraps writes of the file tools.

    Changes by a background process are recorded when its call ends, when the process exits, and before an undo.
    """

    def __init__(self, data: Path, bus: EventBus) -> None:
        self.stores = SnapshotStores(data)
        self._bus = bus
        self._calls: dict[CallKey, _ActiveCall] = {}
        self._callers: dict[str, snapshots_api.ParentCall] = {}
        self._running: set[CallKey] = set()
        self._open_snapshots: dict[CallKey, _OpenSnapshot] = {}
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._stop = [
            bus.subscribe(ProcessStartedEvent, self._on_process_started),
            bus.subscribe(ProcessExitedEvent, self._on_process_exited),
        ]

    def call_wrapper(self, built_in: Collection[str]) -> CallWrapper:
        """Returns the call wrapper for a run context in which `built_in` names the built-in tools."""
        return lambda part, tool, context: self.record_call(part, tool, context, built_in=tool.name in built_in)

    @asynccontextmanager
    async def record_call(
        self, part: ToolPart, tool: Tool, context: AgentContext, *, built_in: bool
    ) -> AsyncGenerator[None, None]:
        """Registers a call for `record_edit` while the context is open, and takes a snapshot if the call may change any
        file."""
        call = _ActiveCall(part, context, self._find_callers(context))
        self._calls[call.key] = call
        try:
            if not may_change_files(tool, built_in=built_in):
                yield
                return
            async with self._snapshot_around(call, None):
                yield
        finally:
            self._calls.pop(call.key, None)

    @asynccontextmanager
    async def record_edit(
        self, tool_context: ToolContext, changes: Sequence[PlannedChange]
    ) -> AsyncGenerator[None, None]:
        """Records the planned writes of a file tool. Files outside the workspace are not recorded."""
        call = self._calls.get((tool_context.session_id, tool_context.call_id))
        if call is None:
            yield
            return
        planned = {
            Path(change.location.real): None if change.after is None else snapshots_api.content_hash(change.after)
            for change in changes
        }
        async with self._snapshot_around(call, planned):
            yield

    @asynccontextmanager
    async def record_paths(
        self, tool_context: ToolContext, workspace: Path, paths: Sequence[str]
    ) -> AsyncGenerator[None, None]:
        """Records a commit that changes these paths of the workspace. Names that are not valid text cannot be
        recorded."""
        call = self._calls.get((tool_context.session_id, tool_context.call_id))
        if call is None:
            yield
            return
        from outrider.processes.sandbox.overlay import is_text  # lazy: loaded with the first command

        async with self._snapshot_around(call, None, [workspace / path for path in paths if is_text(path)]):
            yield

    @asynccontextmanager
    async def record_all(self, tool_context: ToolContext) -> AsyncGenerator[None, None]:
        """Records what an unconfined command changes, by comparing the workspace before and after."""
        call = self._calls.get((tool_context.session_id, tool_context.call_id))
        if call is None:
            yield
            return
        async with self._snapshot_around(call, None):
            yield

    def active_context(self, tool_context: ToolContext) -> AgentContext | None:
        """Returns the agent context of a running call."""
        call = self._calls.get((tool_context.session_id, tool_context.call_id))
        return call.context if call else None

    async def recover_session(self, journal: Journal) -> None:
        """Stores the changes of calls that a crash interrupted, and adds the changes that are missing in the
        transcript."""
        workspace, session_id = Path(journal.session.workspace_directory or "."), journal.session.id
        if not self.stores.has_snapshots(workspace):
            return
        with suppress(StoreError):
            snapshots = await self.stores.open_snapshots(workspace)
            if isinstance(snapshots, str):
                return
            await self.stores.run_in_thread(lambda: _remove_leftovers(snapshots, session_id))
            await self.stores.run_in_thread(lambda: snapshots.recover_interrupted(session_id))
            for changed in await self.stores.run_in_thread(lambda: snapshots.session_changes(session_id)):
                if changed.origin.session_id == session_id:
                    await record_change_set(journal, changed)

    async def record_background_changes(self, session_id: str) -> None:
        """Stores what background processes of the session have changed so far."""
        for key, snapshot in list(self._open_snapshots.items()):
            if key[0] in _session_family(session_id, self._callers):
                await self._record_changes(snapshot, still_running=True)

    async def settle_session(self, session_id: str) -> None:
        """Stores the remaining changes of a session that closes; its processes must have ended."""
        for task in [task for task, owner in self._tasks.items() if owner == session_id]:
            await task
        family = _session_family(session_id, self._callers)
        for key in [key for key in self._open_snapshots if key[0] in family]:
            await self._record_changes(self._open_snapshots.pop(key), still_running=False)
        for member in family:
            self._callers.pop(member, None)

    async def close(self) -> None:
        """Unsubscribes from the event bus, waits for running tasks, and records the changes of processes that still
        run."""
        for stop in self._stop:
            stop()
        for task in list(self._tasks):
            await task
        for key in list(self._open_snapshots):
            await self._record_changes(self._open_snapshots.pop(key), still_running=False)
        await self.stores.close()

    @asynccontextmanager
    async def _snapshot_around(
        self, call: _ActiveCall, planned: PlannedWrites | None, paths: Sequence[Path] | None = None
    ) -> AsyncGenerator[None, None]:
        """Takes a snapshot of `paths`, of the planned files or of the whole workspace, and stores the changes when the
        context ends, even after an error or a cancellation."""
        snapshot = await self._take_snapshot(call, planned, paths)
        cancelled = False
        try:
            yield
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            if snapshot is not None:
                await self._end_call(msgspec.structs.replace(snapshot, doubtful=not cancelled))

    async def _take_snapshot(
        self, call: _ActiveCall, planned: PlannedWrites | None, paths: Sequence[Path] | None
    ) -> _OpenSnapshot | None:
        """Takes the snapshot before a call. Returns None if undo is not available. If the snapshot fails, background
        mode denies the call, because no user supervises it; other modes run it and publish a warning."""
        try:
            snapshots = await self.stores.open_snapshots(call.context.workspace)
            if isinstance(snapshots, str):
                return None
            inside = _inside_workspace(planned, snapshots.workspace)
            if inside is not None and not inside:
                return None
            return _OpenSnapshot(
                call, snapshots, await self._snapshot_in_thread(snapshots, call.origin, inside, paths), doubtful=False
            )
        except StoreError as error:
            if call.context.session.mode == "background":
                raise ToolFailure(f"what it changes could not be undone ({error.message}). It was not run") from error
            self._publish_warning(call, f"{call.part.tool} runs without an undo: {error.message}")
            return None

    async def _snapshot_in_thread(
        self,
        snapshots: "snapshots_api.ChangeTracker",
        origin: "snapshots_api.ChangeOrigin",
        planned: PlannedWrites | None,
        paths: Sequence[Path] | None,
    ) -> "snapshots_api.WorkspaceSnapshot":
        # A thread cannot be cancelled, so a cancelled call waits for it and then discards its snapshot.
        future = asyncio.ensure_future(
            self.stores.run_in_thread(
                lambda: snapshots.take_snapshot(planned if paths is None else paths, origin, planned)
            )
        )
        try:
            return await wait_to_end(future)
        except asyncio.CancelledError:
            if not future.exception():
                await run_to_end(self.stores.run_in_thread(lambda: snapshots.discard_snapshot(future.result())))
            raise

    async def _end_call(self, snapshot: _OpenSnapshot) -> None:
        still_running = snapshot.call.key in self._running and snapshot.before.paths is None
        if still_running:
            self._open_snapshots[snapshot.call.key] = snapshot
        certain = msgspec.structs.replace(snapshot, doubtful=False)
        task = self._start_task(self._record_changes(certain, still_running=still_running), snapshot.call)
        await asyncio.shield(task)

    async def _record_changes(self, snapshot: _OpenSnapshot, *, still_running: bool) -> None:
        snapshots, before = snapshot.snapshots, snapshot.before
        try:
            changed = await self.stores.run_in_thread(
                lambda: snapshots.record_changes(before, doubtful=snapshot.doubtful, continues=still_running)
            )
        except OutriderError as error:
            self._publish_warning(
                snapshot.call, f"the changes of {snapshot.call.part.tool} could not be stored: {error.message}"
            )
            return
        if changed is not None:
            # `recover_session` adds a missing entry when the session is opened again.
            with suppress(StoreError):
                await record_change_set(snapshot.call.context.journal, changed)

    def _find_callers(self, context: AgentContext) -> "tuple[snapshots_api.ParentCall, ...]":
        session = context.session
        if context.call_id and session.parent_id:
            self._callers[session.id] = snapshots_api.ParentCall(session.parent_id, context.call_id)
        callers: list[snapshots_api.ParentCall] = []
        while caller := self._callers.get(callers[-1].session_id if callers else session.id):
            callers.append(caller)
        return tuple(callers)

    def _on_process_started(self, event: ProcessStartedEvent) -> None:
        self._running.add((event.session_id, event.call_id))

    def _on_process_exited(self, event: ProcessExitedEvent) -> None:
        key = (event.session_id, event.call_id)
        self._running.discard(key)
        if snapshot := self._open_snapshots.pop(key, None):
            self._start_task(self._record_changes(snapshot, still_running=False), snapshot.call)

    def _start_task(self, work: Coroutine[Any, Any, None], call: _ActiveCall) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks[task] = call.callers[-1].session_id if call.callers else call.key[0]
        task.add_done_callback(lambda finished: self._tasks.pop(finished, None))
        return task

    def _publish_warning(self, call: _ActiveCall, message: str) -> None:
        self._bus.publish(
            call.context.make_event(
                ErrorEvent, call_id=call.part.call_id, error_type="UndoUnavailable", message=message
            )
        )


def _remove_leftovers(snapshots: "snapshots_api.ChangeTracker", session_id: str) -> None:
    """Removes temporary files of interrupted writes."""
    for operation in snapshots.interrupted_operations(session_id):
        for path in operation.planned or ():
            remove_leftovers(snapshots.workspace / path)


def _inside_workspace(planned: PlannedWrites | None, root: Path) -> PlannedWrites | None:
    return None if planned is None else {path: name for path, name in planned.items() if path.is_relative_to(root)}


def _session_family(session_id: str, callers: "dict[str, snapshots_api.ParentCall]") -> set[str]:
    """Returns a session and all its descendants."""
    family = {session_id}
    while children := {child for child, caller in callers.items() if caller.session_id in family} - family:
        family |= children
    return family


async def list_undo_data(data: Path, store: Store) -> dict[Path, list[str]]:
    """Returns the folders with undo data, and for each folder the sessions of this store with changes in it. Unreadable
    folders are left out."""
    sessions_by_folder: dict[Path, list[str]] = {}
    for file in sorted((data / UNDO_FOLDER).glob(f"*/{snapshots_api.DATABASE_NAME}")):
        with suppress(StoreError):
            tracked = await asyncio.to_thread(snapshots_api.tracked_sessions, file.parent)
            sessions_by_folder[file.parent] = [
                session_id for session_id in tracked if not await is_deleted(session_id, store)
            ]
    return sessions_by_folder


async def delete_undo_data(undo_data: Mapping[Path, Sequence[str]], store: Store) -> None:
    """Deletes the undo data of those listed sessions that are no longer in the store."""
    for folder, session_ids in undo_data.items():
        with suppress(StoreError):
            deleted = [session_id for session_id in session_ids if await is_deleted(session_id, store)]
            if deleted:
                await asyncio.to_thread(snapshots_api.forget_sessions, folder, deleted)


async def is_deleted(session_id: str, store: Store) -> bool:
    """Returns whether the store has no such session."""
    try:
        await store.get(session_id)
    except SessionNotFoundError:
        return True
    return False
