"""The keeper of one command: starts it, tells the engine how it ended, and ends with all that the command left behind.

It runs in its own small process between the guardian and the command, never in the engine. Its line to the engine is a
socket: a length and the request come first, then words like `kill 5`; it answers `started`, `failed`, `exited`, one a
line. When nothing is left alive it ends, and the line with it. When the line (or the engine) ends first, so does
everything that the keeper keeps.
"""

import marshal
import os
import select
import signal
import socket
import time
from typing import Any

from outrider.processes import platform

GRACE_WITHOUT_ENGINE = 0.5
AGAIN = 0.02  # seconds between two rounds of killing, for what was born during the first
GIVE_UP = 10.0  # what SIGKILL has not ended by then waits inside the kernel
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # the second is how a shell says it of what it ran


def open_wakeup() -> int:
    """A descriptor that becomes readable when a child has ended, so that one poll can wait for everything."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.signal(signal.SIGCHLD, _wake)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def _wake(_number: int, _frame: object) -> None:
    """A signal wakes the poll only if somebody is there to take it."""


def wait_for(*descriptors: int | None, seconds: float | None = None) -> set[int]:
    """Those of the descriptors that are readable, as soon as one is, or none after so many seconds."""
    poller = select.poll()
    for descriptor in descriptors:
        if descriptor is not None:
            poller.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(None if seconds is None else max(0.0, seconds) * 1000)}


def keep(line: socket.socket, streams: list[int], wakeup: int, engine: int | None) -> None:
    """Returns when nothing of the command is alive. The streams are the command's input, output and errors."""
    size = int.from_bytes(_receive(line, 4), "big")
    request: dict[str, Any] = marshal.loads(_receive(line, size))
    try:
        pid = _start(request, streams)
    except _Failure as failure:
        _tell(line, f"failed {failure}")
        return
    for descriptor in streams:
        os.close(descriptor)
    _tell(line, f"started {pid}")
    _Keeper(line, engine, pid).run(wakeup)


class _Failure(Exception):
    """What could not be done, and why."""


def _start(request: dict[str, Any], streams: list[int]) -> int:
    """The keeper takes on the folder of the command, which inherits it."""
    step = "workdir"
    try:
        os.chdir(request["workdir"])
        step = "program"
        return platform.start_command(request["argv"], request["environment"], streams, request["limits"])
    except (OSError, ValueError) as error:
        raise _Failure(f"{step} {getattr(error, 'strerror', None) or error}".replace("\n", " ")) from error


class _Keeper:
    def __init__(self, line: socket.socket, engine: int | None, main: int) -> None:
        self._line = line
        self._engine = engine
        self._main = main
        self._heeds = True
        self._deadline: float | None = None
        self._give_up = 0.0
        platform.prefer_for_oom(main)
        self._oom_kills = platform.count_oom_kills()

    def run(self, wakeup: int) -> None:
        while self._reap():
            heard = (self._line.fileno(), self._engine) if self._heeds else ()
            ready = wait_for(wakeup, *heard, seconds=self._patience())
            if wakeup in ready:
                os.read(wakeup, 4096)
            if self._engine in ready or (self._line.fileno() in ready and not self._listen()):
                self._heeds = False
                self._end(GRACE_WITHOUT_ENGINE)
            if self._patience() == 0 and not self._kill():
                return

    def _reap(self) -> bool:
        """False when no descendant is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._main:
                code = os.waitstatus_to_exitcode(status)
                memory = code in KILLED and platform.count_oom_kills() > self._oom_kills
                _tell(self._line, f"exited {code} {int(memory)}")

    def _listen(self) -> bool:
        """False when the engine has let go of the line."""
        try:
            words = self._line.recv(4096).split()
        except OSError:
            return False
        for grace in words[1::2]:
            self._end(float(grace))
        return bool(words)

    def _end(self, grace: float) -> None:
        """Ask everything to end; after so many seconds it is made to. Asked again, the earlier time counts."""
        now = time.monotonic()
        if self._deadline is None:
            self._signal(signal.SIGTERM, signal.SIGCONT)
            self._deadline = now + grace
        self._deadline = min(self._deadline, now + grace)

    def _kill(self) -> bool:
        """False when it is no use any more."""
        now = time.monotonic()
        self._signal(signal.SIGKILL)
        self._deadline = now + AGAIN
        self._give_up = self._give_up or now + GIVE_UP
        return now < self._give_up

    def _signal(self, *numbers: int) -> None:
        for process in platform.descendants(os.getpid()):
            for number in numbers:
                platform.send_signal(process, number)

    def _patience(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())


def _receive(line: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = line.recv(size - len(received))
        if not piece:
            raise EOFError("the engine is gone")
        received += piece
    return bytes(received)


def _tell(line: socket.socket, words: str) -> None:
    try:
        line.sendall(f"{words}\n".encode())
    except OSError:  # the engine is gone; the poll will say so
        return
