"""One command as the engine sees it: what it writes, what it is given to read, and its end with all that it started."""

import asyncio
import codecs
import contextlib
import socket
from typing import Literal, Protocol

from outrider.errors import ProcessError
from outrider.processes.ending import Ending, ending_of
from outrider.processes.guards.spawner import Spawner
from outrider.processes.launch import Launch
from outrider.processes.output import Output
from outrider.processes.pipes import InputPipe, OutputPipe

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
