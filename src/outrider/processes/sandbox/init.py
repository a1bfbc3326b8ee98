"""The sandbox init: the first program inside a sandbox. It restricts a child process, runs the command and monitors it.

It runs as a script of the plain interpreter without site-packages, so it can use only the standard library, and imports
little of it to start fast. Inside bubblewrap it is process 1 of its namespace: the command cannot stop it, and the
kernel kills every process of the namespace when it exits.
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

TYPE_CHECKING = False  # importing typing or the enums of signal takes longer than everything else here
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn
else:
    import _signal as signal

POLL_SECONDS = 0.05  # interval of the resource checks
OOM_SCORE = b"1000"  # the OOM killer selects the command first
RESTRICT_FAILED, EXEC_FAILED, NOT_FOUND = 125, 126, 127
WAITED_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_SECCOMP, _FILTER = 22, 2
_NO_NEW_PRIVS, _PDEATHSIG, _SUBREAPER, _DUMPABLE = 38, 1, 36, 4
_CAPBSET_DROP, _SECUREBITS, _NO_ROOT_LOCKED = 24, 28, 0x2F
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_FILE_RIGHTS = 0b1100000000000111  # execute, write, read, truncate, ioctl

libc = ctypes.CDLL(None, use_errno=True)


def main() -> NoReturn:
    """Runs the request in the first argument: the command, its restrictions and its limits."""
    request: dict[str, Any] = marshal.loads(a2b_base64(sys.argv[1]))
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    check_result(libc.prctl(_SUBREAPER, 1, 0, 0, 0))
    # Without Landlock the command could write to the memory of this process, which has no seccomp filter.
    check_result(libc.prctl(_DUMPABLE, 0, 0, 0, 0))
    proxy_connection = connect_to_proxy(request["proxy_socket"], request["port"]) if request["proxy_socket"] else None
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_SIGNALS)
    raise_priority()
    pid = os.fork()
    if pid == 0:
        exec_command(request, other_processes=int(os.getppid() == 1))
    CommandMonitor(request, pid, proxy_connection).run()


def raise_priority() -> None:
    """Gives this process real-time priority, so that it can kill a fork bomb.

    Only root is allowed to do this, and only root needs it: RLIMIT_NPROC limits all other users.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return


def exec_command(request: dict[str, Any], *, other_processes: int = 0) -> NoReturn:
    """Applies the restrictions and replaces this process with the command. Exits if a restriction fails.

    `other_processes` is the number of processes in the user namespace, 0 if there is no new namespace.
    """
    code = RESTRICT_FAILED
    try:
        # Files in /proc/self would belong to another user.
        check_result(libc.prctl(_DUMPABLE, 1, 0, 0, 0))
        check_result(libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITED_SIGNALS)
        for number in (*WAITED_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.environ.update(request["environment"])
        write_file("/proc/self/oom_score_adj", OOM_SCORE)
        apply_restrictions(request, other_processes or count_machine_threads())
        code = EXEC_FAILED
        os.execvp(request["argv"][0], request["argv"])
    except OSError as error:
        code = report_start_error(request, error, code)
    finally:
        os._exit(code)


def report_start_error(request: dict[str, Any], error: OSError, code: int) -> int:
    """Prints why a command was not started and returns its exit code. `code` names the step that failed."""
    if code == RESTRICT_FAILED:
        missing = "a path that the sandbox needs does not exist"
        print_error(missing if isinstance(error, FileNotFoundError) else f"the sandbox could not be set up: {error}")
        return code
    if isinstance(error, FileNotFoundError):
        print_error(f"{os.fsdecode(request['argv'][0])}: not found")
        return NOT_FOUND
    print_error(f"the command cannot be run: {error}")
    return code


def apply_restrictions(request: dict[str, Any], other_processes: int) -> None:
    """Applies limits, capabilities, Landlock and seccomp. seccomp is last: it denies calls that the other steps
    need."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    for path, identity, is_mounted in request["places"]:
        check_mount(path, identity, is_mounted=is_mounted)
    for name, limit in request["limits"]:
        set_limit(getattr(resource, name), limit)
    # The kernel counts processes per user and user namespace. A new namespace contains only the command and its
    # helpers. Without one the limit includes all threads of the machine, and CommandMonitor enforces the real limit.
    set_limit(resource.RLIMIT_NPROC, other_processes + request["sandbox_limits"]["processes"])
    if request["drop_capabilities"]:
        drop_capabilities()
    check_result(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    if request["landlock"]:
        apply_landlock(*request["landlock"])
    program = request["seccomp"]
    message = ctypes.create_string_buffer(program, len(program))
    check_result(
        libc.prctl(_SECCOMP, _FILTER, ctypes.byref(BpfProgram(len(program) // 8, ctypes.addressof(message))), 0, 0)
    )


def check_mount(path: bytes, identity: tuple[int, int], *, is_mounted: bool) -> None:
    """Raises OSError if the path has a file of another identity, or if a hidden file is visible there.

    Bubblewrap finds what it mounts by its path, and another command may put links into the workspace meanwhile.
    """
    try:
        status = os.lstat(path)
    except OSError:  # the command cannot see it either
        return
    if ((status.st_dev, status.st_ino) == identity) is not is_mounted:
        raise OSError(f"{os.fsdecode(path)} was replaced while the command started; try again")


def set_limit(kind: int, limit: int) -> None:
    """Sets a resource limit; a lower existing hard limit stays."""
    hard = resource.getrlimit(kind)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))


class BpfProgram(ctypes.Structure):
    """struct sock_fprog: length and address of a seccomp filter."""

    _fields_ = (("length", ctypes.c_ushort), ("words", ctypes.c_void_p))


class RulesetAttributes(ctypes.Structure):
    """struct landlock_ruleset_attr: the access rights that a ruleset handles."""

    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class PathBeneathAttributes(ctypes.Structure):
    """struct landlock_path_beneath_attr: the access rights below a folder."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def apply_landlock(handled: tuple[int, int, int], size: int, grants: list[tuple[bytes, int]]) -> None:
    """Applies a Landlock ruleset; `size` is the size of the attributes that this kernel supports."""
    ruleset = check_result(
        libc.syscall(_CREATE_RULESET, ctypes.byref(RulesetAttributes(*handled)), ctypes.c_size_t(size), 0)
    )
    for path, rights in grants:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # missing or not accessible: nothing to grant
            continue
        applicable = handled[0] if stat.S_ISDIR(os.fstat(descriptor).st_mode) else handled[0] & _FILE_RIGHTS
        check_result(
            libc.syscall(_ADD_RULE, ruleset, 1, ctypes.byref(PathBeneathAttributes(rights & applicable, descriptor)), 0)
        )
        os.close(descriptor)
    check_result(libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def drop_capabilities(*, with_bounds: bool = False) -> None:
    """Drops all capabilities: without a user namespace, those of root apply to the whole machine.

    `with_bounds` also clears the bounding set of a user that is not root, which needs the capability to do so.
    """
    if with_bounds or os.geteuid() == 0:
        number = 0
        while libc.prctl(_CAPBSET_DROP, number, 0, 0, 0) == 0:  # fails above the kernel's last capability
            number += 1
        check_result(libc.prctl(_SECUREBITS, _NO_ROOT_LOCKED, 0, 0, 0))
    clear_capabilities()


def clear_capabilities() -> None:
    """Gives up the capabilities of this process, but not what a program that it executes may get."""
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    check_result(libc.capset(header, none))


def check_result(result: int) -> int:
    """Returns the result of a libc call. Raises OSError if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class CommandMonitor:
    """Waits for the command, and kills it and its descendants when it ends or exceeds a limit."""

    def __init__(self, request: dict[str, Any], main: int, proxy_connection: Any) -> None:
        self._main_pid = main
        self._proxy_connection = proxy_connection  # stays open until the command ends
        self._limits = request["sandbox_limits"]
        self._disk = request["disk"]
        self._free_at_start = self._free_bytes()
        self._shared_at_start = read_shared_memory()
        self._deadline = time.monotonic() + self._limits["seconds"]

    def run(self) -> NoReturn:
        """Waits for signals and checks the limits with each poll; exits with the exit code of the command."""
        while True:
            signal.sigtimedwait(WAITED_SIGNALS, POLL_SECONDS)
            code = self.reap_children()
            if code is None and (reason := self.find_exceeded_limit()):
                self.kill_all()
                print_error(f"the command was killed: {reason}")
                os._exit(128 + signal.SIGKILL)
            if code is not None:
                self.on_ended()
                self.kill_all()
                os._exit(code)

    def list_pids(self) -> list[int]:
        """Returns the processes of the command."""
        return list_descendants()

    def on_ended(self) -> None:
        """Does nothing; subclasses override it. It is called when the command has ended, before its children are
        killed."""

    def reap_children(self) -> int | None:
        """Reaps ended children; returns the exit code of the command if it ended (128 + n for a signal)."""
        ended: int | None = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            if pid == self._main_pid:
                code = os.waitstatus_to_exitcode(status)
                ended = code if code >= 0 else 128 - code

    def find_exceeded_limit(self) -> str | None:
        """Returns which limit the command exceeds, or None."""
        pids = self.list_pids()
        bounds = self._limits
        if len(pids) > bounds["processes"] or count_threads(pids) > bounds["processes"]:
            return f"it started more than {bounds['processes']} processes"
        if sum_resident_memory(pids) > bounds["memory"] and sum_proportional_memory(pids) > bounds["memory"]:
            return f"it used more than {bounds['memory'] >> 20} MiB of memory"
        if read_shared_memory() - self._shared_at_start > bounds["memory"]:
            return f"it shared more than {bounds['memory'] >> 20} MiB of memory"
        if self._free_at_start - self._free_bytes() > bounds["disk"]:
            return f"it wrote more than {bounds['disk'] >> 20} MiB"
        if time.monotonic() > self._deadline:
            return f"it ran for more than {bounds['seconds']:g} seconds"
        return None

    def _free_bytes(self) -> int:
        try:
            status = os.statvfs(self._disk)
        except OSError:
            return 0
        return status.f_bfree * status.f_frsize

    def kill_all(self) -> None:
        """Kills all descendants, repeatedly until none is left. As process 1, one kill(-1) reaches all of them."""
        while pids := list_descendants():
            if os.getpid() == 1:
                pids = [-1]
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue
            self.reap_children()
            time.sleep(0.001)


def list_descendants(max_count: int | None = None) -> list[int]:
    """Returns the process ids of all descendants; stops soon after `max_count` of them.

    Without a limit, processes that fork all the time could be followed forever.
    """
    if os.getpid() == 1:
        return [pid for pid in list_proc() if pid != 1]
    descendants = list_children(os.getpid())
    for pid in descendants:
        if max_count is not None and len(descendants) > max_count:
            break
        descendants += list_children(pid)  # the list grows during the iteration
    return descendants


def list_proc() -> list[int]:
    """Returns the process ids of the namespace that /proc belongs to."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208


def list_children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
        return [int(child) for thread in threads for child in read_file(f"/proc/{pid}/task/{thread}/children").split()]
    except OSError:
        return []


def count_threads(pids: list[int]) -> int:
    stats = (read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split() for pid in pids)
    return sum(int(fields[17]) for fields in stats if fields)


def count_machine_threads() -> int:
    """Returns the number of threads on the machine: an upper bound of the user's own that takes one read."""
    return int(read_file("/proc/loadavg").split()[3].partition(b"/")[2])


def read_shared_memory() -> int:
    """Returns the shared memory of the whole machine. Files in memory belong to no process; only growth is visible."""
    for line in read_file("/proc/meminfo").splitlines():
        if line.startswith(b"Shmem:"):
            return int(line.split()[1]) * 1024
    return 0


def sum_resident_memory(pids: list[int]) -> int:
    """Returns an upper bound of the used memory: counts shared pages once per process. Fast."""
    page = resource.getpagesize()
    return sum(int(fields[1]) * page for pid in pids if (fields := read_file(f"/proc/{pid}/statm").split()))


def sum_proportional_memory(pids: list[int]) -> int:
    """Returns the proportional memory (PSS) of processes. Slow, so it is called only if the fast bound is too large."""
    total = 0
    for pid in pids:
        rollup = read_file(f"/proc/{pid}/smaps_rollup").splitlines()
        lines = [line.split() for line in rollup if line.startswith(b"Pss:")]
        total += int(lines[0][1]) * 1024 if lines else sum_resident_memory([pid])
    return total


def read_file(path: str, size: int = -1) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  importing pathlib is slow
            return file.read(size)
    except OSError:  # the process has ended
        return b""


def write_file(path: str, content: bytes) -> None:
    with open(path, "wb", buffering=0) as file:  # noqa: PTH123
        file.write(content)


def connect_to_proxy(door: str, port: int) -> Any:
    """Opens a listening socket inside the sandbox and sends it to the proxy outside.

    A socket stays in the network namespace that created it, so the proxy can accept connections of the command. The
    returned connection closes when this process exits, and the proxy stops.
    """
    import socket

    proxy_connection = socket.socket(socket.AF_UNIX)
    with socket.socket() as inside:
        inside.bind(("127.0.0.1", port))
        inside.listen(64)
        proxy_connection.connect(door)
        socket.send_fds(proxy_connection, [b"+"], [inside.fileno()])
        proxy_connection.recv(1)
    return proxy_connection


def print_error(message: str) -> None:
    os.write(2, f"outrider: {message}\n".encode(errors="replace"))


if __name__ == "__main__":
    main()
