"""Work that a caller waits for in its own place, and that goes on without one that is cancelled."""

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any


class Works:
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
                yield _StandIn.of(waits_for)
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


class _StandIn(asyncio.Future[None]):
    """Waited for in the place of another future, which stays whole when the one who waits is cancelled."""

    @classmethod
    def of(cls, waits_for: "asyncio.Future[Any] | None") -> "_StandIn | None":
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
