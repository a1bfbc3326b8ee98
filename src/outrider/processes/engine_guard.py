"""The guardian: a small process between an engine and all that it starts, one per supervisor.

It has one keeper in waiting, which takes the engine's next command, and forks another as soon as that one is busy. It
is itself the subreaper above them: should a keeper be killed, what it kept falls to the guardian, which kills it. It
ends when its engine has let go of the line (or ended) and every keeper has ended. Being forked from here instead of
from the engine, keepers are small, and have none of the engine's memory, files or keys.
"""

import os
import signal
import socket
import sys
import time

from outrider.processes import platform
from outrider.processes.command_guard import keep, open_wakeup, wait_for

LINE_ENDED = 3  # exit code of a keeper that waited in vain
NUMBER = 4  # bytes of a process number
TRY_AGAIN = 0.1  # seconds, when the system refuses another process or one fails


def main() -> None:
    """`argv` holds the number of the engine's process."""
    engine = int(sys.argv[1])
    os.setsid()
    os.chdir("/")
    os.closerange(platform.HANDED_OVER + 1, os.sysconf("SC_OPEN_MAX"))  # the engine's program may have let some through
    # A terminal's Ctrl-C or a broad pkill is not the end: only the engine's end is.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    platform.become_subreaper()
    handle = platform.open_process(engine)
    if os.getppid() == engine:
        _Guardian(socket.socket(fileno=platform.HANDED_OVER), handle).run()


class _Guardian:
    def __init__(self, line: socket.socket, engine: int | None) -> None:
        self._line = line
        self._engine = engine
        self._wakeup = open_wakeup()
        self._busy, self._tell_busy = os.pipe()
        self._keepers: set[int] = set()
        self._waiting: int | None = None
        self._ended = False

    def run(self) -> None:
        while self._keepers or not self._ended:
            if self._waiting is None and not self._ended:
                self._fork()
            engine = None if self._ended else self._engine
            patience = None if self._waiting or self._ended else TRY_AGAIN
            ready = wait_for(self._wakeup, self._busy, engine, seconds=patience)
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
            if self._busy in ready and int.from_bytes(os.read(self._busy, NUMBER), "big") == self._waiting:
                self._waiting = None
            if self._engine in ready:
                self._ended = True
            self._reap()

    def _fork(self) -> None:
        try:
            pid = os.fork()
        except OSError:
            return
        if pid == 0:
            self._become_keeper()
        self._keepers.add(pid)
        self._waiting = pid

    def _become_keeper(self) -> None:
        code = 1
        try:
            os.close(self._wakeup)
            code = self._wait_and_keep()
        finally:
            os._exit(code)

    def _wait_and_keep(self) -> int:
        wakeup = open_wakeup()
        platform.become_subreaper()
        if self._engine in wait_for(self._line.fileno(), self._engine):
            return LINE_ENDED
        _, descriptors, _, _ = socket.recv_fds(self._line, 1, 4)
        if not descriptors:
            return LINE_ENDED
        for descriptor in descriptors:  # received ones would go on to the command
            os.set_inheritable(descriptor, False)  # noqa: FBT003  it takes no names
        os.write(self._tell_busy, os.getpid().to_bytes(NUMBER, "big"))
        self._line.close()
        line, *streams = descriptors
        keep(socket.socket(fileno=line), streams, wakeup, self._engine)
        return 0

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._bury(pid, os.waitstatus_to_exitcode(status))

    def _bury(self, pid: int, code: int) -> None:
        clean = pid in self._keepers and code in (0, LINE_ENDED)  # such a keeper leaves nothing
        self._keepers.discard(pid)
        if pid == self._waiting:
            self._waiting = None
            self._ended = self._ended or code == LINE_ENDED
            if not clean:
                time.sleep(TRY_AGAIN)  # whatever ends it so, this must not become a race
        if not clean:
            self._kill_orphans()

    def _kill_orphans(self) -> None:
        """A child that is no keeper has lost its own; killing it may bring its children here, and this again."""
        for child in platform.children(os.getpid()):
            if child.pid not in self._keepers:
                for process in [child, *platform.descendants(child.pid)]:
                    platform.send_signal(process, signal.SIGKILL)
