"""Changes on their way into a store: in their order, as many as come together in one write."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from types import coroutine
from typing import Any, Protocol

from msgspec.structs import replace

from outrider.errors import StorageFullError
from outrider.sessions.records import Kept
from outrider.types.events import Event
from outrider.types.messages import Message


class Append(Protocol):
    """Keeps values and takes inbox items; gives the number of the last of them."""

    def __call__(self, values: Sequence[Kept], takes: Sequence[str], *, synced: bool) -> Awaitable[int]: ...


class PendingChange:
    """A change on its way: what is to be kept, and then to count and to be told. `head` is a message that is kept as it
    is when it is written, without its parts, which have their own way. `into` is the message that a part is put into,
    unless it counts already. `news` is an event to be told once all before it is kept. One that is `silent` was told
    of before. A change that is not `synced` need not have reached the disk by then."""

    __slots__ = ("alone", "error", "head", "into", "news", "rows", "silent", "synced", "takes", "value")

    def __init__(
        self,
        value: Kept | None = None,
        *,
        into: Message | None = None,
        head: Message | None = None,
        news: Event | None = None,
        takes: Sequence[str] = (),
        synced: bool = True,
        silent: bool = False,
    ) -> None:
        self.value = value
        self.into = into
        self.head = head
        self.news = news
        self.takes = takes
        self.synced = synced
        self.silent = silent or (value is None and news is None)
        self.rows = len(takes) + (value is not None or head is not None)
        if isinstance(value, Message):
            self.rows += len(value.parts)
        self.alone = bool(takes)
        self.error: Exception | None = None

    def kept(self) -> Kept | None:
        return self.value if self.head is None else replace(self.head, parts=[])


class PendingChanges:
    """Drain it from one place at a time; `apply` is called with each entry that is kept, and its number. When the disk
    is full everything stays, to be tried again."""

    def __init__(self, append: Append, apply: Callable[[PendingChange, int], None]) -> None:
        self._append = append
        self._apply = apply
        self._waiting: list[PendingChange] = []
        self._writing = 0  # of those that wait
        self._stuck = False
        self._unwatched: list[PendingChange] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, entry: PendingChange, *, watched: bool = True) -> None:
        """Of an entry that nobody waits for, whoever is next is told if it failed."""
        self._waiting.append(entry)
        if not watched:
            self._unwatched.append(entry)

    def open(self, message: Message) -> None:
        """A new message, with the parts that it begins with."""
        self.add(PendingChange(head=message, synced=False), watched=False)
        for part in message.parts:
            self.add(PendingChange(part, synced=False, silent=True), watched=False)

    def hold(self, message: Message) -> None:
        """See to it that a message is written as it will be then."""
        if not self.holds(message):
            self.add(PendingChange(head=message, synced=False), watched=False)

    def hold_back(self, event: Event) -> bool:
        """Until all that waits to be told is told; False where nothing does, or where nobody knows when."""
        for entry in () if self._stuck else self._waiting:
            if not entry.silent:
                self._waiting.append(PendingChange(news=event, synced=False))
                return True
        return False

    @property
    def takes_input(self) -> bool:
        return any(entry.takes for entry in self._waiting)

    @property
    def holds_news(self) -> bool:
        return any(entry.news is not None for entry in self._waiting)

    def holds(self, message: Message) -> bool:
        """Whether this very message waits to be written, and so will be kept as it is then; what is being written is
        kept as it was."""
        return any(entry.head is message for entry in self._waiting[self._writing :])

    def check(self, entry: PendingChange) -> None:
        """Raises what went wrong with an entry that was waited for, or with one before it that was not."""
        unwatched, self._unwatched = self._unwatched, [one for one in self._unwatched if one in self._waiting]
        for written in (*unwatched, entry):
            if written.error is not None:
                raise written.error

    async def drain(self) -> None:
        while self._waiting:
            batch = self._next_batch()
            self._writing = len(batch)
            try:
                last = await self._write(batch)
            except StorageFullError:
                self._let_go_of_news()
                raise
            except Exception as error:  # noqa: BLE001  whoever waits is told
                self._set_aside(batch, error)
                continue
            except BaseException:
                del self._waiting[: len(batch)]
                raise
            finally:
                self._writing = 0
            self._stuck = False
            del self._waiting[: len(batch)]
            self._count(batch, last)

    def _write(self, batch: Sequence[PendingChange]) -> Awaitable[int]:
        values = [value for entry in batch if (value := entry.kept()) is not None]
        if not values and not batch[0].takes:
            return _nothing()
        return self._append(values, batch[0].takes, synced=any(entry.synced for entry in batch))

    def _let_go_of_news(self) -> None:
        """The disk is full: what happens meanwhile is told without waiting for what could not be kept."""
        self._stuck = True
        news = [entry for entry in self._waiting if entry.news is not None]
        self._waiting = [entry for entry in self._waiting if entry.news is None]
        self._count(news, 0)

    def _next_batch(self) -> list[PendingChange]:
        count = next((place for place, entry in enumerate(self._waiting) if entry.alone), len(self._waiting))
        return self._waiting[: max(count, 1)]

    def _set_aside(self, batch: Sequence[PendingChange], error: Exception) -> None:
        """One that was alone has failed; of several it is not known which, so each is tried alone."""
        for entry in batch:
            entry.alone = True
        if len(batch) == 1:
            self._waiting.remove(batch[0])
            batch[0].error = error

    def _count(self, batch: Sequence[PendingChange], last: int) -> None:
        """Numbers are given in the order of the entries; `last` is that of the last one."""
        seq = last - sum(entry.rows for entry in batch)
        for entry in batch:
            seq += entry.rows
            if not entry.silent:
                self._apply(entry, seq)


async def _nothing() -> int:
    return 0


class ShieldedTasks:
    """What was begun and has not ended. `in_place`: whether work does not mind in which task it runs."""

    def __init__(self, *, in_place: bool) -> None:
        self._in_place = in_place
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        return self._under_way > 0 or bool(self._tasks)

    async def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Returns when it is done. A caller that is cancelled does not tear it apart."""
        if not self._in_place:
            await asyncio.shield(self._watched(asyncio.create_task(work)))
            return
        self._under_way += 1
        try:
            await self._done_here(work)
        finally:
            self._under_way -= 1

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self._watched(asyncio.create_task(work))

    async def settled(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @coroutine
    def _done_here(self, work: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        """Without a task as long as nobody is cancelled: most work waits for nothing, or once."""
        while True:
            try:
                waits_for = work.send(None)
            except StopIteration:
                return
            try:
                yield _ProxyFuture.of(waits_for)
            except asyncio.CancelledError:
                self.start(_to_the_end(work, waits_for))
                raise

    def _watched(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever waits; nobody waiting is no reason to warn


class _ProxyFuture(asyncio.Future[None]):
    """Waited for in the place of another future, which stays whole when the one who waits is cancelled."""

    @classmethod
    def of(cls, waits_for: "asyncio.Future[Any] | None") -> "_ProxyFuture | None":
        if waits_for is None:  # for the next round of the loop
            return None
        stand_in = cls(loop=waits_for.get_loop())
        waits_for.add_done_callback(stand_in._wake)
        # That is how a task is told what it waits for. What was told to us may be waited for by others as well.
        waits_for._asyncio_future_blocking, stand_in._asyncio_future_blocking = False, True
        return stand_in

    def _wake(self, _: object) -> None:
        if not self.done():
            self.set_result(None)


async def _to_the_end(work: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await _rest(work, waits_for)


@coroutine
def _rest(work: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """What is left of work that waits for something already."""
    if waits_for is not None:
        waits_for._asyncio_future_blocking = True  # told anew, to another task
    try:
        while True:
            try:
                answer = yield waits_for
            except BaseException as error:  # noqa: BLE001  it is the work's to deal with
                waits_for = work.throw(error)
            else:
                waits_for = work.send(answer)
    except StopIteration:
        return
