"""Threads for plain functions: they never block the event loop, and one that never returns does not stop the program.

The standard pool starts few threads on a small machine and joins them at exit; these are as many as there are calls,
up to a bound, and daemons.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any

Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class Threads:
    """At most `limit` functions run at once; more wait their turn."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._count = 0
        self._idle: deque[SimpleQueue[Job | None]] = deque()
        self._waiting: deque[Job] = deque()
        self._lock = threading.Lock()

    async def run(self, function: Callable[[], Any]) -> Any:
        """The function's value. Cancelling leaves the thread to finish by itself, its result unread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._submit((loop, future, partial(copy_context().run, function)))
        return await future

    def close(self) -> None:
        """Let idle threads end; busy ones end after their job."""
        with self._lock:
            self._limit = 0
            idle, self._idle = self._idle, deque()
        for inbox in idle:
            inbox.put(None)

    def _submit(self, job: Job) -> None:
        with self._lock:
            if self._idle:
                self._idle.pop().put(job)
                return
            if self._count >= max(self._limit, 1):
                self._waiting.append(job)
                return
            self._count += 1
        inbox: SimpleQueue[Job | None] = SimpleQueue()
        inbox.put(job)
        threading.Thread(target=self._work, args=(inbox,), name="outrider-tool", daemon=True).start()

    def _work(self, inbox: "SimpleQueue[Job | None]") -> None:
        while (job := inbox.get()) is not None:
            self._do(job)
            del job
            if not self._rest(inbox):
                return

    def _rest(self, inbox: "SimpleQueue[Job | None]") -> bool:
        """Take the next job that waits, else lie idle; False when the pool was closed."""
        with self._lock:
            if self._waiting:
                inbox.put(self._waiting.popleft())
            elif self._limit == 0:
                self._count -= 1
                return False
            else:
                self._idle.append(inbox)
        return True

    @staticmethod
    def _do(job: Job) -> None:
        loop, future, function = job
        if future.cancelled():
            return
        try:
            result, error = function(), None
        except BaseException as raised:  # noqa: BLE001  it is raised again where the value is awaited
            result, error = None, raised
        try:
            loop.call_soon_threadsafe(_settle, future, result, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):  # a future cannot carry it
        future.set_exception(RuntimeError("the function raised StopIteration"))
    else:
        future.set_exception(error)
