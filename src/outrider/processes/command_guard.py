"""The command guard: a small process that starts one command, reports its exit and kills its descendants.

It is forked by the engine guard and is the parent of the command. Its connection to the engine is a socket. The engine
sends a length and a launch request, then lines such as `kill 5`. The guard answers with lines: `started`, `failed`,
`left`, `exited`. It exits when no descendant is alive, which closes the connection. If the connection closes first,
or the engine ends, the guard kills all descendants.
"""

from __future__ import annotations

import marshal
import os
import select
import time

from outrider.processes import platform
from outrider.processes.sandbox.join import JoinedCommand, start_in_namespaces

TYPE_CHECKING = False  # importing typing takes longer than everything else here
if TYPE_CHECKING:
    import signal
    from typing import Any
else:
    import _signal as signal

ORPHAN_GRACE = 0.5
KILL_INTERVAL = 0.02  # seconds between two rounds of SIGKILL; a round misses processes that start during it
KILL_TIMEOUT = 10.0  # seconds; a process that is still alive then is blocked inside the kernel
KILLED_CODES = (-signal.SIGKILL, 128 + signal.SIGKILL)  # a shell reports a signal of its child as 128 + n


def open_wakeup() -> int:
    """Returns a descriptor that becomes readable when a child has ended, so that one poll covers all events."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.signal(signal.SIGCHLD, _ignore_sigchld)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def _ignore_sigchld(_number: int, _frame: object) -> None:
    """Does nothing. Python writes to the wakeup descriptor only for signals that have a handler."""


def wait_readable(*descriptors: int | None, seconds: float | None = None) -> set[int]:
    """Polls until a descriptor is readable or the timeout expires; returns the readable descriptors."""
    poller = select.poll()
    for descriptor in descriptors:
        if descriptor is not None:
            poller.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(None if seconds is None else max(0.0, seconds) * 1000)}


def guard_command(connection: int, streams: list[int], wakeup: int, engine: int | None) -> None:
    """Starts a command and returns when no descendant of it is alive.

    `connection` is the descriptor of the socket to the engine, `streams` are the command's standard input, output and
    error. `engine` is a pidfd of the engine, if available.
    """
    size = int.from_bytes(_receive_exactly(connection, 4), "big")
    request: dict[str, Any] = marshal.loads(_receive_exactly(connection, size))
    try:
        started = _start_command(request, streams, connection, engine)
    except _StartFailure as failure:
        _send_line(connection, f"failed {failure}")
        return
    for descriptor in streams:
        os.close(descriptor)
    pid, joined = (started, None) if isinstance(started, int) else (started.pid, started)
    _send_line(connection, f"started {pid}")
    _CommandGuard(connection, engine, pid, joined).run(wakeup)


class _StartFailure(Exception):
    """The command could not be started; the message names the step and the reason."""


def _start_command(
    request: dict[str, Any], streams: list[int], connection: int, engine: int | None
) -> int | JoinedCommand:
    """Starts a command and returns its process id, or the command if it runs in namespaces that this guard has joined.

    Changes the guard's own working folder, because the command inherits it."""
    step = "workdir"
    try:
        os.chdir(request["workdir"])
        step = "program"
        if request["join"]:
            return start_in_namespaces(request, streams, connection, engine)
        return platform.spawn_command(request["argv"], request["environment"], streams, request["limits"])
    except (OSError, ValueError) as error:
        raise _StartFailure(f"{step} {getattr(error, 'strerror', None) or error}".replace("\n", " ")) from error


class _CommandGuard:
    """The event loop of a command guard: reaps children and handles kill requests."""

    def __init__(self, connection: int, engine: int | None, main_pid: int, joined: JoinedCommand | None) -> None:
        self._connection = connection
        self._engine = engine
        self._main_pid = main_pid
        self._joined = joined
        self._is_connected = True
        self._deadline: float | None = None
        self._kill_deadline = 0.0
        if joined is None:
            platform.prefer_for_oom(main_pid)
        self._oom_kills = platform.count_oom_kills()

    def run(self, wakeup: int) -> None:
        """Polls until no descendant is alive, or until killing times out."""
        while self._reap_children():
            sources = (self._connection, self._engine) if self._is_connected else ()
            readable = wait_readable(wakeup, *sources, seconds=self._seconds_to_poll())
            if wakeup in readable:
                os.read(wakeup, 4096)
            if self._engine in readable or (self._connection in readable and not self._read_requests()):
                self._is_connected = False
                self._terminate_all(ORPHAN_GRACE)
            if self._joined is not None:
                self._joined.enforce_limits()
            if self._seconds_to_deadline() == 0 and not self._kill_all():
                return

    def _reap_children(self) -> bool:
        """Reaps ended children; returns False if no descendant is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._main_pid:
                self._report_exit(os.waitstatus_to_exitcode(status))

    def _report_exit(self, code: int) -> None:
        if self._joined is not None:
            code = self._joined.end(code, self._report_leftovers)
            self._joined = None
        memory = code in KILLED_CODES and platform.count_oom_kills() > self._oom_kills
        _send_line(self._connection, f"exited {code} {int(memory)}")

    def _report_leftovers(self, lines: list[str]) -> None:
        for line in lines:
            _send_line(self._connection, f"left {line}")

    def _read_requests(self) -> bool:
        """Handles kill requests; returns False if the engine has closed the connection."""
        try:
            requests = os.read(self._connection, 4096).split()
        except OSError:
            return False
        for grace in requests[1::2]:
            self._terminate_all(float(grace))
        return bool(requests)

    def _terminate_all(self, grace: float) -> None:
        """Sends SIGTERM and sets the deadline for SIGKILL. A repeated call can only make the deadline earlier."""
        now = time.monotonic()
        if self._deadline is None:
            self._signal_descendants(signal.SIGTERM, signal.SIGCONT)
            self._deadline = now + grace
        self._deadline = min(self._deadline, now + grace)

    def _kill_all(self) -> bool:
        """Sends SIGKILL to all descendants; returns False after KILL_TIMEOUT."""
        now = time.monotonic()
        self._signal_descendants(signal.SIGKILL)
        self._deadline = now + KILL_INTERVAL
        self._kill_deadline = self._kill_deadline or now + KILL_TIMEOUT
        return now < self._kill_deadline

    def _signal_descendants(self, *numbers: int) -> None:
        for process in platform.list_descendants(os.getpid()):
            for number in numbers:
                platform.send_signal(process, number)

    def _seconds_to_poll(self) -> float | None:
        """Returns the seconds until the command must be checked again; None if only events matter."""
        poll = None if self._joined is None else self._joined.poll_seconds
        deadline = self._seconds_to_deadline()
        return deadline if poll is None else poll if deadline is None else min(poll, deadline)

    def _seconds_to_deadline(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())


def _receive_exactly(connection: int, size: int) -> bytes:
    """Returns exactly `size` bytes. Raises EOFError if the connection closes first."""
    received = bytearray()
    while len(received) < size:
        chunk = os.read(connection, size - len(received))
        if not chunk:
            raise EOFError("the engine closed the connection")
        received += chunk
    return bytes(received)


def _send_line(connection: int, text: str) -> None:
    line = f"{text}\n".encode()
    try:
        while line:
            line = line[os.write(connection, line) :]
    except OSError:  # the engine has ended; the poll reports that
        return
