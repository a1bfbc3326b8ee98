"""Process functions that differ between operating systems: spawn, list descendants, send signals safely.

On Linux every descendant of a command stays below its guard, because the guard is a child subreaper. On macOS and BSD
a descendant that detaches itself twice cannot be found. Windows is not supported yet. The guards load this module, so
it imports little.
"""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False  # importing typing takes longer than everything else here
if TYPE_CHECKING:
    import fcntl
    import resource
    import signal
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn
else:
    import _signal as signal

    try:  # without `outrider._posix`, which imports too much for guard processes
        import fcntl
        import resource
    except ImportError:
        fcntl = resource = None  # Windows, where no process is started


LINUX = sys.platform == "linux"
_PR_SET_CHILD_SUBREAPER = 36
_F_SETPIPE_SZ = 1031
PIPE_BYTES = 1 << 18  # the kernel allows an unprivileged user 64 MiB for all pipes
INHERITED_DESCRIPTOR = 3
PACKAGE_FOLDER = __file__.rpartition("/processes/")[0]
# Makes modules of this package available to a new interpreter, which gets PACKAGE_FOLDER as its first argument. The
# package itself is not executed: its public names need modules that take longer to import than a guard to start.
IMPORT_SCRIPT = (
    "import sys; package = type(sys)('outrider'); package.__path__ = [sys.argv[1]]; sys.modules['outrider'] = package"
)
_OOM_SCORE = b"300"  # added to the badness score of 0 to 1000; browsers use the same value for their tabs
_RESET_SIGNALS = (
    signal.SIGPIPE,  # Python ignores SIGPIPE and SIGXFSZ
    signal.SIGXFSZ,
    signal.SIGTERM,  # the guards ignore or handle the others
    signal.SIGINT,
    signal.SIGHUP,
)


class ProcessInstance:
    """A process id with its start time. The kernel reuses process ids, but not the pair."""

    __slots__ = ("pid", "start")

    def __init__(self, pid: int, start: str) -> None:
        self.pid = pid
        self.start = start


def spawn_program(argv: list[str], environment: Mapping[str, str], descriptor: int) -> int:
    """Starts a program that inherits one descriptor as INHERITED_DESCRIPTOR; returns its process id."""
    high = fcntl.fcntl(
        descriptor, fcntl.F_DUPFD_CLOEXEC, INHERITED_DESCRIPTOR + 1
    )  # dup2 onto itself would leave it close-on-exec
    actions: list[Any] = [(os.POSIX_SPAWN_DUP2, high, INHERITED_DESCRIPTOR)]
    actions += [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(INHERITED_DESCRIPTOR)]
    try:
        return os.posix_spawn(argv[0], argv, environment, file_actions=actions)
    finally:
        os.close(high)


def spawn_command(
    argv: list[bytes], environment: dict[bytes, bytes], streams: Sequence[int], limits: Sequence[tuple[str, int]] = ()
) -> int:
    """Starts a command in a new session, without a terminal and with default signal handlers; returns its process id.

    `streams` are its standard streams; their numbers are above 2. Uses posix_spawn, which copies no memory, unless
    there are resource limits, which posix_spawn cannot set.
    """
    program = find_program(argv[0], environment)
    if limits:
        return _fork_and_exec(lambda: os.execve(program, argv, environment), streams, limits)
    return os.posix_spawn(
        program,
        argv,
        environment,
        file_actions=[(os.POSIX_SPAWN_DUP2, stream, number) for number, stream in enumerate(streams)],
        setsigdef=_RESET_SIGNALS,
        setsigmask=[],
        setsid=True,
    )


def _fork_and_exec(
    exec_program: Callable[[], NoReturn], streams: Sequence[int], limits: Sequence[tuple[str, int]]
) -> int:
    """Forks and runs `exec_program` in the child. Raises the OSError that occurs in the child."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _prepare_child(streams, limits)
            exec_program()
        except BaseException as error:  # noqa: BLE001  the forked copy must exit here in any case
            os.write(writable, str(getattr(error, "errno", None) or errno.EINVAL).encode())
        finally:
            os._exit(127)
    os.close(writable)
    failure = os.read(readable, 16)  # exec closes the pipe, so it is empty on success
    os.close(readable)
    if failure:
        os.waitpid(pid, 0)
        raise OSError(int(failure), os.strerror(int(failure)))
    return pid


def _prepare_child(streams: Sequence[int], limits: Sequence[tuple[str, int]]) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (*_RESET_SIGNALS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for name, limit in limits:
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        granted = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (granted, granted))


def find_program(program: bytes, environment: dict[bytes, bytes]) -> bytes:
    """Searches the command's own PATH, since posix_spawn would use the PATH of this process."""
    if b"/" in program:
        return program
    folders = environment.get(b"PATH", os.fsencode(os.defpath)).split(b":")
    candidates = (folder + b"/" + program for folder in folders)
    return next((candidate for candidate in candidates if os.access(candidate, os.X_OK)), program)


def become_subreaper() -> None:
    """Makes orphaned descendants children of this process instead of process 1."""
    if LINUX:
        _call_prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _call_prctl(option: int, value: int) -> None:
    import ctypes  # loaded late: only guard processes need it

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def open_pidfd(pid: int) -> int | None:
    """Returns a descriptor that becomes readable when the process ends, or None if the system has no pidfds."""
    if sys.platform == "linux":
        try:
            return os.pidfd_open(pid)
        except (OSError, AttributeError):
            return None
    return None


def send_signal(process: ProcessInstance, number: int) -> None:
    """Sends a signal to this process, but not to a later one with the same process id."""
    pidfd = open_pidfd(process.pid)  # the pidfd stays bound to its process, so the check below is free of races
    try:
        if start_time_of(process.pid) != process.start:
            return
        if sys.platform == "linux" and pidfd is not None:
            signal.pidfd_send_signal(pidfd, number)
        else:
            os.kill(process.pid, number)
    except OSError:  # it has ended
        return
    finally:
        if pidfd is not None:
            os.close(pidfd)


def lists_children() -> bool:
    """Returns whether this system lists children in /proc."""
    return os.access(f"/proc/self/task/{os.getpid()}/children", os.R_OK)


def start_time_of(pid: int) -> str | None:
    """Returns the start time of a process as the system reports it, or None if it has ended or is a zombie."""
    if not lists_children():
        return next((start for listed, _, start in _list_with_ps() if listed == pid), None)
    fields = _read_system_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return fields[19].decode() if fields and fields[0] not in b"ZX" else None


def list_children(pid: int) -> list[ProcessInstance]:
    """Returns the live children of a process."""
    if not lists_children():
        return [ProcessInstance(child, start) for child, parent, start in _list_with_ps() if parent == pid]
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  importing pathlib is slow
    except OSError:
        return []
    lines = (_read_system_file(f"/proc/{pid}/task/{thread}/children") for thread in threads)
    pids = [int(child) for line in lines for child in line.split()]
    return [ProcessInstance(child, start) for child in pids if (start := start_time_of(child))]


def list_descendants(pid: int) -> list[ProcessInstance]:
    """Returns all descendants, parents first. Misses processes that start meanwhile, so callers repeat the call."""
    descendants = list_children(pid)
    for process in descendants:
        descendants += list_children(process.pid)  # the list grows during the iteration
    return descendants


def list_marked(name: str, value: str) -> list[ProcessInstance]:
    """Returns the live processes with this environment variable, also those that left the tree of their parent. The
    list is empty on systems without /proc."""
    entry = f"{name}={value}".encode()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()] if LINUX else []  # noqa: PTH208  as above
    marked = [pid for pid in pids if entry in _read_system_file(f"/proc/{pid}/environ").split(b"\0")]
    return [ProcessInstance(pid, start) for pid in marked if (start := start_time_of(pid))]


def _list_with_ps() -> list[tuple[int, int, str]]:
    """Returns process id, parent and start time of all processes, for systems without /proc."""
    import subprocess  # loaded late: slow to import, and not needed on Linux

    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="], capture_output=True, check=False)
    rows = [line.split(maxsplit=3) for line in listing.stdout.decode("ascii", "replace").splitlines()]
    return [(int(row[0]), int(row[1]), row[3]) for row in rows if len(row) == 4 and row[2][0] != "Z"]


def count_oom_kills() -> int:
    """Returns how many processes the kernel's OOM killer has killed since boot; 0 if unknown."""
    _, counter, following = _read_system_file("/proc/vmstat").partition(b"\noom_kill ")
    return int(following.split()[0]) if counter else 0


def prefer_for_oom(pid: int) -> None:
    """Makes the OOM killer prefer the command to the engine."""
    try:
        descriptor = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
        try:
            os.write(descriptor, _OOM_SCORE)
        finally:
            os.close(descriptor)
    except OSError:
        return


def _read_system_file(path: str) -> bytes:
    """Returns the content of a /proc file, empty if it cannot be read. Uses os calls: pathlib is slow to import."""
    content = b""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            while chunk := os.read(descriptor, 1 << 16):
                content += chunk
        finally:
            os.close(descriptor)
    except OSError:
        return content
    return content


def enlarge_pipe(descriptor: int) -> None:
    """Enlarges the pipe buffer, so that a fast writer blocks less often."""
    if LINUX:
        try:
            fcntl.fcntl(descriptor, _F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            return
