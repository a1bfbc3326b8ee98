"""The single write path of a session: each change is stored, then applied in memory, then published."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from outrider._sync import wait_to_end
from outrider.errors import InvalidStateTransition, LeaseLostError, StorageFullError, StoreError
from outrider.event_bus import EventBus
from outrider.sessions.failpoints import failpoint
from outrider.sessions.leases import LeaseOwner, SessionLease
from outrider.sessions.records import InboxItem, Lease, SessionTranscript, SessionUpdate, StoredSession
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.sessions.write_queue import (
    PendingChange,
    ShieldedTasks,
    WriteQueue,
    change_of_head,
    change_of_message,
)
from outrider.types.codec import AnyPart, set_part_owner
from outrider.types.events import (
    ErrorEvent,
    Event,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    SessionUpdatedEvent,
    ToolInputDeltaEvent,
)
from outrider.types.ids import now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import CompactionPart, PatchPart, ToolPart

# Below the guaranteed 250 ms and 4 KiB, because the write itself takes time.
FLUSH_SECONDS = 0.2
FLUSH_CHARACTERS = 3072
LARGE_DRAFT, MAX_DRAFT = 2**20, 8 * 2**20  # characters
MAX_TEXT_BYTES = 64 * 2**20  # of the texts of an open session; no prompt of a model is longer


class DraftBuffer:
    """Collects parts that are still streaming. Calls `on_due` after FLUSH_SECONDS or FLUSH_CHARACTERS; only a running
    timer refers to it, so a closed journal is freed at once.

    A draft is written as a whole. So that a long text is not written again for each of its chunks, a part above
    LARGE_DRAFT is written when it has grown by half, and one above MAX_DRAFT when it ends or the journal closes."""

    def __init__(self) -> None:
        self._parts: dict[str, Callable[[], AnyPart]] = {}
        self._characters = 0
        self._sizes: dict[str, int] = {}
        self._next_sizes: dict[str, int] = {}
        self._held: dict[str, Callable[[], AnyPart]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add_draft(
        self, part_id: str, characters: int, current: Callable[[], AnyPart], on_due: Callable[[], object]
    ) -> None:
        """Records that a part grew by `characters`; `current` returns its value so far."""
        size = self._sizes[part_id] = self._sizes.get(part_id, 0) + characters
        if size > LARGE_DRAFT:
            if size > MAX_DRAFT or size < self._next_sizes.get(part_id, 0):
                self._held[part_id] = current
                return
            self._next_sizes[part_id] = size * 3 // 2
        self._parts[part_id] = current
        self._characters += characters
        if self._characters >= FLUSH_CHARACTERS:
            self._flush_now(on_due)
        else:
            self.start_timer(on_due)

    def start_timer(self, on_due: Callable[[], object]) -> None:
        """Starts the flush timer if it does not run."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush_now, on_due)

    def drop_draft(self, part_id: str) -> None:
        """Removes a part, because its final value is written."""
        if part_id in self._sizes:  # most parts have no draft
            for entries in (self._sizes, self._parts, self._held, self._next_sizes):
                entries.pop(part_id, None)

    def take_drafts(self, *, is_last: bool = False) -> list[AnyPart]:
        """Returns the parts that are due, or with `is_last` all parts."""
        parts, self._parts, self._characters = self._parts, {}, 0
        if is_last:
            parts, self._held = {**self._held, **parts}, {}
        return [current() for current in parts.values()]

    def cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush_now(self, on_due: Callable[[], object]) -> None:
        self.cancel_timer()
        self._characters = 0
        on_due()


def _last_change(message: Message) -> str | None:
    """Returns the id of the last change of files that a message records."""
    changes = message.get_parts_by_type(PatchPart)
    return changes[-1].hash if changes else None


class Journal(AbstractAsyncContextManager["Journal"]):
    """Writes the changes of one session. `is_lost` is true after another owner acquired the session's lease.

    If the disk is full, a change raises StorageFullError, publishes an error event and stays in the queue. A later
    attempt stores, applies and publishes the queued changes in their order.
    """

    def __init__(
        self,
        session: Session,
        store: Store,
        bus: EventBus,
        *,
        held: tuple[LeaseOwner, Lease] | None = None,
        clock: Callable[[], int] = now_ms,
        is_abridged: bool = False,
        has_all_messages: bool = True,
    ) -> None:
        self.session = session
        self._is_abridged = is_abridged
        self.has_all_messages = has_all_messages
        self.snapshot = next(
            (change for message in reversed(session.messages) if (change := _last_change(message))), None
        )
        self.lease = SessionLease(session.id, store, bus, self.retry_writes, held)
        self._store = store
        self._bus = bus
        self._clock = clock
        self._write_lock = asyncio.Lock()
        self._queue = WriteQueue()
        self._drafts = DraftBuffer()
        self._drain_scheduled = False
        self._tasks = ShieldedTasks(inline=store.prompt)

    async def reload_messages(self) -> None:
        """Reads messages again that an undone compaction had removed from the prompt, and so from memory."""
        if not self.has_all_messages:
            transcript, _ = await _load_abridged(self._store, self.session.id, MAX_TEXT_BYTES)
            self.session.messages = transcript.messages
            self.has_all_messages = transcript.first

    async def load_messages(self) -> Sequence[Message]:
        """Returns all messages with all texts, including texts that an open session does not load from the store."""
        return (await self._store.load(self.session.id)).messages if self._is_abridged else self.session.messages

    async def add_message(self, message: Message, *, takes: Sequence[str] = ()) -> Message:
        """Stores and publishes a message. `takes` lists the inbox items that it came from.

        A message from the inbox needs no fsync: the item is on disk, and a crash would deliver it again.
        """
        message.join(self.session.id)
        message.time = message.time or MessageTime(self._clock())
        await self._write_change(change_of_message(message, takes))
        if any(isinstance(part, CompactionPart) for part in message.parts):
            failpoint("FP-mid-compaction")
        return message

    def open_message(self, message: Message) -> Message:
        """Starts a response: publishes it at once and stores it with its first part, or within 250 ms.

        The write can wait because an empty message holds nothing that a crash could lose.
        """
        message.join(self.session.id)
        message.time = message.time or MessageTime(self._clock())
        self._append_message(message)
        self._queue.add_open_message(message)
        self._drafts.start_timer(self._start_draft_flush)
        return message

    async def take_inbox_item(self, item: InboxItem) -> Message:
        """Moves an inbox item into the transcript. Only one process succeeds; others raise StoreError."""
        return await self.add_message(item.message, takes=[item.id])

    async def discard_inbox_item(self, item_id: str) -> None:
        """Marks an inbox item as taken without adding it to the transcript."""
        await self._write_change(PendingChange(takes=[item_id], silent=True, alone=True))

    async def put_message(self, message: Message) -> None:
        """Stores the fields of a message, such as finish reason and usage, without its parts."""
        is_queued = self._queue.has_message_head(message)
        await self._write_change(
            PendingChange(rows=0, silent=True) if is_queued else change_of_head(message, synced=True)
        )

    def put_message_soon(self, message: Message) -> None:
        """Queues the fields of a message for the next write and returns at once."""
        self._queue.add_message_head(message)
        self._drafts.start_timer(self._start_draft_flush)

    async def put_part(self, part: AnyPart, message: Message, *, synced: bool = False) -> AnyPart:
        """Adds or replaces a part of a message. Raises InvalidStateTransition for an illegal tool state change.

        With `synced` the part is on disk on return, which a caller needs before an effect that a restart must know of.
        """
        part = _checked_transition(part, message)
        _call_failpoint(part, "FP-before-record-call", "FP-after-effect-before-result")
        await self._write_change(PendingChange(self._finalize_part(part, message), into=message, synced=synced))
        _call_failpoint(part, "FP-after-record-call", "FP-after-result")
        return part

    def put_part_soon(self, part: AnyPart, message: Message) -> None:
        """Applies a part at once and queues it for the next write. The next awaited write raises its error, if any."""
        message.put_part(part)
        self._queue.add(PendingChange(self._finalize_part(part, message), synced=False), watched=False)
        self._drafts.start_timer(self._start_draft_flush)

    def replace_open_part(self, part: AnyPart, message: Message) -> None:
        """Replaces a part of a message that `open_message` has queued, if possible in that write."""
        set_part_owner(part, message.id, self.session.id)
        if self._queue.replace_part(part):
            message.put_part(part)
        else:
            self.put_part_soon(part, message)

    def flush_soon(self) -> None:
        """Schedules a write of the queue, unless an awaited write in this loop iteration does it."""
        if not self._drain_scheduled:
            self._drain_scheduled = True
            asyncio.get_running_loop().call_soon(self._start_scheduled_drain)

    async def update_session(self, update: SessionUpdate) -> None:
        """Stores new session fields, applies them and publishes SessionUpdatedEvent."""
        async with self._write_lock:
            stored = await self._store.update(self.session.id, update)
            _copy_session_fields(self.session, stored)
            changes: dict[str, Any] = {name: getattr(stored, name) for name in ("title", "mode", "agent")}
            self._publish(SessionUpdatedEvent(changes=changes, seq=stored.seq))

    def publish_event(self, event: Event) -> None:
        """Publishes an event after all queued changes before it are stored and published."""
        if not self._queue.add_event(event):
            self._bus.publish(event)

    async def flush_events(self) -> None:
        """Writes the queue if it holds back events, so that they are published on return."""
        if self._queue.has_events:
            await self._tasks.run_shielded(self._flush_quietly())

    def publish_delta(self, delta: PartDeltaEvent | ToolInputDeltaEvent, current: Callable[[], AnyPart]) -> None:
        """Publishes a streaming delta. `current` returns the part so far; it is stored within 250 ms or 4 KiB."""
        self._publish(delta)
        self.buffer_draft(delta.part_id, len(delta.delta), current)

    def buffer_draft(self, part_id: str, characters: int, current: Callable[[], AnyPart]) -> None:
        """Stores an incomplete part, as `current` returns it at that time, within 250 ms or 4 KiB."""
        self._drafts.add_draft(part_id, characters, current, self._start_draft_flush)

    async def flush_drafts(self, *, is_last: bool = False) -> None:
        """Writes the queue, then the buffered incomplete parts as drafts."""
        async with self._write_lock:
            await self._queue.drain(self.lease.append, self._apply_change)
            if drafts := self._drafts.take_drafts(is_last=is_last):
                await self.lease.append(drafts, draft=True)
                failpoint("FP-mid-stream")

    @property
    def is_lost(self) -> bool:
        return self.lease.is_lost

    @property
    def has_pending_input(self) -> bool:
        """Whether the queue holds an inbox item that is not stored yet, for example because the disk is full."""
        return self._queue.has_inbox_items

    async def retry_writes(self) -> bool:
        """Repeats the writes that a full disk rejected. Returns True if the queue is empty."""
        await self._tasks.run_shielded(self._drain_in_order())
        return not self._queue

    async def close(self) -> None:
        """Stops the timers, writes drafts, and releases the lease, even if the caller is cancelled meanwhile: the store
        may be closed next, and until the lease is released or expires, no other process can open the session."""
        self._drafts.cancel_timer()
        try:
            await self._finish()
        except asyncio.CancelledError:
            await wait_to_end(self._finish())
            raise

    async def _finish(self) -> None:
        await self.lease.stop_renewal()
        await self._tasks.wait_finished()
        try:
            if not self.is_lost:
                await self._tasks.run_shielded(self.flush_drafts(is_last=True))
        finally:
            await self.lease.release_lease()

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    def _append_message(self, message: Message, seq: int | None = None) -> None:
        self.session.add_message(message)
        self._bus.publish(
            MessageAddedEvent(
                session_id=self.session.id,
                role=message.role,
                part_count=len(message.parts),
                message_id=message.id,
                seq=seq,
            )
        )

    def _finalize_part(self, part: AnyPart, message: Message) -> AnyPart:
        if getattr(part, "session_id", "") != self.session.id or part.message_id != message.id:
            set_part_owner(part, message.id, self.session.id)
        self._drafts.drop_draft(part.id)
        return part

    def _apply_change(self, entry: PendingChange, seq: int) -> None:
        """Applies a stored change to the session and publishes it."""
        if entry.event is not None:
            self._bus.publish(entry.event)
        elif isinstance(entry.value, Message):
            self._append_message(entry.value, seq)
            self.snapshot = _last_change(entry.value) or self.snapshot
        elif entry.value is not None:
            if entry.into is not None and not _already_ended(entry.into, entry.value):
                entry.into.put_part(entry.value)
            if isinstance(entry.value, PatchPart):
                self.snapshot = entry.value.hash
            self._drafts.drop_draft(entry.value.id)  # a thread may have added a draft during the write
            self._bus.publish(PartUpdatedEvent(session_id=self.session.id, part=entry.value, seq=seq))

    async def _write_change(self, entry: PendingChange) -> None:
        """Queues a change and writes the queue. The write completes even if the caller is cancelled."""
        self._queue.add(entry)
        self._drain_scheduled = False  # this write includes it
        await self._tasks.run_shielded(self._drain_in_order())
        self._queue.raise_failure(entry)

    async def _drain_in_order(self) -> None:
        async with self._write_lock:
            self._drain_scheduled = False
            await self._queue.drain(self.lease.append, self._apply_change)

    def _start_scheduled_drain(self) -> None:
        if self._drain_scheduled:
            self._tasks.start_task(self._drain_in_order())

    def _start_draft_flush(self) -> None:
        """Starts a flush, unless there are no drafts and nothing is queued, or a running write includes all of it."""
        if self._drafts or (self._queue and not self._tasks.is_running):
            self._tasks.start_task(self._flush_quietly())

    async def _flush_quietly(self) -> None:
        """Flushes drafts and publishes store errors instead of raising them.

        A full disk and a lost lease publish their own error; the final value of the part raises to its caller.
        """
        try:
            await self.flush_drafts()
        except StoreError as error:
            if not isinstance(error, StorageFullError | LeaseLostError):
                self._publish(ErrorEvent(error_type=type(error).__name__, message=error.message))

    def _publish(self, event: Event) -> None:
        self._bus.publish(event if event.session_id else replace(event, session_id=self.session.id))


async def create_journal(
    session: Session, store: Store, bus: EventBus, *, lease_owner: LeaseOwner | None = None
) -> Journal:
    """Stores a new session and returns its journal; with a `lease_owner`, acquires the lease."""
    await store.create(StoredSession.from_session(session))
    held = (lease_owner, await lease_owner.acquire(session.id)) if lease_owner else None
    return Journal(session, store, bus, held=held)


async def resume_journal(
    session_id: str,
    store: Store,
    bus: EventBus,
    *,
    lease_owner: LeaseOwner | None = None,
    take_over: bool = False,
    describe: Callable[[ToolPart, Path], str] = lambda _call, _workspace: "",
    repeat_calls: bool = False,
    text_bytes: int = MAX_TEXT_BYTES,
) -> Journal:
    """Opens a stored session and repairs what a crash left unfinished. If its texts have more than `text_bytes`, older
    texts are not loaded, nor are older answers that the last compaction removed from the prompt.

    `describe` returns a note about the effects of an interrupted call in the workspace. With `repeat_calls`, calls that
    are safe to repeat are queued again instead of ended.
    """
    held = (lease_owner, await lease_owner.acquire(session_id, take_over=take_over)) if lease_owner else None
    try:
        transcript, is_abridged = await _load_abridged(store, session_id, text_bytes)
        workspace = Path(transcript.session.workspace_directory or ".")
        from outrider.sessions.recovery import repair_transcript  # lazy: a new session needs no repair

        repaired = repair_transcript(
            transcript, now_ms(), lambda call: describe(call, workspace), repeat_calls=repeat_calls
        )
        if repaired:
            await store.append(session_id, repaired, token=held[1].token if held else None)
        session = session_from_stored(transcript.session, transcript.messages)
    except BaseException:
        if held is not None:
            await held[0].release_unused(held[1])
        raise
    return Journal(
        session, store, bus, held=held, is_abridged=is_abridged, has_all_messages=not is_abridged or transcript.first
    )


async def _load_abridged(store: Store, session_id: str, text_bytes: int) -> tuple[SessionTranscript, bool]:
    load_abridged = getattr(store, "load_abridged", None)  # stores of users may not have it
    return await load_abridged(session_id, text_bytes) if load_abridged else (await store.load(session_id), False)


def session_from_stored(stored: StoredSession, messages: list[Message]) -> Session:
    session = Session(id=stored.id, parent_id=stored.parent_id, forked_from=stored.forked_from, owner=stored.owner)
    _copy_session_fields(session, stored)
    session.messages = messages
    return session


def _copy_session_fields(session: Session, stored: StoredSession) -> None:
    """Copies only the texts that differ, because copies of equal texts would need more memory."""
    for name in ("title", "agent", "workspace_directory", "mode", "approval"):
        if getattr(session, name) != (value := getattr(stored, name)):
            setattr(session, name, value)  # a mode of a newer version stays as it is
    session.metadata = stored.metadata
    session.time = stored.time or session.time


def _checked_transition(part: AnyPart, message: Message) -> AnyPart:
    """Returns the part after a legal state change. Raises InvalidStateTransition if a tool call may not change its
    state in this way."""
    current = _find_part(message, part.id)
    if not isinstance(part, ToolPart) or not isinstance(current, ToolPart):
        return part
    if current.ended and part.state.status != current.state.status:
        raise InvalidStateTransition(current.state.status, part.state.status, ())
    state = current.update_state(part.state).state
    return part if state is part.state else replace(part, state=state)


def _find_part(message: Message, part_id: str) -> AnyPart | None:
    for part in message.parts:
        if part.id == part_id:
            return part
    return None


def _already_ended(message: Message, part: AnyPart) -> bool:
    """Returns whether the call ended while its running state was still queued, for example because the disk was
    full."""
    if not isinstance(part, ToolPart) or part.ended:
        return False
    current = _find_part(message, part.id)
    return isinstance(current, ToolPart) and current.ended


def _call_failpoint(part: AnyPart, running: str, ended: str) -> None:
    if isinstance(part, ToolPart) and part.state.status != "pending":
        failpoint(ended if part.ended else running)
