"""All that differs between operating systems about processes: finding a process's descendants, telling it from a later
one of the same number, outliving nobody.

Linux keeps every promise: whatever a command leaves behind stays under its keeper, which is a subreaper. Elsewhere
(macOS, BSD) a descendant that detaches itself twice is out of reach. Windows is not supported yet.
"""

import contextlib
import errno
import fcntl
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, NoReturn

from outrider.errors import ConfigurationError

if sys.platform == "win32":
    raise ConfigurationError("Outrider cannot run commands on Windows yet; use it inside WSL")


LINUX = sys.platform == "linux"
_CHILDREN_LISTED = os.access(f"/proc/self/task/{os.getpid()}/children", os.R_OK)
_PR_SET_CHILD_SUBREAPER = 36
_F_SETPIPE_SZ = 1031
PIPE_BYTES = 1 << 18  # a user has 64 MiB for all pipes
HANDED_OVER = 3
_OOM_SCORE = b"300"  # as if it used three tenths of the memory more; browsers say the same of their pages
_CHANGED_SIGNALS = (
    signal.SIGPIPE,  # Python ignores these two,
    signal.SIGXFSZ,
    signal.SIGTERM,  # and guards these
    signal.SIGINT,
    signal.SIGHUP,
)
_Actions = list[tuple[int, int, int] | tuple[int, int, str, int, int]]


class Identity(NamedTuple):
    """A process for certain: numbers are used again, a number with the time it was started is not."""

    pid: int
    start: str


def start_program(argv: list[str], environment: Mapping[str, str], descriptor: int) -> int:
    """A child that finds this descriptor as number HANDED_OVER; its number."""
    high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HANDED_OVER + 1)  # onto itself it would stay close-on-exec
    actions: _Actions = [(os.POSIX_SPAWN_DUP2, high, HANDED_OVER)]
    actions += [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(HANDED_OVER)]
    try:
        return os.posix_spawn(argv[0], argv, environment, file_actions=actions)
    finally:
        os.close(high)


def start_command(
    argv: list[bytes], environment: dict[bytes, bytes], streams: Sequence[int], limits: Sequence[tuple[str, int]] = ()
) -> int:
    """A child alone in its session, without terminal, its signals as if nothing had ever changed them; its number.

    The streams are not 0, 1 or 2. The system's own way to start a program copies no memory, but knows no limits."""
    program = _found(argv[0], environment)
    if limits:
        return _fork(lambda: os.execve(program, argv, environment), streams, limits)
    return os.posix_spawn(
        program,
        argv,
        environment,
        file_actions=[(os.POSIX_SPAWN_DUP2, stream, number) for number, stream in enumerate(streams)],
        setsigdef=_CHANGED_SIGNALS,
        setsigmask=[],
        setsid=True,
    )


def _fork(become: Callable[[], NoReturn], streams: Sequence[int], limits: Sequence[tuple[str, int]]) -> int:
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _prepare(streams, limits)
            become()
        except BaseException as error:  # noqa: BLE001  whatever it is, this copy must end here
            os.write(writable, str(getattr(error, "errno", None) or errno.EINVAL).encode())
        finally:
            os._exit(127)
    os.close(writable)
    failure = os.read(readable, 16)  # nothing, once the program has taken over
    os.close(readable)
    if failure:
        os.waitpid(pid, 0)
        raise OSError(int(failure), os.strerror(int(failure)))
    return pid


def _prepare(streams: Sequence[int], limits: Sequence[tuple[str, int]]) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (*_CHANGED_SIGNALS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for name, most in limits:
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        granted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (granted, granted))


def _found(program: bytes, environment: dict[bytes, bytes]) -> bytes:
    if b"/" in program:
        return program
    folders = environment.get(b"PATH", os.fsencode(os.defpath)).split(b":")
    places = (folder + b"/" + program for folder in folders)
    return next((place for place in places if os.access(place, os.X_OK)), program)


def become_subreaper() -> None:
    """Descendants that lose their parent become children of this process instead of the system's first."""
    if LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@cache
def _libc() -> Any:
    import ctypes  # only guards need it

    return ctypes.CDLL(None)


def _prctl(option: int, value: int) -> None:
    _libc().prctl(option, value, 0, 0, 0)


def open_process(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where there is no such thing."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            return os.pidfd_open(pid)
    return None


def send_signal(process: Identity, number: int) -> None:
    """Signal this process and no later one of the same number."""
    handle = open_process(process.pid)  # from here on the number stays with whatever has it now
    try:
        if start_of(process.pid) != process.start:
            return
        with contextlib.suppress(OSError):
            if sys.platform == "linux" and handle is not None:
                signal.pidfd_send_signal(handle, number)
            else:
                os.kill(process.pid, number)
    finally:
        if handle is not None:
            os.close(handle)


def start_of(pid: int) -> str | None:
    """When the process was started, in the system's own words; None if it has ended (a zombie has)."""
    if not _CHILDREN_LISTED:
        return next((start for found, _, start in _listed_by_ps() if found == pid), None)
    fields = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return fields[19].decode() if fields and fields[0] not in b"ZX" else None


def children(pid: int) -> list[Identity]:
    if not _CHILDREN_LISTED:
        return [Identity(found, start) for found, parent, start in _listed_by_ps() if parent == pid]
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as threads:
        pids = [int(child) for thread in threads for child in _content(f"{thread.path}/children").split()]
        return [Identity(child, start) for child in pids if (start := start_of(child))]
    return []


def descendants(pid: int) -> list[Identity]:
    """Parents before their children. One that is born meanwhile may be missing: look again until none is left."""
    found = children(pid)
    for process in found:
        found += children(process.pid)  # the list grows while it is walked
    return found


def _listed_by_ps() -> list[tuple[int, int, str]]:
    import subprocess  # too much to load for what Linux never needs

    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="], capture_output=True, check=False)
    rows = [line.split(maxsplit=3) for line in listing.stdout.decode("ascii", "replace").splitlines()]
    return [(int(row[0]), int(row[1]), row[3]) for row in rows if len(row) == 4 and row[2][0] != "Z"]


def count_oom_kills() -> int:
    """How many processes this system has killed for want of memory, ever; 0 where it does not tell."""
    _, found, rest = _content("/proc/vmstat").partition(b"\noom_kill ")
    return int(rest.split()[0]) if found else 0


def prefer_for_oom(pid: int) -> None:
    """When memory runs out, the command should go rather than the engine."""
    with contextlib.suppress(OSError):
        descriptor = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
        try:
            os.write(descriptor, _OOM_SCORE)
        finally:
            os.close(descriptor)


def _content(path: str) -> bytes:
    """Of a file that the system makes up; nothing if there is none. Plain calls: pathlib is much for guards to load."""
    content = b""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            while piece := os.read(descriptor, 1 << 16):
                content += piece
        finally:
            os.close(descriptor)
    return content


def enlarge_pipe(descriptor: int) -> None:
    """A flood through a small pipe is mostly waiting for the other side."""
    if LINUX:
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, _F_SETPIPE_SZ, PIPE_BYTES)
