"""A transport that plays an answer from memory."""

from collections.abc import Iterable, Mapping

from outrider.providers.provider import HttpCall


class Played:
    def __init__(self, chunks: Iterable[bytes], status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._chunks = iter(chunks)

    async def read(self) -> bytes:
        return next(self._chunks, b"")

    def progress(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def hurry(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


class Player:
    def __init__(self, chunks: Iterable[bytes], status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self._chunks = list(chunks)
        self._status = status
        self._headers = headers or {}
        self.calls: list[HttpCall] = []

    async def send(self, call: HttpCall) -> Played:
        self.calls.append(call)
        return Played(self._chunks, self._status, self._headers)

    async def aclose(self) -> None:
        pass
