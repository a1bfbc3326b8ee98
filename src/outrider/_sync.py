"""Run a coroutine from synchronous code, whether or not an event loop is running in the caller's thread, and tell the
exceptions of functions of the program from those that end a task."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.5
"""Waiting is polled: a KeyboardInterrupt that arrives just before a thread blocks on a lock does not wake it."""


def run_sync(work: Callable[[], Awaitable[T]]) -> T:
    """Runs `work` to its end and returns its value. If this thread has a running loop, as in a notebook, the work runs
    on a new loop in another thread."""

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
    """Calls at once in the thread of the loop. From another thread it wakes the loop, which takes a system call."""
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


def describe_exception(error: BaseException) -> str:
    """Returns the class and the text of an exception of the program; its text may itself fail."""
    try:
        text = str(error).strip()
    except Exception:  # noqa: BLE001  __str__ is a function of the program too
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_SHOWN_CHARACTERS = 200


def describe_value(value: object) -> str:
    """Returns the start of the representation of a value of the program; its representation may itself fail."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  __repr__ is a function of the program too; RecursionError: nested too deeply
        return f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def is_interruption(error: BaseException, task: "asyncio.Task[Any] | None") -> bool:
    """Returns whether an exception that came out of a function of the program, called in `task`, was not raised by it:
    Ctrl-C, a cancellation of the task, or the end of a coroutine that is closed."""
    match error:
        case asyncio.CancelledError():
            return task is None or task.cancelling() > 0
        case GeneratorExit():
            return not _is_current_task(task)
        case _:
            return isinstance(error, KeyboardInterrupt)


def _is_current_task(task: "asyncio.Task[Any] | None") -> bool:
    """Returns whether this task runs now; GeneratorExit is also raised in one whose coroutine is closed by others."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop runs
        return False
