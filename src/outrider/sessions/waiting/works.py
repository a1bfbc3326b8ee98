"""Begins work at once, in the place of its caller, and leaves to a task only what has to wait."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class Works:
    """What was begun and has not ended. `eager`: whether work may be begun in the place of its caller."""

    def __init__(self, *, eager: bool) -> None:
        self._begin = eagerly if eager else asyncio.create_task
        self._tasks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        return bool(self._tasks)

    async def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Returns when it is done. A caller that is cancelled does not tear it apart."""
        rest = self._begin(work)
        if rest is not None:
            await asyncio.shield(self._watched(rest))

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self._watched(asyncio.create_task(work))

    async def settled(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _watched(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever waits; nobody waiting is no reason to warn


def eagerly(work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """None when it is done. For work that does not ask which task it runs in before it first waits."""
    steps = work.__await__()
    try:
        first = next(steps)
    except StopIteration:
        return None
    return asyncio.create_task(_to_the_end(_Rest(first, steps)))


async def _to_the_end(rest: "_Rest") -> None:
    await rest


class _Rest:
    """What is left of work that waits for something already."""

    def __init__(self, waits_for: Any, steps: Generator[Any, Any, None]) -> None:
        self._waits_for = waits_for
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for, steps = self._waits_for, self._steps
        try:
            while True:
                try:
                    answer = yield waits_for
                except BaseException as error:  # noqa: BLE001  it is the work's to deal with
                    waits_for = steps.throw(error)
                else:
                    waits_for = steps.send(answer)
        except StopIteration:
            return
