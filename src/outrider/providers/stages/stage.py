"""The contract of a stage, and how an answer runs through one."""

from collections.abc import AsyncGenerator, Iterable
from typing import Protocol

from outrider.errors import ProviderError
from outrider.types.stream import Delta


class Stage(Protocol):
    """Reads one answer's deltas and gives what they become; holds back only what it cannot decide yet."""

    def feed(self, delta: Delta) -> Iterable[Delta]: ...

    def close(self) -> Iterable[Delta]:
        """What is still held when the answer ends, whole or not."""
        ...


def through(stage: Stage, deltas: Iterable[Delta]) -> list[Delta]:
    return [given for delta in deltas for given in stage.feed(delta)]


async def staged(deltas: AsyncGenerator[Delta, None], stage: Stage) -> AsyncGenerator[Delta, None]:
    """An answer after a stage; closing it closes the answer itself."""
    try:
        async for delta in deltas:
            for given in stage.feed(delta):
                yield given
    except ProviderError:
        for given in stage.close():  # what arrived is not lost with the connection
            yield given
        raise
    finally:
        close = getattr(deltas, "aclose", None)  # a plain iterator has nothing to close
        if close is not None:
            await close()
    for given in stage.close():
        yield given
