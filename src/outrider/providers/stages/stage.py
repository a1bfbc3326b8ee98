"""The contract of a stage, and the client that lets every answer run through one."""

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Protocol

from outrider.errors import ProviderError
from outrider.providers.provider import ModelClient
from outrider.types.request import Request
from outrider.types.stream import Delta


class Stage(Protocol):
    """Reads one answer's deltas and gives what they become; holds back only what it cannot decide yet."""

    def feed(self, delta: Delta) -> Iterable[Delta]: ...

    def close(self) -> Iterable[Delta]:
        """What is still held when the answer ends, whole or not."""
        ...


class StagedClient:
    """A client whose answers run through a stage, a new one for each answer."""

    def __init__(self, client: ModelClient, stage: Callable[[Request], Stage]) -> None:
        self.name = client.name
        self._client = client
        self._stage = stage

    def family(self, model: str) -> str:
        return self._client.family(model)

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        return staged(self._client.stream(request), self._stage(request))

    async def aclose(self) -> None:
        await self._client.aclose()


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
