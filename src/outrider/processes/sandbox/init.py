"""The warden: the first program inside a sandbox. It locks a child in, starts the command there, and watches it.

It runs as a script of the plain interpreter, without site-packages, so it may use the standard library only, and little
of it. Inside bubblewrap it is process 1 of its namespace: nothing in there can stop it, and nothing outlives it.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import stat
import sys
import time
from binascii import a2b_base64

TYPE_CHECKING = False  # as typing has it; loading that, or the enumerations of signal, takes longer than all else here
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn
else:
    import _signal as signal

LOOK_EVERY = 0.05  # seconds between two looks at what the command uses
OOM_SCORE = b"1000"  # when memory runs out, the command goes first
CANNOT_LOCK, CANNOT_RUN, NOT_FOUND = 125, 126, 127
WAITED_FOR = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_SECCOMP, _FILTER = 22, 2
_NO_NEW_PRIVS, _PDEATHSIG, _SUBREAPER = 38, 1, 36
_CAPBSET_DROP, _SECUREBITS, _NO_ROOT_LOCKED = 24, 28, 0x2F
_CAPABILITIES = 64
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_FILE_RIGHTS = 0b1100000000000111  # execute, write, read, truncate, ioctl

libc = ctypes.CDLL(None, use_errno=True)


def main() -> NoReturn:
    """`argv` holds what the engine wrote: the command, its locks, its bounds."""
    order: dict[str, Any] = marshal.loads(a2b_base64(sys.argv[1]))
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    call(libc.prctl(_SUBREAPER, 1, 0, 0, 0))
    line = open_door(order["door"], order["port"]) if order["door"] else None
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_FOR)
    go_first()
    pid = os.fork()
    if pid == 0:
        become(order)
    Watch(order, pid, line).run()


def go_first() -> None:
    """A thousand processes must not keep the warden from ending them. Only the superuser may ask for this, and only he
    needs it: the kernel counts the processes of all others."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return


def become(order: dict[str, Any]) -> NoReturn:
    """Turn this process into the command, or end it: a lock that does not close is no reason to go without."""
    code = CANNOT_LOCK
    try:
        call(libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITED_FOR)
        for number in (*WAITED_FOR, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.environ.update(order["environment"])
        lock(order)
        code = CANNOT_RUN
        os.execvp(order["argv"][0], order["argv"])
    except FileNotFoundError:
        code = NOT_FOUND if code == CANNOT_RUN else code
        say(f"{os.fsdecode(order['argv'][0])}: not found" if code == NOT_FOUND else "a path of the sandbox is gone")
    except OSError as error:
        say(f"{'the sandbox could not be closed' if code == CANNOT_LOCK else 'cannot run'}: {error}")
    finally:
        os._exit(code)


def lock(order: dict[str, Any]) -> None:
    """The filter comes last: it refuses what the other locks need."""
    write("/proc/self/oom_score_adj", OOM_SCORE)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    for name, most in order["limits"]:
        set_limit(getattr(resource, name), most)
    # The kernel counts per user and user namespace. In one of our own, only the command and its warden are there;
    # elsewhere this limit is wide, and the watch is what counts.
    others = 1 if os.getppid() == 1 else threads_of_machine()
    set_limit(resource.RLIMIT_NPROC, others + order["bounds"]["processes"])
    if order["drop_capabilities"]:
        drop_capabilities()
    call(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    if order["landlock"]:
        close_landlock(*order["landlock"])
    program = order["seccomp"]
    words = ctypes.create_string_buffer(program, len(program))
    call(libc.prctl(_SECCOMP, _FILTER, ctypes.byref(Program(len(program) // 8, ctypes.addressof(words))), 0, 0))


def set_limit(kind: int, most: int) -> None:
    """Limits that hold already and are lower stay."""
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("words", ctypes.c_void_p))


class Handled(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def close_landlock(handled: tuple[int, int, int], size: int, grants: list[tuple[bytes, int]]) -> None:
    """`size` is how much of the attributes this kernel knows."""
    ruleset = call(libc.syscall(_CREATE_RULESET, ctypes.byref(Handled(*handled)), ctypes.c_size_t(size), 0))
    for path, rights in grants:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # gone, or not to be reached anyway: nothing to grant
            continue
        known = handled[0] if stat.S_ISDIR(os.fstat(place).st_mode) else handled[0] & _FILE_RIGHTS
        call(libc.syscall(_ADD_RULE, ruleset, 1, ctypes.byref(Beneath(rights & known, place)), 0))
        os.close(place)
    call(libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def drop_capabilities() -> None:
    """The superuser's other half; without a user namespace they would reach the whole machine."""
    if os.geteuid() == 0:
        for number in range(_CAPABILITIES):
            libc.prctl(_CAPBSET_DROP, number, 0, 0, 0)  # the kernel knows fewer, and says so
        call(libc.prctl(_SECUREBITS, _NO_ROOT_LOCKED, 0, 0, 0))
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    call(libc.capset(header, none))


def call(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class Watch:
    """Ends the command with all that it started, when it has ended or when it uses too much."""

    def __init__(self, order: dict[str, Any], main: int, line: Any) -> None:
        self._main = main
        self._line = line  # kept open until the end
        self._bounds = order["bounds"]
        self._disk = order["disk"]
        self._free = self._free_bytes()
        self._nameless = shared_memory()
        self._until = time.monotonic() + self._bounds["seconds"]

    def run(self) -> NoReturn:
        while True:
            signal.sigtimedwait(WAITED_FOR, LOOK_EVERY)
            code = self._reap()
            if code is None and (reason := self._exceeded()):
                self.end_all()
                say(f"the command was ended: {reason}")
                code = 128 + signal.SIGKILL
            if code is not None:
                self.end_all()
                os._exit(code)

    def _reap(self) -> int | None:
        """How the command ended, if it has; a signal counts from 128, as in a shell."""
        ended: int | None = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            if pid == self._main:
                code = os.waitstatus_to_exitcode(status)
                ended = code if code >= 0 else 128 - code

    def _exceeded(self) -> str | None:
        pids = everyone()
        bounds = self._bounds
        if threads(pids) > bounds["processes"]:
            return f"it started more than {bounds['processes']} processes"
        if resident(pids) > bounds["memory"] and shared_fairly(pids) > bounds["memory"]:
            return f"it used more than {bounds['memory'] >> 20} MiB of memory"
        if shared_memory() - self._nameless > bounds["memory"]:
            return f"it shared more than {bounds['memory'] >> 20} MiB of memory"
        if self._free - self._free_bytes() > bounds["disk"]:
            return f"it wrote more than {bounds['disk'] >> 20} MiB"
        if time.monotonic() > self._until:
            return f"it ran for more than {bounds['seconds']:g} seconds"
        return None

    def _free_bytes(self) -> int:
        try:
            found = os.statvfs(self._disk)
        except OSError:
            return 0
        return found.f_bfree * found.f_frsize

    def end_all(self) -> None:
        """Until none is left; in a namespace of one's own the kernel does it at one blow."""
        while pids := everyone():
            if os.getpid() == 1:
                pids = [-1]
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue
            self._reap()
            time.sleep(0.001)


def everyone() -> list[int]:
    """Everything that descends from here."""
    if os.getpid() == 1:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1"]  # noqa: PTH208
    found = children(os.getpid())
    for pid in found:
        found += children(pid)  # the list grows while it is walked
    return found


def children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
        return [int(child) for thread in threads for child in read(f"/proc/{pid}/task/{thread}/children").split()]
    except OSError:
        return []


def threads(pids: list[int]) -> int:
    stats = (read(f"/proc/{pid}/stat").rpartition(b")")[2].split() for pid in pids)
    return sum(int(fields[17]) for fields in stats if fields)


def threads_of_machine() -> int:
    """Never fewer than the user's own, and told in one line."""
    return int(read("/proc/loadavg").split()[3].partition(b"/")[2])


def shared_memory() -> int:
    """Of the whole machine: files in memory belong to no process, so only their growth can be seen."""
    for line in read("/proc/meminfo").splitlines():
        if line.startswith(b"Shmem:"):
            return int(line.split()[1]) * 1024
    return 0


def resident(pids: list[int]) -> int:
    """Counts what processes share once for each; quick, and never too little."""
    page = resource.getpagesize()
    return sum(int(fields[1]) * page for pid in pids if (fields := read(f"/proc/{pid}/statm").split()))


def shared_fairly(pids: list[int]) -> int:
    """Each process's fair part of what it shares; slow, so only asked when the quick sum is too large."""
    total = 0
    for pid in pids:
        lines = [line.split() for line in read(f"/proc/{pid}/smaps_rollup").splitlines() if line.startswith(b"Pss:")]
        total += int(lines[0][1]) * 1024 if lines else resident([pid])
    return total


def read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  pathlib takes longer to load than all else here
            return file.read()
    except OSError:  # it ended meanwhile
        return b""


def write(path: str, content: bytes) -> None:
    with open(path, "wb", buffering=0) as file:  # noqa: PTH123
        file.write(content)


def open_door(door: str, port: int) -> Any:
    """Listen inside for the doorman outside: a socket belongs to the network it was made in, whoever holds it. The line
    to the doorman says by its end that all here has ended."""
    import socket

    line = socket.socket(socket.AF_UNIX)
    with socket.socket() as inside:
        inside.bind(("127.0.0.1", port))
        inside.listen(64)
        line.connect(door)
        socket.send_fds(line, [b"+"], [inside.fileno()])
        line.recv(1)
    return line


def say(words: str) -> None:
    os.write(2, f"outrider: {words}\n".encode(errors="replace"))


if __name__ == "__main__":
    main()
