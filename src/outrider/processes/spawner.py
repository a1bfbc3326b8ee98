"""Starts commands through the engine guard, which starts with the first command."""

import asyncio
import contextlib
import os
import signal
import socket
import sys

from outrider._posix import require_posix
from outrider.errors import ProcessError
from outrider.processes import platform
from outrider.processes.launch import LaunchRequest

_GUARD_SCRIPT = f"{platform.IMPORT_SCRIPT}; from outrider.processes.engine_guard import main; main()"
CLOSE_TIMEOUT = 2.0
# Commands can read the guard's environment in /proc, so it contains only what a Python interpreter may need.
_GUARD_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "LANG")


class ProcessSpawner:
    """Sends launch requests to the engine guard. Bound to one event loop. Restarts a guard that was killed."""

    def __init__(self, python: str = sys.executable) -> None:
        self._python = python
        self._guard_pid: int | None = None
        self._guard_socket: socket.socket | None = None
        self._spawn_lock = asyncio.Lock()

    async def spawn(self, launch: LaunchRequest, stdin: int, output: int, errors: int | None = None) -> socket.socket:
        """Starts a command and returns the connection to its command guard.

        `stdin`, `output` and `errors` are descriptors for the command; the caller still owns and closes them. Without
        `errors`, standard error goes to `output`.
        """
        require_posix("running a command")
        request = launch.encode()
        engine_end, guard_end = _open_socketpair()
        try:
            with guard_end:
                async with self._spawn_lock:
                    await self._send_to_guard([guard_end.fileno(), stdin, output, output if errors is None else errors])
            await asyncio.get_running_loop().sock_sendall(engine_end, request)
        except BaseException as error:
            engine_end.close()
            if isinstance(error, ConnectionError):
                raise ProcessError("the command cannot be started: its guard process ended") from error
            raise
        return engine_end

    async def _send_to_guard(self, descriptors: list[int]) -> None:
        """Sends descriptors to the engine guard; restarts it once if the connection is broken."""
        try:
            await self._send_descriptors(self._guard_socket or self._start_guard(), descriptors)
        except ConnectionError:  # the guard was killed since the last start
            self._reap_guard()
            await self._send_descriptors(self._start_guard(), descriptors)

    @staticmethod
    async def _send_descriptors(connection: socket.socket, descriptors: list[int]) -> None:
        while True:
            try:
                socket.send_fds(connection, [b"+"], descriptors)
            except BlockingIOError:
                await _wait_until_writable(connection)
            else:
                return

    def _start_guard(self) -> socket.socket:
        """Starts the engine guard and returns the connection to it. Raises ProcessError."""
        engine_end, guard_end = _open_socketpair()
        argv = [self._python, "-I", "-S", "-c", _GUARD_SCRIPT, platform.PACKAGE_FOLDER, str(os.getpid())]
        environment = {name: os.environ[name] for name in _GUARD_VARIABLES if name in os.environ}
        try:
            with guard_end:
                self._guard_pid = platform.spawn_program(argv, environment, guard_end.fileno())
        except OSError as error:
            engine_end.close()
            raise ProcessError(f"commands cannot be started: {self._python or 'no Python'}: {error}") from error
        self._guard_socket = engine_end
        return engine_end

    def _reap_guard(self) -> None:
        """Closes the connection, upon which the guard exits, and waits for it so that no zombie remains."""
        connection, pid = self._guard_socket, self._guard_pid
        self._guard_socket = self._guard_pid = None
        if connection is not None:
            connection.close()
        if pid is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    async def close(self) -> None:
        """Stops the engine guard, which exits after all command guards; close their connections first."""
        if self._guard_socket is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                self._guard_socket.shutdown(socket.SHUT_WR)
                await asyncio.get_running_loop().sock_recv(self._guard_socket, 1)
        except OSError:  # timeout, or the guard was killed; command guards also work without it
            self._kill_guard()
        self._reap_guard()

    def _kill_guard(self) -> None:
        if self._guard_pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._guard_pid, signal.SIGKILL)


def _open_socketpair() -> tuple[socket.socket, socket.socket]:
    """Returns a socket pair whose first end, for the engine, does not block."""
    engine_end, guard_end = socket.socketpair()
    engine_end.settimeout(0)
    return engine_end, guard_end


async def _wait_until_writable(connection: socket.socket) -> None:
    """Waits until a socket is writable, without writing to it."""
    loop = asyncio.get_running_loop()
    writable: asyncio.Future[None] = loop.create_future()
    loop.add_writer(connection, lambda: writable.done() or writable.set_result(None))
    try:
        await writable
    finally:
        loop.remove_writer(connection)
