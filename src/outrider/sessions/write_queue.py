"""The write queue of a journal: batches changes into transactions and shields writes from cancellation."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from copy import copy
from operator import attrgetter
from types import coroutine
from typing import Any, Protocol

from msgspec import Struct

from outrider.errors import StorageFullError
from outrider.sessions.records import StoredValue
from outrider.types.codec import AnyPart
from outrider.types.events import Event
from outrider.types.messages import Message


class AppendFunction(Protocol):
    """Stores values and takes inbox items; returns the last sequence number."""

    def __call__(self, values: Sequence[StoredValue], takes: Sequence[str], *, synced: bool) -> Awaitable[int]: ...


class PendingChange(Struct, eq=False):
    """A queued change, to be stored, applied and published.

    - `value`: a message with its parts, or a part.
    - `into`: the message that receives the part when it is applied; None if the message already has it.
    - `head`: a message whose fields are stored without its parts, with their values at the time of the write.
    - `event`: is published when all changes before it are stored.
    - `takes`: the ids of inbox items that become taken; such a change is written `alone`.
    - `rows`: the number of rows that the change writes.
    - `synced`: whether the change needs an fsync.
    - `silent`: publishes nothing.
    - `alone`: is written in a separate transaction.
    - `error`: why the change could not be stored.
    """

    value: StoredValue | None = None
    into: Message | None = None
    head: Message | None = None
    event: Event | None = None
    takes: Sequence[str] = ()
    rows: int = 1
    synced: bool = True
    silent: bool = False
    alone: bool = False
    error: Exception | None = None


ApplyFunction = Callable[[PendingChange, int], None]
"""Applies a stored change with its sequence number."""
_is_alone: Callable[[PendingChange], bool] = attrgetter("alone")
_count_rows: Callable[[PendingChange], int] = attrgetter("rows")


def change_of_message(message: Message, takes: Sequence[str]) -> PendingChange:
    """Returns the change that adds a message, and takes the inbox items that it came from."""
    rows = 1 + len(message.parts) + len(takes)
    return PendingChange(message, takes=takes, rows=rows, synced=not takes, alone=bool(takes))


def change_of_head(message: Message, *, synced: bool) -> PendingChange:
    """Returns the change that stores the fields of a message without its parts."""
    return PendingChange(head=message, synced=synced, silent=True)


class WriteQueue:
    """Writes queued changes in order, as many as possible in one transaction.

    If the disk is full, all changes stay in the queue for a retry. They stay there too if a write is cancelled or
    interrupted: it is not known whether the store has committed it, and storing a value again with the same id changes
    nothing. Only one `drain` may run at a time: the journal holds a lock.
    """

    def __init__(self) -> None:
        self._queued: list[PendingChange] = []
        self._in_flight = 0  # number of changes at the front of the queue that are being written
        self._storage_full = False
        self._unwatched: list[PendingChange] = []

    def __bool__(self) -> bool:
        return bool(self._queued)

    def add(self, entry: PendingChange, *, watched: bool = True) -> None:
        """Queues a change. If no caller awaits it (`watched=False`), the next awaited change raises its error."""
        self._queued.append(entry)
        if not watched:
            self._unwatched.append(entry)

    def add_open_message(self, message: Message) -> None:
        """Queues a new message and its first parts; the journal has published the message."""
        self.add(change_of_head(message, synced=False), watched=False)
        for part in message.parts:
            self.add(PendingChange(part, synced=False, silent=True), watched=False)

    def replace_part(self, part: AnyPart) -> bool:
        """Replaces a queued part with the same id. Returns False if it is written or being written."""
        for entry in self._queued[self._in_flight :]:
            if entry.value is not None and entry.value.id == part.id and not isinstance(entry.value, Message):
                entry.value = part
                return True
        return False

    def add_message_head(self, message: Message) -> None:
        """Queues the fields of a message, unless they are queued and not yet being written."""
        if not self.has_message_head(message):
            self.add(change_of_head(message, synced=False), watched=False)

    def add_event(self, event: Event) -> bool:
        """Queues an event behind unpublished changes. Returns False if there are none or if the disk is full."""
        for entry in () if self._storage_full else self._queued:
            if not entry.silent:
                self._queued.append(PendingChange(event=event, rows=0, synced=False))
                return True
        return False

    @property
    def has_inbox_items(self) -> bool:
        return any(entry.takes for entry in self._queued)

    @property
    def has_events(self) -> bool:
        return any(entry.event is not None for entry in self._queued)

    def has_message_head(self, message: Message) -> bool:
        """Returns whether a later write stores this message object with its values at that time. A running write does
        not, because it has already encoded the message."""
        for entry in self._queued[self._in_flight :]:  # noqa: SIM110  a generator costs more than the search
            if entry.head is message:
                return True
        return False

    def raise_failure(self, entry: PendingChange) -> None:
        """Raises the error of an awaited change, or of an earlier change that no caller awaited."""
        unwatched, waiting = self._unwatched, self._queued
        self._unwatched = [change for change in unwatched if change in waiting] if waiting else []
        for written in (*unwatched, entry):
            if written.error is not None:
                raise written.error

    async def drain(self, append: AppendFunction, apply: ApplyFunction) -> None:
        """Writes the queue. Raises StorageFullError; other errors are stored on the change that caused them."""
        while self._queued:
            batch = self._next_batch()
            self._in_flight = len(batch)
            try:
                last_seq = await _append_batch(batch, append)
            except StorageFullError:
                self._release_events(apply)
                raise
            except Exception as error:  # noqa: BLE001  `raise_failure` raises it to the caller
                self._isolate_failure(batch, error)
                continue
            finally:
                self._in_flight = 0
            self._storage_full = False
            del self._queued[: len(batch)]
            _apply_batch(batch, last_seq, apply)

    def _release_events(self, apply: ApplyFunction) -> None:
        """Publishes queued events at once: with a full disk, the changes before them may stay queued for long."""
        self._storage_full = True
        events = [entry for entry in self._queued if entry.event is not None]
        self._queued = [entry for entry in self._queued if entry.event is None]
        _apply_batch(events, 0, apply)

    def _next_batch(self) -> list[PendingChange]:
        if not any(map(_is_alone, self._queued)):
            return self._queued[:]
        first = next(position for position, entry in enumerate(self._queued) if entry.alone)
        return self._queued[: max(first, 1)]

    def _isolate_failure(self, batch: Sequence[PendingChange], error: Exception) -> None:
        """Removes a change that failed alone. If a batch failed, each of its changes is written alone next time."""
        for entry in batch:
            entry.alone = True
        if len(batch) == 1:
            self._queued.remove(batch[0])
            batch[0].error = error


def _append_batch(batch: Sequence[PendingChange], append: AppendFunction) -> Awaitable[int]:
    values, synced = list[StoredValue](), False
    for entry in batch:
        synced = synced or entry.synced
        if entry.head is not None:
            values.append(head := copy(entry.head))
            head.parts = []
        elif entry.value is not None:
            values.append(entry.value)
    if not values and not batch[0].takes:
        return _append_nothing()
    return append(values, batch[0].takes, synced=synced)


async def _append_nothing() -> int:
    return 0


def _apply_batch(batch: Sequence[PendingChange], last_seq: int, apply: ApplyFunction) -> None:
    """Applies stored changes; the store numbers rows in queue order, and `last` is the last number."""
    seq = last_seq - sum(map(_count_rows, batch))
    for entry in batch:
        seq += entry.rows
        if not entry.silent:
            apply(entry, seq)


class ShieldedTasks:
    """Runs coroutines so that a write completes even if its caller is cancelled.

    With `inline`, a coroutine starts in the task of its caller, and gets a separate task only if it suspends: most
    writes to a local store do not, and a task costs three iterations of the event loop. Until it suspends for the first
    time, such a coroutine must not depend on the task that runs it, as `asyncio.timeout` does, and what it awaits then
    must not be a future that others await.
    """

    def __init__(self, *, inline: bool) -> None:
        self._inline = inline
        self._tasks: dict[asyncio.Task[None], asyncio.Future[None] | None] = {}  # with the future that a caller awaits

    @property
    def is_running(self) -> bool:
        return not all(task.done() for task in self._tasks)

    async def run_shielded(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits `work`. If the caller is cancelled, `work` finishes in the background."""
        if self._inline:
            try:
                awaited = work.send(None)
            except StopIteration:
                return
            work = _finish_started(work, awaited)
        task = self.start_task(work)
        # This does the same as asyncio.shield, which creates more objects: many sessions wait here at the same time.
        self._tasks[task] = end = asyncio.get_running_loop().create_future()
        await end
        task.result()

    def start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts `work` in a background task."""
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._forget_task)
        return task

    async def wait_finished(self) -> None:
        """Waits for all running tasks. Ignores exceptions."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _forget_task(self, task: asyncio.Task[None]) -> None:
        end = self._tasks.pop(task, None)
        if end is not None and not end.done():
            end.set_result(None)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved: asyncio must not log it if the caller was cancelled


async def _finish_started(work: Coroutine[Any, Any, None], awaited: Any) -> None:
    """Continues a coroutine that has started and awaits the future `awaited`, in a new task."""
    await _resume(work, awaited)


@coroutine
def _resume(work: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    while True:
        error: BaseException | None = None
        try:
            yield awaited  # to the task, which waits for this future
        except BaseException as raised:  # noqa: BLE001  the future has failed, or the task was cancelled
            error = raised
        try:
            awaited = work.send(None) if error is None else work.throw(error)
        except StopIteration:
            return
