"""The two pipes of a process, without ever blocking the event loop: what it writes, and what it is given to read."""

import asyncio
import os
from collections.abc import Callable

from outrider.errors import ProcessError
from outrider.processes import platform

CHUNK = 1 << 18


class _End:
    """A descriptor that is closed once, however often that is asked for."""

    def __init__(self, descriptor: int) -> None:
        self.number: int | None = descriptor

    def close(self) -> None:
        if self.number is not None:
            os.close(self.number)
            self.number = None

    def fileno(self) -> int:
        if self.number is None:
            raise ValueError("this end is closed")
        return self.number


class OutputPipe:
    """Hands every piece that is written to `on_chunk`, from `listen` on; `b""` says that no writer is left."""

    def __init__(self, on_chunk: Callable[[bytes], None]) -> None:
        self._ours, self.theirs = map(_End, os.pipe())
        os.set_blocking(self._ours.fileno(), False)
        platform.enlarge_pipe(self._ours.fileno())
        self._on_chunk = on_chunk
        self._loop = asyncio.get_running_loop()

    def listen(self) -> None:
        if self._ours.number is not None:
            self._loop.add_reader(self._ours.number, self._read)

    @property
    def is_open(self) -> bool:
        return self._ours.number is not None

    def drain(self) -> None:
        """Read what lies in the pipe now, and not what a flood puts there meanwhile."""
        for _ in range(2 * platform.PIPE_BYTES // CHUNK):
            self._read()

    def close(self) -> None:
        if self._ours.number is not None:
            self._loop.remove_reader(self._ours.number)
        self._ours.close()
        self.theirs.close()

    def _read(self) -> None:
        if self._ours.number is None:
            return
        try:
            chunk = os.read(self._ours.number, CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self.close()
        self._on_chunk(chunk)


class InputPipe:
    """`silent`: there is nothing to read, as from an empty file."""

    def __init__(self, *, silent: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._woken: asyncio.Future[None] = self._loop.create_future()
        if silent:
            self.theirs, self._ours = _End(os.open(os.devnull, os.O_RDONLY)), None
            return
        self.theirs, self._ours = map(_End, os.pipe())
        os.set_blocking(self._ours.fileno(), False)

    async def write(self, text: str) -> None:
        """Waits while the process does not read."""
        if self._ours is None:
            raise ProcessError("the process takes no input: it was started without")
        async with self._turn:
            left = memoryview(text.encode("utf-8", "surrogateescape"))
            while left:
                if self._ours.number is None:
                    raise ProcessError("the process takes no more input")
                try:
                    left = left[os.write(self._ours.number, left) :]
                except BlockingIOError:
                    await self._until_writable(self._ours)
                except BrokenPipeError:
                    self.close()

    def close(self) -> None:
        self.theirs.close()
        if self._ours is not None and self._ours.number is not None:
            self._loop.remove_writer(self._ours.number)
            self._ours.close()
            if not self._woken.done():
                self._woken.set_result(None)

    async def _until_writable(self, end: _End) -> None:
        self._woken = woken = self._loop.create_future()
        self._loop.add_writer(end.fileno(), lambda: woken.done() or woken.set_result(None))
        try:
            await woken
        finally:
            if end.number is not None:
                self._loop.remove_writer(end.number)
