"""Begins work at once, in the place of its caller, and leaves to a task only what has to wait."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


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
