"""Thread pool for synchronous tool functions, and the call of functions that a program provides.

The standard executor starts few threads on a small machine and joins them at exit. This pool starts one thread per
concurrent call up to a limit, and uses daemon threads, so that a function that never returns does not block the exit.
"""

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any

from outrider._sync import describe_exception, is_interruption
from outrider.errors import CallbackError

PoolJob = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class ThreadPool:
    """Runs at most `limit` functions at once; further ones are queued."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._count = 0
        self._idle: deque[SimpleQueue[PoolJob | None]] = deque()
        self._waiting: deque[PoolJob] = deque()
        self._lock = threading.Lock()

    async def run(self, function: Callable[[], Any]) -> Any:
        """Runs the function in a thread and returns its value. On cancellation the thread finishes and the result is
        discarded."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._submit_job((loop, future, partial(copy_context().run, function)))
        return await future

    def close(self) -> None:
        """Stops idle threads; busy ones stop after their job."""
        with self._lock:
            self._limit = 0
            idle, self._idle = self._idle, deque()
        for inbox in idle:
            inbox.put(None)

    def _submit_job(self, job: PoolJob) -> None:
        with self._lock:
            if self._idle:
                self._idle.pop().put(job)
                return
            if self._count >= max(self._limit, 1):
                self._waiting.append(job)
                return
            self._count += 1
        inbox: SimpleQueue[PoolJob | None] = SimpleQueue()
        inbox.put(job)
        threading.Thread(target=self._worker_loop, args=(inbox,), name="outrider-tool", daemon=True).start()

    def _worker_loop(self, inbox: "SimpleQueue[PoolJob | None]") -> None:
        while (job := inbox.get()) is not None:
            self._run_job(job)
            del job
            if not self._take_next_job(inbox):
                return

    def _take_next_job(self, inbox: "SimpleQueue[PoolJob | None]") -> bool:
        """Takes a queued job, else marks the thread as idle. Returns False if the pool is closed."""
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
    def _run_job(job: PoolJob) -> None:
        loop, future, function = job
        if future.cancelled():
            return
        try:
            result, error = function(), None
        except BaseException as raised:  # noqa: BLE001  raised again in the awaiting task
            result, error = None, raised
        try:
            loop.call_soon_threadsafe(_resolve_future, future, result, error)
        except RuntimeError:  # the loop is closed, so the result has no receiver
            return


def _resolve_future(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration | GeneratorExit | KeyboardInterrupt):
        # A future rejects the first, the second would close the coroutine, and Ctrl-C never reaches a thread.
        future.set_exception(RuntimeError(f"the function raised {type(error).__name__}"))
    else:
        future.set_exception(error)


CALLBACK_SECONDS = 60.0
_callback_threads = ThreadPool()


class Callbacks:
    """Calls functions of the program, each for at most `seconds`. Plain functions run in threads, one after the other,
    because a program does not expect its hooks to run in parallel."""

    def __init__(self, seconds: float | None = CALLBACK_SECONDS) -> None:
        self.seconds = seconds
        self._lock: asyncio.Lock | None = None

    async def call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the value of the function. Raises CallbackError if it fails or takes too long."""
        if is_async_function(function):
            return await call_user_function(name, function, *arguments, seconds=self.seconds)
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            return await call_user_function(name, function, *arguments, seconds=self.seconds)


async def call_user_function(
    name: str, function: Callable[..., Any], *arguments: Any, seconds: float | None = CALLBACK_SECONDS
) -> Any:
    """Calls a function of the program, such as a hook, and returns its value. A plain function runs in a thread, where
    it cannot block the event loop; `seconds` limits both kinds. Raises CallbackError if it fails or takes too long."""
    limit, caller = asyncio.timeout(seconds), asyncio.current_task()
    try:
        async with limit:
            if is_async_function(function):
                return await function(*arguments)
            module = getattr(function, "__module__", None) or ""
            if module.startswith("outrider."):  # of the package itself: it returns at once
                return function(*arguments)
            value = await _callback_threads.run(partial(function, *arguments))
            return await value if inspect.isawaitable(value) else value
    except BaseException as error:
        if is_interruption(error, caller):
            raise
        if limit.expired():
            raise CallbackError(name, f"did not return within {seconds:g} s") from error
        raise CallbackError(name, f"failed ({describe_exception(error)})") from error


def is_async_function(function: Callable[..., Any]) -> bool:
    """Returns whether a function, method, partial or callable object is async."""
    called: Any = function
    return inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(type(called).__call__)
