"""Async work from plain code, whether or not an event loop already runs in the caller's thread."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


def in_plain_code(work: Callable[[], Awaitable[T]]) -> T:
    """The value of the work. Where a loop runs, as in a notebook, it is left alone: the work gets a thread."""

    async def whole() -> T:
        return await work()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(whole())
    with ThreadPoolExecutor(1, "outrider-plain-code") as thread:
        return thread.submit(copy_context().run, asyncio.run, whole()).result()
