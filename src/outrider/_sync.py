"""Async work from plain code, whether or not an event loop already runs in the caller's thread."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

LOOK = 0.5  # seconds; an interrupt that comes just before a thread begins to wait does not wake it


def run_sync(work: Callable[[], Awaitable[T]]) -> T:
    """The value of the work. Where a loop runs, as in a notebook, it is left alone: the work gets a thread."""

    async def whole() -> T:
        return await work()

    return _in_a_thread(work) if _a_loop_runs() else asyncio.run(whole())


def _a_loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_a_thread(work: Callable[[], Awaitable[T]]) -> T:
    """Whoever interrupts the waiting, with a notebook's stop button for example, ends the work."""
    begun: Future[Callable[[], object]] = Future()  # gives what calls the work off

    async def whole() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        begun.set_result(lambda: loop.call_soon_threadsafe(task.cancel) if task else None)
        return await work()

    ended: Future[T] = Future()
    context = copy_context()

    def run() -> None:
        try:
            ended.set_result(context.run(asyncio.run, whole()))
        except BaseException as error:  # noqa: BLE001  it is the caller's
            ended.set_exception(error)

    thread = Thread(target=run, name="outrider-plain-code")
    try:
        thread.start()
        while not wait([ended], LOOK).done:
            pass
        return ended.result()
    except BaseException:
        begun.add_done_callback(_call_off)
        raise
    finally:
        while thread.is_alive():
            thread.join(LOOK)


def _call_off(begun: "Future[Callable[[], object]]") -> None:
    with suppress(RuntimeError):  # the loop is closed: the work has ended by itself
        begun.result()()
