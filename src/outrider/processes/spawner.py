"""Starts commands through a guardian, which is itself started with the first of them."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

from outrider.errors import ProcessError
from outrider.processes import platform
from outrider.processes.launch import Launch

_BEGIN = "import sys; sys.path.append(sys.argv[2]); from outrider.processes.engine_guard import main; main()"
_ROOT = Path(__file__).parents[2]
AT_CLOSE = 2.0  # seconds
# The guardian's environment can be read by what it starts, so it gets nothing but what an interpreter may need.
_NEEDED = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "LANG")


class Spawner:
    """Belongs to one event loop. A guardian that was killed is replaced at the next start."""

    def __init__(self, python: str = sys.executable) -> None:
        self._python = python
        self._guardian: int | None = None
        self._line: socket.socket | None = None
        self._turn = asyncio.Lock()

    async def spawn(self, launch: Launch, stdin: int, output: int, errors: int | None = None) -> socket.socket:
        """The line to the new command's keeper. The descriptors are the command's ends; they stay the caller's.
        Without one for errors, these go where the output goes."""
        request = launch.encode()
        ours, theirs = _socketpair()
        try:
            with theirs:
                async with self._turn:
                    await self._hand_over([theirs.fileno(), stdin, output, output if errors is None else errors])
            await asyncio.get_running_loop().sock_sendall(ours, request)
        except BaseException as error:
            ours.close()
            if isinstance(error, ConnectionError):
                raise ProcessError("the command cannot be started: no process could be made for it") from error
            raise
        return ours

    async def _hand_over(self, descriptors: list[int]) -> None:
        try:
            await self._send(self._line or self._start_guardian(), descriptors)
        except ConnectionError:  # it was killed since the last start
            self._forget_guardian()
            await self._send(self._start_guardian(), descriptors)

    @staticmethod
    async def _send(line: socket.socket, descriptors: list[int]) -> None:
        while True:
            try:
                socket.send_fds(line, [b"+"], descriptors)
            except BlockingIOError:
                await _until_writable(line)
            else:
                return

    def _start_guardian(self) -> socket.socket:
        ours, theirs = _socketpair()
        argv = [self._python, "-I", "-S", "-c", _BEGIN, str(os.getpid()), str(_ROOT)]
        environment = {name: os.environ[name] for name in _NEEDED if name in os.environ}
        try:
            with theirs:
                self._guardian = platform.start_program(argv, environment, theirs.fileno())
        except OSError as error:
            ours.close()
            raise ProcessError(f"commands cannot be started: {self._python or 'no Python'}: {error}") from error
        self._line = ours
        return ours

    def _forget_guardian(self) -> None:
        """The line is closed, so the guardian has ended or will; it must not stay a zombie."""
        line, pid = self._line, self._guardian
        self._line = self._guardian = None
        if line is not None:
            line.close()
        if pid is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    async def close(self) -> None:
        """The guardian ends after the keepers. Lines that are open are ended first, or this waits for them."""
        if self._line is None:
            return
        try:
            async with asyncio.timeout(AT_CLOSE):
                self._line.shutdown(socket.SHUT_WR)
                await asyncio.get_running_loop().sock_recv(self._line, 1)
        except OSError:  # it takes too long, or was killed already; its keepers know what to do without it
            self._kill_guardian()
        self._forget_guardian()

    def _kill_guardian(self) -> None:
        if self._guardian is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._guardian, signal.SIGKILL)


def _socketpair() -> tuple[socket.socket, socket.socket]:
    """Ours does not block."""
    ours, theirs = socket.socketpair()
    ours.settimeout(0)
    return ours, theirs


async def _until_writable(line: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    writable: asyncio.Future[None] = loop.create_future()
    loop.add_writer(line, lambda: writable.done() or writable.set_result(None))
    try:
        await writable
    finally:
        loop.remove_writer(line)
