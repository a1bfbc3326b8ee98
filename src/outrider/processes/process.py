"""Starts commands through the engine guard, connects their input and output, and reports their exit status.

The engine guard starts with the first command. Each command has a separate guard process and a connection to it.
"""

import asyncio
import codecs
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Protocol

from outrider._posix import require_posix
from outrider.errors import ProcessError
from outrider.processes import platform
from outrider.processes.launch import ExitStatus, LaunchRequest, RequestedEnd, exit_status_of
from outrider.processes.output import ProcessOutputBuffer

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
                # One message at a time: a broken connection is replaced, and only one call may restart the guard.
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


CHUNK_BYTES = 1 << 18


class _PipeEnd:
    """A file descriptor with an idempotent `close`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor: int | None = descriptor

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def fileno(self) -> int:
        if self.descriptor is None:
            raise ValueError("the pipe end is closed")
        return self.descriptor


class OutputPipe:
    """Passes each chunk to `on_chunk` after `start_reading`; `b""` means that all writers have closed the pipe."""

    def __init__(self, on_chunk: Callable[[bytes], None]) -> None:
        self._read_end, self.child_end = map(_PipeEnd, os.pipe())
        os.set_blocking(self._read_end.fileno(), False)
        platform.enlarge_pipe(self._read_end.fileno())
        self._on_chunk = on_chunk
        self._loop = asyncio.get_running_loop()

    def start_reading(self) -> None:
        """Registers the pipe with the event loop; each chunk is passed to the callback."""
        if self._read_end.descriptor is not None:
            self._loop.add_reader(self._read_end.descriptor, self._read_chunk)

    @property
    def is_open(self) -> bool:
        return self._read_end.descriptor is not None

    def drain(self) -> None:
        """Reads the present content of the pipe. The loop is bounded: a fast writer must not block the event loop."""
        for _ in range(2 * platform.PIPE_BYTES // CHUNK_BYTES):
            self._read_chunk()

    def close(self) -> None:
        if self._read_end.descriptor is not None:
            self._loop.remove_reader(self._read_end.descriptor)
        self._read_end.close()
        self.child_end.close()

    def _read_chunk(self) -> None:
        if self._read_end.descriptor is None:
            return
        try:
            chunk = os.read(self._read_end.descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            self.close()
        self._on_chunk(chunk)


class InputPipe:
    """The standard input of a command; `empty` connects it to /dev/null."""

    def __init__(self, *, empty: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._write_lock = asyncio.Lock()
        self._writable: asyncio.Future[None] = self._loop.create_future()
        if empty:
            self.child_end, self._write_end = _PipeEnd(os.open(os.devnull, os.O_RDONLY)), None
            return
        self.child_end, self._write_end = map(_PipeEnd, os.pipe())
        os.set_blocking(self._write_end.fileno(), False)

    async def write(self, text: str) -> None:
        """Writes all of the text; waits while the pipe is full."""
        if self._write_end is None:
            raise ProcessError("the process takes no input: only processes started in the background do")
        # Held until all of the text is written: texts of two callers must not mix while the pipe is full.
        async with self._write_lock:
            remaining = memoryview(text.encode("utf-8", "surrogateescape"))
            while remaining:
                if self._write_end.descriptor is None:
                    raise ProcessError("the process takes no more input: it has closed its standard input or ended")
                try:
                    remaining = remaining[os.write(self._write_end.descriptor, remaining) :]
                except BlockingIOError:
                    await self._wait_until_writable(self._write_end)
                except BrokenPipeError:
                    self.close()

    def close(self) -> None:
        """Closes both ends and wakes a waiting `write`, which then raises ProcessError."""
        self.child_end.close()
        if self._write_end is not None and self._write_end.descriptor is not None:
            self._loop.remove_writer(self._write_end.descriptor)
            self._write_end.close()
            if not self._writable.done():
                self._writable.set_result(None)

    async def _wait_until_writable(self, end: _PipeEnd) -> None:
        self._writable = writable = self._loop.create_future()
        self._loop.add_writer(end.fileno(), lambda: writable.done() or writable.set_result(None))
        try:
            await writable
        finally:
            if end.descriptor is not None:
                self._loop.remove_writer(end.descriptor)


DRAIN_SECONDS = 0.2  # how long output is read after the exit if a child process keeps the pipe open
LEFTOVER_GRACE = 0.1
START_TIMEOUT = 30.0  # seconds; only reached if the system has no free processes


class ProcessListener(Protocol):
    """Receives the events of a process, in this order. The methods must not raise.

    Output is decoded only if `wants_text` is true.
    """

    @property
    def wants_text(self) -> bool: ...
    def on_started(self, pid: int) -> None: ...
    def on_text(self, text: str) -> None: ...
    def on_exited(self, ending: ExitStatus) -> None: ...
    def on_all_exited(self) -> None: ...


class GuardedProcess:
    """A command that runs under a command guard, a small process that starts, reaps and kills it.

    `exited` is set when the command has ended and its output is complete; `all_exited` when no descendant is alive
    either. Unless `may_leave_children` is true, remaining descendants are killed when the command ends.
    """

    def __init__(self, output: ProcessOutputBuffer, listener: ProcessListener) -> None:
        self.output = output
        self.may_leave_children = False
        self.pid: int | None = None
        self.ending: ExitStatus | None = None
        self.left_running: list[str] = []  # command lines of processes that were killed when the command ended
        self.exited = asyncio.Event()
        self.all_exited = asyncio.Event()
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._requested_end: RequestedEnd | None = None
        self._reported_exit: tuple[int, bool] | None = None
        self._guard_socket: socket.socket | None = None
        self._partial_line = b""
        self._output_pipe: OutputPipe | None = None
        self._input_pipe: InputPipe | None = None

    async def start(self, spawner: ProcessSpawner, launch: LaunchRequest, *, takes_input: bool) -> None:
        """Starts the command and returns when it runs. Raises ProcessError if it cannot be started."""
        try:
            self._input_pipe = stdin = InputPipe(empty=not takes_input)
            self._output_pipe = output = OutputPipe(self._receive_output)
            self._guard_socket = await spawner.spawn(launch, stdin.child_end.fileno(), output.child_end.fileno())
            stdin.child_end.close()
            output.child_end.close()
            self._loop.add_reader(self._guard_socket, self._read_guard_messages)
            if self._requested_end is not None:  # terminate() was called before the guard was connected
                self.terminate(0)
            async with asyncio.timeout(START_TIMEOUT):
                await self._started
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError):
                reason = f"no answer within {START_TIMEOUT:g} s" if isinstance(error, TimeoutError) else error
                raise ProcessError(f"the command cannot be started: {reason}") from error
            raise

    def terminate(self, grace: float, requested: RequestedEnd | None = None) -> None:
        """Asks the guard to send SIGTERM to all descendants, then SIGKILL after `grace` seconds. The listener is
        notified when they have exited (`on_all_exited`)."""
        if self._reported_exit is None:
            self._requested_end = self._requested_end or requested
        if self._guard_socket is not None:
            with contextlib.suppress(OSError):
                self._guard_socket.send(f"kill {grace:.3f}\n".encode())

    async def write(self, text: str) -> None:
        """Writes to standard input. Raises ProcessError if the process takes no input."""
        if self._input_pipe is None:
            raise ProcessError("the process takes no input: it has not started yet")
        await self._input_pipe.write(text)

    def close_input(self) -> None:
        """Closes standard input, so that the process reads the end of its input."""
        if self._input_pipe is not None:
            self._input_pipe.close()

    def abandon(self) -> None:
        """Closes the connection to the guard, which then kills what is still alive, and completes the exit state."""
        if self._guard_socket is not None:
            self._loop.remove_reader(self._guard_socket)
            self._guard_socket.close()
            self._guard_socket = None
        if self._output_pipe is not None:
            self._output_pipe.close()
        self.close_input()
        self._complete_exit()
        if self.pid is not None and not self.all_exited.is_set():
            self._listener.on_all_exited()
        self.all_exited.set()

    def _read_guard_messages(self) -> None:
        """Reads messages of the guard, one per line. The guard closes the connection when no descendant is alive."""
        assert self._guard_socket is not None
        try:
            received = self._guard_socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        *lines, self._partial_line = (self._partial_line + received).split(b"\n")
        for line in lines:
            word, _, argument = line.decode("utf-8", "replace").partition(" ")
            self._handle_guard_message(word, argument)
        if not received:
            self._settle_start(ProcessError("the command cannot be started: its guard process ended"))
            self._drain_output()
            self.abandon()

    def _handle_guard_message(self, word: str, argument: str) -> None:
        """Handles one message of the guard: `started PID`, `failed STEP REASON`, `left COMMAND`, `exited CODE OOM`."""
        if word == "started":
            self.pid = int(argument)
            self._settle_start()
            self._listener.on_started(self.pid)
            if self._output_pipe is not None:
                self._output_pipe.start_reading()
        elif word == "failed":
            step, _, reason = argument.partition(" ")
            self._settle_start(ProcessError(f"the command cannot be started: {step}: {reason}"))
        elif word == "left":
            self.left_running.append(argument)
        elif word == "exited":
            code, out_of_memory = argument.split()
            self._reported_exit = int(code), out_of_memory == "1"
            if self._output_pipe is not None and self._output_pipe.is_open:
                self._loop.call_later(DRAIN_SECONDS, self._complete_exit)
            else:
                self._complete_exit()

    def _settle_start(self, error: ProcessError | None = None) -> None:
        """Sets the result of the start once: success, or the error."""
        if self._started.done():
            return
        if error is None:
            self._started.set_result(None)
        else:
            self._started.set_exception(error)

    def _receive_output(self, chunk: bytes) -> None:
        if chunk:
            self.output.write(chunk)
            self._emit_text(chunk)
        elif self._reported_exit is not None:
            self._complete_exit()

    def _emit_text(self, chunk: bytes, *, final: bool = False) -> None:
        if self._listener.wants_text and (text := self._decoder.decode(chunk, final)):
            self._listener.on_text(text)

    def _drain_output(self) -> None:
        if self._output_pipe is not None:
            self._output_pipe.drain()

    def _complete_exit(self) -> None:
        """Completes the exit: drains the output, sets the exit status and informs the listener."""
        if self.exited.is_set():
            return
        self.exited.set()
        self._drain_output()  # a stalled event loop may not have read everything
        if self._reported_exit is None:  # the guard was killed, and the command with it
            self.ending = ExitStatus(self._requested_end or "lost", signal="SIGKILL")
        else:
            code, out_of_memory = self._reported_exit
            self.ending = exit_status_of(code, out_of_memory=out_of_memory, requested=self._requested_end)
        self._emit_text(b"", final=True)
        if self.pid is not None:
            self._listener.on_exited(self.ending)
        if not self.may_leave_children:
            self.terminate(LEFTOVER_GRACE)
