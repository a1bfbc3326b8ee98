"""Calls between synchronous code and event loops: runs coroutines from code without a loop, runs functions of the
program in threads, and decides which exceptions the program itself raised.

The standard executor starts few threads on a small machine and joins them at exit. `ThreadPool` starts one thread per
concurrent call up to a limit, and uses daemon threads, so that a function that never returns does not block the exit.
"""

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from outrider.errors import CallbackError

T = TypeVar("T")

_POLL_SECONDS = 0.5
"""Waiting is polled: a KeyboardInterrupt that arrives just before a thread blocks on a lock does not wake it."""


def run_sync(work: Callable[[], Awaitable[T]]) -> T:
    """Runs `work` to its end and returns its value. If this thread has a running loop, for example in a notebook, the
    work runs on a new loop in another thread."""

    async def run_work() -> T:
        return await work()

    return _run_in_thread(work) if _has_running_loop() else asyncio.run(run_work())


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: Any) -> None:
    """Calls the callback at once in the thread of the loop. From another thread, wakes the loop, which takes a system
    call."""
    if _has_running_loop() and asyncio.get_running_loop() is loop:
        callback(*arguments)
    else:
        loop.call_soon_threadsafe(callback, *arguments)


def _run_in_thread(work: Callable[[], Awaitable[T]]) -> T:
    """Runs `work` on a loop in a new thread. A KeyboardInterrupt in the caller, such as a notebook's stop button,
    cancels the work."""
    canceller: Future[Callable[[], object]] = Future()  # set once the work can be cancelled

    async def run_work() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        canceller.set_result(lambda: loop.call_soon_threadsafe(task.cancel) if task else None)
        return await work()

    result: Future[T] = Future()
    context = copy_context()

    def run_loop() -> None:
        try:
            result.set_result(context.run(asyncio.run, run_work()))
        except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
            result.set_exception(error)

    thread = Thread(target=run_loop, name="outrider-run-sync")
    try:
        thread.start()
        while not wait([result], _POLL_SECONDS).done:
            pass
        return result.result()
    except BaseException:
        canceller.add_done_callback(_cancel_work)
        raise
    finally:
        while thread.is_alive():
            thread.join(_POLL_SECONDS)


def _cancel_work(canceller: "Future[Callable[[], object]]") -> None:
    with suppress(RuntimeError):  # the loop is closed: the work has already finished
        canceller.result()()


async def run_to_end(work: Awaitable[T]) -> T:
    """Awaits `work`, which continues if the caller is cancelled. An error of work that continues is not logged, because
    nothing can handle it: for example a lost lease when the end of a cancelled call is stored."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_retrieve_error)
        raise


def do_nothing() -> None:
    """The default of a callback that the caller does not need."""


async def wait_to_end(work: Awaitable[T]) -> T:
    """Awaits `work` to its end, even if the caller is cancelled meanwhile; raises the cancellation afterwards. It is
    for short work that must end before the caller closes what the work uses. The work needs a separate task: a cancel
    scope of anyio cancels its task again in each iteration of the event loop, so work that the task itself awaits would
    never end."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        _retrieve_error(task)
        raise cancelled
    return task.result()


async def cancel_tasks(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Cancels tasks and waits until they have ended. Their errors are neither raised nor logged."""
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    if running := [task for task in waiting if not task.done()]:
        await asyncio.wait(running)
    for task in waiting:
        _retrieve_error(task)


@asynccontextmanager
async def run_beside(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Runs work that does not end, such as a periodic task, until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])  # an error that ended the loop is logged by asyncio


def _retrieve_error(task: "asyncio.Future[Any]") -> None:
    if not task.cancelled():
        task.exception()


def describe_exception(error: BaseException) -> str:
    """Returns the class and the text of an exception of the program. Creating its text may fail too."""
    try:
        text = str(error).strip()
    except Exception:  # noqa: BLE001  __str__ is a function of the program too
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_SHOWN_CHARACTERS = 200


def describe_value(value: object) -> str:
    """Returns the start of the representation of a value of the program. Creating its representation may fail too."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  __repr__ is a function of the program too; RecursionError: nested too deeply
        return f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def describe_argument(value: object) -> str:
    """Returns the type of a value, and its `repr` if that is short, for an error message."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = describe_value(value)
    return f"a value of type {type(value).__name__}" + (f" ({text})" if len(text) <= 40 else "")


def is_interruption(error: BaseException, task: "asyncio.Task[Any] | None") -> bool:
    """Returns whether an exception is an interruption that a function of the program, called in `task`, did not raise
    itself: Ctrl-C, a cancellation of the task, or the end of a coroutine that is closed."""
    match error:
        case asyncio.CancelledError():
            return task is None or task.cancelling() > 0
        case GeneratorExit():
            return not _is_current_task(task)
        case _:
            return isinstance(error, KeyboardInterrupt)


def _is_current_task(task: "asyncio.Task[Any] | None") -> bool:
    """Returns whether this task runs now. If it does not, another caller closes its coroutine, which raises
    GeneratorExit."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop runs
        return False


PoolJob = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class ThreadPool:
    """Runs at most `limit` functions at the same time; further functions are queued."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._count = 0
        self._idle: deque[SimpleQueue[PoolJob | None]] = deque()
        self._waiting: deque[PoolJob] = deque()
        self._lock = threading.Lock()

    async def run(self, function: Callable[[], Any]) -> Any:
        """Runs the function in a thread and returns its value. If the caller is cancelled, the function still runs to
        its end, and its result is discarded."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._submit_job((loop, future, partial(copy_context().run, function)))
        return await future

    def close(self) -> None:
        """Stops idle threads. Busy threads stop after their job."""
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
            inbox: SimpleQueue[PoolJob | None] = SimpleQueue()
            inbox.put(job)
            threading.Thread(target=self._worker_loop, args=(inbox,), name="outrider-tool", daemon=True).start()
            self._count += 1  # not if the start failed, because the system has too many threads

    def _worker_loop(self, inbox: "SimpleQueue[PoolJob | None]") -> None:
        while (job := inbox.get()) is not None:
            self._run_job(job)
            del job
            if not self._take_next_job(inbox):
                return

    def _take_next_job(self, inbox: "SimpleQueue[PoolJob | None]") -> bool:
        """Takes a queued job, or else marks the thread as idle. Returns False if the pool is closed."""
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
        # A future rejects StopIteration, GeneratorExit would close the coroutine, and Ctrl-C never reaches a thread.
        future.set_exception(RuntimeError(f"the function raised {type(error).__name__}"))
    else:
        future.set_exception(error)


CALLBACK_SECONDS = 60.0
_callback_threads = ThreadPool()


class CallbackRunner:
    """Calls functions of the program, each for at most `seconds`. Plain functions run in threads, one after the other,
    because programs do not expect their hooks to run in parallel."""

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
            if module.startswith("outrider."):  # a function of the package itself returns at once
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
