"""Begins work at once, in the place of its caller, and leaves to a task only what has to wait."""

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any


def eagerly(work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """None when it is done. For work that does not ask which task it runs in before it first waits."""
    steps = work.__await__()
    try:
        first = next(steps)
    except StopIteration:
        return None
    return asyncio.create_task(_rest(first, steps))


@coroutine
def _rest(waits_for: Any, steps: Generator[Any, Any, None]) -> Generator[Any, Any, None]:
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
