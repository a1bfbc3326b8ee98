"""One command as the engine sees it: what it writes, what it is given to read, and its end with all that it started."""

import asyncio
import codecs
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from typing import Literal, Protocol, assert_never

import msgspec

from outrider.errors import ProcessError
from outrider.processes import platform
from outrider.processes.launch import Launch
from outrider.processes.output import Output
from outrider.processes.spawner import Spawner

Cause = Literal["exited", "signaled", "memory", "killed", "timeout", "lost"]


class Ending(msgspec.Struct, frozen=True):
    """`exit_code` is None when a signal ended the process; `signal` is the signal's name."""

    cause: Cause
    exit_code: int | None = None
    signal: str | None = None

    @property
    def succeeded(self) -> bool:
        return self.cause == "exited" and self.exit_code == 0

    @property
    def words(self) -> str:
        match self.cause:
            case "exited":
                return f"exit code {self.exit_code}{_by_shell(self.exit_code or 0)}"
            case "signaled":
                return f"killed by {self.signal}"
            case "memory":
                return "killed (memory)"
            case "killed":
                return "killed"
            case "timeout":
                return "killed after its time limit"
            case "lost":
                return "lost: the process that watched over it was killed, and it with it"
            case _:
                assert_never(self.cause)


def ending_of(code: int, *, out_of_memory: bool, because: Literal["killed", "timeout"] | None) -> Ending:
    """`code` is negative for a signal; `because` says that the end was asked for, which explains any signal."""
    killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    cause: Cause = "signaled" if code < 0 else "exited"
    if because is not None:
        cause = because
    elif killed and out_of_memory:
        cause = "memory"
    return Ending(cause, code if code >= 0 else None, signal_name(-code) if code < 0 else None)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have numbers only
        return f"signal {number}"


def _by_shell(code: int) -> str:
    """A shell says with 128 and more that a signal ended what it ran."""
    name = signal_name(code - 128) if 128 < code < 192 else ""
    return f" ({name})" if name.startswith("SIG") else ""


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


DRAIN = 0.2  # seconds that output is still read after the end, if something left behind keeps the pipe open
LEFTOVER_GRACE = 0.1
START = 30.0  # seconds; only a system that is out of processes takes so long

Asked = Literal["killed", "timeout"]


class ProcessWatcher(Protocol):
    """Hears what happens to a process, in this order, and must not raise. Text is decoded for those who want it."""

    @property
    def wants_text(self) -> bool: ...
    def started(self, pid: int) -> None: ...
    def wrote(self, text: str) -> None: ...
    def exited(self, ending: Ending) -> None: ...
    def gone(self) -> None: ...


class Process:
    """`exited` is set when the command has ended and its output is complete; `gone` when also nothing that it started
    is alive. Unless it `may_leave` something behind, that is killed at its end."""

    def __init__(self, output: Output, watcher: ProcessWatcher) -> None:
        self.output = output
        self.may_leave = False
        self.pid: int | None = None
        self.ending: Ending | None = None
        self.exited = asyncio.Event()
        self.gone = asyncio.Event()
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._asked: Asked | None = None
        self._exit: tuple[int, bool] | None = None
        self._line: socket.socket | None = None
        self._heard = b""
        self._output: OutputPipe | None = None
        self._input: InputPipe | None = None

    async def start(self, spawner: Spawner, launch: Launch, *, takes_input: bool) -> None:
        """Returns when the command runs; what cannot be started raises ProcessError."""
        try:
            self._input = stdin = InputPipe(silent=not takes_input)
            self._output = output = OutputPipe(self._receive)
            self._line = await spawner.spawn(launch, stdin.theirs.fileno(), output.theirs.fileno())
            stdin.theirs.close()
            output.theirs.close()
            self._loop.add_reader(self._line, self._listen)
            if self._asked is not None:  # to end, before there was anybody to ask
                self.end(0)
            async with asyncio.timeout(START):
                await self._started
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError):
                why = f"nothing happened for {START:g} s" if isinstance(error, TimeoutError) else error
                raise ProcessError(f"the command cannot be started: {why}") from error
            raise

    def end(self, grace: float, because: Asked | None = None) -> None:
        """Ask all of it to end, and make it end after so many seconds; `gone` tells when it has."""
        if self._exit is None:
            self._asked = self._asked or because
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.send(f"kill {grace:.3f}\n".encode())

    async def write(self, text: str) -> None:
        if self._input is None:
            raise ProcessError("the process takes no input: it has not started yet")
        await self._input.write(text)

    def close_input(self) -> None:
        if self._input is not None:
            self._input.close()

    def abandon(self) -> None:
        """Let go of it: whatever is still alive ends by this, soon, and nobody hears of it."""
        if self._line is not None:
            self._loop.remove_reader(self._line)
            self._line.close()
            self._line = None
        if self._output is not None:
            self._output.close()
        self.close_input()
        self._complete()
        if self.pid is not None and not self.gone.is_set():
            self._watcher.gone()
        self.gone.set()

    def _listen(self) -> None:
        """News from the keeper, one a line. The line ends when nothing is alive."""
        assert self._line is not None
        try:
            received = self._line.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        *lines, self._heard = (self._heard + received).split(b"\n")
        for line in lines:
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            self._learn(word, rest)
        if not received:
            self._settle_start(ProcessError("the command cannot be started: no process could be made for it"))
            self._drain()
            self.abandon()

    def _learn(self, word: str, rest: str) -> None:
        if word == "started":
            self.pid = int(rest)
            self._settle_start()
            self._watcher.started(self.pid)
            if self._output is not None:
                self._output.listen()
        elif word == "failed":
            step, _, why = rest.partition(" ")
            self._settle_start(ProcessError(f"the command cannot be started: {step}: {why}"))
        elif word == "exited":
            code, out_of_memory = rest.split()
            self._exit = int(code), out_of_memory == "1"
            if self._output is not None and self._output.is_open:
                self._loop.call_later(DRAIN, self._complete)
            else:
                self._complete()

    def _settle_start(self, error: ProcessError | None = None) -> None:
        if self._started.done():
            return
        if error is None:
            self._started.set_result(None)
        else:
            self._started.set_exception(error)

    def _receive(self, chunk: bytes) -> None:
        if chunk:
            self.output.write(chunk)
            self._show(chunk)
        elif self._exit is not None:
            self._complete()

    def _show(self, chunk: bytes, *, final: bool = False) -> None:
        if self._watcher.wants_text and (text := self._decoder.decode(chunk, final)):
            self._watcher.wrote(text)

    def _drain(self) -> None:
        if self._output is not None:
            self._output.drain()

    def _complete(self) -> None:
        """The command has ended, and what it wrote before has been read."""
        if self.exited.is_set():
            return
        self.exited.set()
        self._drain()  # a stalled event loop may not have read all of it
        if self._exit is None:  # its keeper was killed, and it with it
            self.ending = Ending(self._asked or "lost", signal="SIGKILL")
        else:
            code, out_of_memory = self._exit
            self.ending = ending_of(code, out_of_memory=out_of_memory, because=self._asked)
        self._show(b"", final=True)
        if self.pid is not None:
            self._watcher.exited(self.ending)
        if not self.may_leave:
            self.end(LEFTOVER_GRACE)
