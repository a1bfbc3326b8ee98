"""The engine guard: a small process between an engine and its commands, one per supervisor.

It keeps one idle command guard, which takes the engine's next command, and forks another as soon as that one is busy.
It is the subreaper above the command guards: if one is killed, its descendants become children of the engine guard,
which kills them. It exits when the engine has closed the connection or ended, and every command guard has exited.
Command guards are forked from here, so they are small and contain none of the engine's memory, files or keys.
"""

from __future__ import annotations

import gc
import os
import sys
import time

from outrider.processes import platform
from outrider.processes.command_guard import guard_command, open_wakeup, wait_readable
from outrider.processes.sandbox.join import receive_descriptors

TYPE_CHECKING = False  # importing typing and socket takes longer than everything else here
if TYPE_CHECKING:
    import signal
    import socket
else:
    import _signal as signal
    import _socket as socket

CONNECTION_CLOSED = 3  # exit code of an idle guard whose connection was closed
PID_BYTES = 4
RETRY_SECONDS = 0.1  # wait before the next fork after a fork failed or a guard crashed


def main() -> None:
    """Runs the engine guard; the second argument is the engine's process id."""
    engine = int(sys.argv[2])
    os.setsid()
    os.chdir("/")
    # The engine's program may have leaked inheritable descriptors.
    os.closerange(platform.INHERITED_DESCRIPTOR + 1, os.sysconf("SC_OPEN_MAX"))
    # Ctrl-C in the terminal or a broad pkill must not stop the guard; only the end of the engine does.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    platform.become_subreaper()
    gc.disable()  # a collection in a fork would write to every object, and so copy all memory
    gc.freeze()
    handle = platform.open_pidfd(engine)
    if os.getppid() == engine:
        _EngineGuard(socket.socket(fileno=platform.INHERITED_DESCRIPTOR), handle).run()


class _EngineGuard:
    """The event loop of the engine guard: keeps one idle command guard and reaps ended ones."""

    def __init__(self, connection: socket.socket, engine: int | None) -> None:
        self._connection = connection
        self._engine = engine
        self._wakeup = open_wakeup()
        self._busy_reader, self._busy_writer = os.pipe()
        self._guards: set[int] = set()
        self._idle_guard: int | None = None
        self._is_closing = False

    def run(self) -> None:
        """Polls for ended children, busy guards and the end of the engine until everything has ended."""
        while self._guards or not self._is_closing:
            if self._idle_guard is None and not self._is_closing:
                self._fork_guard()
            engine = None if self._is_closing else self._engine
            timeout = None if self._idle_guard or self._is_closing else RETRY_SECONDS
            readable = wait_readable(self._wakeup, self._busy_reader, engine, seconds=timeout)
            if self._wakeup in readable:
                os.read(self._wakeup, 4096)
            if (
                self._busy_reader in readable
                and int.from_bytes(os.read(self._busy_reader, PID_BYTES), "big") == self._idle_guard
            ):
                self._idle_guard = None
            if self._engine in readable:
                self._is_closing = True
            self._reap_children()

    def _fork_guard(self) -> None:
        try:
            pid = os.fork()
        except OSError:
            return
        if pid == 0:
            self._run_as_guard()
        self._guards.add(pid)
        self._idle_guard = pid

    def _run_as_guard(self) -> None:
        """Runs in the forked child, and exits without running cleanup handlers of the parent."""
        code = 1
        try:
            os.close(self._wakeup)
            code = self._wait_for_command()
        finally:
            os._exit(code)

    def _wait_for_command(self) -> int:
        """Waits for the next launch request and guards that command; returns the exit code."""
        wakeup = open_wakeup()
        platform.become_subreaper()
        if self._engine in wait_readable(self._connection.fileno(), self._engine):
            return CONNECTION_CLOSED
        _, descriptors = receive_descriptors(self._connection, 4)
        if not descriptors:
            return CONNECTION_CLOSED
        os.write(self._busy_writer, os.getpid().to_bytes(PID_BYTES, "big"))
        self._connection.close()
        connection, *streams = descriptors
        guard_command(connection, streams, wakeup, self._engine)
        return 0

    def _reap_children(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._handle_exit(pid, os.waitstatus_to_exitcode(status))

    def _handle_exit(self, pid: int, code: int) -> None:
        """Handles an ended child; after a crash, kills the processes that a guard has left."""
        clean = pid in self._guards and code in (0, CONNECTION_CLOSED)  # such a guard leaves no descendants
        self._guards.discard(pid)
        if pid == self._idle_guard:
            self._idle_guard = None
            self._is_closing = self._is_closing or code == CONNECTION_CLOSED
            if not clean:
                time.sleep(RETRY_SECONDS)  # avoid a busy loop if every new guard crashes
        if not clean:
            self._kill_orphans()

    def _kill_orphans(self) -> None:
        """Kills children whose guard was killed. Their own children then become children here and are killed next."""
        for child in platform.list_children(os.getpid()):
            if child.pid not in self._guards:
                for process in [child, *platform.list_descendants(child.pid)]:
                    platform.send_signal(process, signal.SIGKILL)
