"""Starts a command in the namespaces of bubblewrap without a new interpreter inside the sandbox.

Bubblewrap starts a holder, a program that only waits, so that its namespaces exist. The command guard joins their user
namespace. One of its threads joins the others, applies the restrictions to itself and spawns the command, which
inherits both. Namespaces, capabilities, Landlock and seccomp belong to a thread, so the guard itself stays outside and
monitors the command. A fork does this where a thread cannot; it costs more, because an interpreter's memory is copied
page by page.
"""

from __future__ import annotations

import _thread
import fcntl
import marshal
import os
import select
import sys
import time
from itertools import islice

from outrider.processes import platform
from outrider.processes.sandbox import init

TYPE_CHECKING = False  # importing typing takes longer than everything else here
if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn
else:
    import _signal as signal
    import _socket as socket

LEFTOVER_SECONDS = 0.1  # how long children of an ended command may take to end by themselves
MAX_LEFTOVERS, MAX_COMMAND_LINE = 10, 200
_MAX_LISTED = 100  # processes that are looked at for that
_MAX_STARTS, _MAX_ERRORS = 5, 4096
# The options before a hidden path, as `bubblewrap.py` writes them: of a file and of a folder.
_HIDING_OPTIONS = ((b"--ro-bind", b"/dev/null"), (b"--size", b"4096", b"--perms", b"0555", b"--tmpfs"))
_KILL_SECONDS = 10.0
_GET_OWNER = 0xB701  # NS_GET_USERNS: opens the user namespace that owns a namespace
_UNSHARE_FOLDER = 0x200  # CLONE_FS: a thread has its own working folder and root
_NAMESPACE_BITS = {
    "user": 0x10000000,
    "mnt": 0x00020000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "cgroup": 0x02000000,
}
_HOLDER_ENVIRONMENT: dict[str, str] = {}  # neither bubblewrap nor the holder reads a variable
# The holder ignores SIGTERM as its parent does, so that the command can handle it and exit first.
_RESET_IN_HOLDER = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP)
_RESET_IN_COMMAND = (*_RESET_IN_HOLDER, signal.SIGTERM, signal.SIGCHLD)


def main() -> NoReturn:
    """Runs the launch request in the second argument without a command guard."""
    platform.become_subreaper()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    request = marshal.loads(bytes.fromhex(sys.argv[2]))
    command = start_in_namespaces(request, [os.dup(number) for number in range(3)])
    while (ended := os.waitpid(command.pid, os.WNOHANG))[0] == 0:
        command.enforce_limits()
        signal.sigtimedwait([signal.SIGCHLD], init.POLL_SECONDS)
    code = command.end(os.waitstatus_to_exitcode(ended[1]), lambda _: None)
    try:
        while True:  # process 1 of a container may reap no orphans, and bubblewrap would stay as a zombie
            os.wait()
    except ChildProcessError:
        os._exit(code)


def start_in_namespaces(request: dict[str, Any], streams: Sequence[int], *interrupts: int | None) -> JoinedCommand:
    """Starts a command in new namespaces.

    `request` is a launch request with a join part, `streams` are the command's standard streams. If a descriptor of
    `interrupts` becomes readable before the namespaces exist, or if they cannot be created, the result is a command
    that consists of bubblewrap alone.
    """
    inner: dict[str, Any] = marshal.loads(request["join"]["init"])
    os.dup2(streams[2], 2)  # for error messages
    holder = _NamespaceHolder(inner["seccomp"], request["join"].get("pinned"))
    is_ready = holder.start(request["join"]["holder"], interrupts)
    command = JoinedCommand(holder.pid)
    if is_ready:
        try:
            command.join(request["environment"], inner, streams)
        except OSError as error:
            command.fail(init.report_start_error(inner, error, command.failure_code))
    return command


class _NamespaceHolder:
    """Bubblewrap with the seccomp filter of the command, and the program in it that holds the namespaces.

    Without Landlock the command can write to the memory of all processes in the namespace. A process there without
    the filter would be a way around it.
    """

    def __init__(self, seccomp: bytes, pinned: tuple[bytes, tuple[int, int]] | None = None) -> None:
        self.pid = -1
        self._pinned = pinned
        self._seccomp = seccomp
        self._errors = os.memfd_create("errors")
        self._connections: list[int] = []  # stay open: the holder ends with its input

    def start(self, argv: list[bytes], interrupts: Sequence[int | None]) -> bool:
        """Starts bubblewrap; returns whether its namespaces exist. Prints its messages if they do not.

        Files that were to be hidden may have disappeared since the mounts were listed, such as sockets. Bubblewrap is
        started again without them then.
        """
        for _ in range(_MAX_STARTS):
            is_ready = self._start(argv, interrupts)
            if is_ready or is_ready is None:
                return bool(is_ready)
            remaining = _drop_missing(argv)
            if remaining == argv:
                break
            argv = remaining
        os.write(2, os.pread(self._errors, _MAX_ERRORS, 0))
        return False

    def _start(self, argv: list[bytes], interrupts: Sequence[int | None]) -> bool | None:
        """Returns True when the holder answers, after all mounts, False if it ends, None after an interrupt."""
        program, *arguments = argv
        os.ftruncate(self._errors, 0)
        os.lseek(self._errors, 0, os.SEEK_SET)
        filter_file = os.memfd_create("seccomp")
        from_holder, output = os.pipe()
        input_, to_holder = os.pipe()
        try:
            os.write(filter_file, self._seccomp)
            os.lseek(filter_file, 0, os.SEEK_SET)
            streams = (input_, output, self._errors, filter_file, *_open_pinned(self._pinned))
            high = [fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, 10) for stream in streams]
            self.pid = os.posix_spawn(
                program,
                [program, b"--seccomp", b"3", *arguments],
                _HOLDER_ENVIRONMENT,
                file_actions=[(os.POSIX_SPAWN_DUP2, source, number) for number, source in enumerate(high)],
                setsigdef=_RESET_IN_HOLDER,
                setsigmask=[],
                setsid=True,
            )
            for descriptor in (*high, *streams[4:]):
                os.close(descriptor)
        finally:
            for descriptor in (input_, output, filter_file):
                os.close(descriptor)
        self._connections += (to_holder, from_holder)
        return _wait_for_answer(to_holder, from_holder, interrupts)


def _open_pinned(pinned: tuple[bytes, tuple[int, int]] | None) -> Sequence[int]:
    """Opens the folder that bubblewrap gets as PINNED_DESCRIPTOR. Raises OSError if another one is at its path."""
    if pinned is None:
        return ()
    path, identity = pinned
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) != identity:
        os.close(descriptor)
        raise OSError(f"{os.fsdecode(path)} was replaced while the command started; try again")
    return (descriptor,)


def _wait_for_answer(to_holder: int, from_holder: int, interrupts: Sequence[int | None]) -> bool | None:
    try:
        os.write(to_holder, b"+")
    except OSError:
        return False
    poller = select.poll()
    for descriptor in (from_holder, *interrupts):
        if descriptor is not None:
            poller.register(descriptor, select.POLLIN)
    readable = {descriptor for descriptor, _ in poller.poll()}
    return os.read(from_holder, 1) != b"" if from_holder in readable else None


def _drop_missing(argv: list[bytes]) -> list[bytes]:
    """Returns the arguments of bubblewrap without those that hide a file or folder that does not exist any more."""
    retained: list[bytes] = []
    position = 0
    while position < len(argv):
        for prefix in _HIDING_OPTIONS:
            end = position + len(prefix)
            if tuple(argv[position:end]) == prefix and not os.path.lexists(argv[end]):
                position = end + 1
                break
        else:
            retained.append(argv[position])
            position += 1
    return retained


class JoinedCommand:
    """A command in the namespaces of a holder, and the monitor of its limits. `pid` is the process to wait for."""

    def __init__(self, holder: int) -> None:
        self.pid = holder
        self.failure_code = init.RESTRICT_FAILED
        self._holder = holder
        self._failed: int | None = None
        self._is_killed = False
        self._namespace_init = -1
        self._holders: set[int] = set()
        self._limits: _LimitMonitor | None = None

    def join(self, environment: dict[bytes, bytes], inner: dict[str, Any], streams: Sequence[int]) -> None:
        """Joins the namespaces and spawns the command. Raises OSError."""
        namespace_init = _find_namespace_init(self._holder)
        self._namespace_init = os.pidfd_open(namespace_init)
        if init.list_children(self._holder) != [namespace_init]:  # the process id could belong to another process
            raise OSError("bubblewrap has ended")
        self._holders = {self._holder, *init.list_descendants()}
        new = [name for name in _NAMESPACE_BITS if _namespace_of(namespace_init, name) != _namespace_of("self", name)]
        if not {"mnt", "pid"} <= set(new):
            raise OSError("bubblewrap has created no namespaces")
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  the command must not get a descriptor of the guard
            _prevent_inheritance(int(name))
        init.raise_priority()
        launch = _InnerLaunch(environment, inner, streams, len(self._holders) + 1)
        if _has_nested_user_namespace(namespace_init):
            result = launch.spawn_in_fork(self._namespace_init, new)
        else:
            result = launch.spawn_in_thread(self._namespace_init, new)
        self.failure_code = launch.failure_code
        if isinstance(result, OSError):
            raise result
        self.pid, disk, proxy = result
        max_processes = inner["sandbox_limits"]["processes"]
        self._limits = _LimitMonitor(inner | {"disk": disk}, self.pid, proxy, lambda: self._list_pids(max_processes))

    def fail(self, code: int) -> None:
        """Ends the holder of a command that did not start; `code` becomes its exit code."""
        self._failed = code
        os.kill(self._holder, signal.SIGKILL)

    @property
    def poll_seconds(self) -> float | None:
        """How often `enforce_limits` must be called, None if the command did not start."""
        return init.POLL_SECONDS if self._limits is not None else None

    def enforce_limits(self) -> None:
        """Kills the command if it exceeds a limit."""
        if self._limits is None or self._is_killed or not (reason := self._limits.find_exceeded_limit()):
            return
        # Process 1 of the namespace ends only after the caller has reaped the command.
        self._is_killed = True
        self._signal_namespace()
        init.print_error(f"the command was killed: {reason}")

    def end(self, code: int, report: Callable[[list[str]], None]) -> int:
        """Waits a moment for the processes that the command left, then kills and reports them; returns the exit
        code."""
        if self._limits is not None:
            if not self._is_killed:
                self._report_leftovers(report)
            self._signal_namespace()
            select.select([self._namespace_init], [], [], _KILL_SECONDS)
            self._limits.close()
            self._limits = None
        os.dup2(0, 2)  # closes the command's standard error
        if self._failed is not None:
            return self._failed
        return code if code >= 0 else 128 - code

    def _report_leftovers(self, report: Callable[[list[str]], None]) -> None:
        deadline = time.monotonic() + LEFTOVER_SECONDS
        while running := self._list_running():
            if time.monotonic() > deadline:
                report(running)
                return
            time.sleep(0.01)

    def _list_running(self) -> list[str]:
        """Returns the start of some command lines. The command chooses how many there are, and how long they are."""
        return list(islice(filter(None, map(_name_process, self._list_pids(_MAX_LISTED))), MAX_LEFTOVERS))

    def _list_pids(self, max_count: int) -> list[int]:
        return [pid for pid in init.list_descendants(max_count + len(self._holders)) if pid not in self._holders]

    def _signal_namespace(self) -> None:
        """Kills process 1 of the namespace; when it has ended, everything in the namespace has ended."""
        try:
            signal.pidfd_send_signal(self._namespace_init, signal.SIGKILL)
        except OSError:
            return


def _name_process(pid: int) -> str:
    """Returns the start of its command line, or its name if it has erased that; "" if it has ended."""
    line = init.read_file(f"/proc/{pid}/cmdline", MAX_COMMAND_LINE)
    if not line.strip(b"\0 "):
        name, _, state = init.read_file(f"/proc/{pid}/stat", MAX_COMMAND_LINE).partition(b"(")[2].rpartition(b") ")
        line = b"" if state[:1] in (b"", b"Z", b"X") else b"[" + name + b"]"
    return " ".join(line.replace(b"\0", b" ").decode(errors="replace").split())


class _InnerLaunch:
    """Spawns a command inside the namespaces.

    The result is its process id, a descriptor of the disk whose growth is limited, and the connection to its proxy or
    None; or the error.
    """

    def __init__(
        self, environment: dict[bytes, bytes], inner: dict[str, Any], streams: Sequence[int], other_processes: int
    ) -> None:
        self.failure_code = init.RESTRICT_FAILED
        self._environment = environment
        self._inner = inner
        self._streams = streams
        self._other_processes = other_processes

    def spawn_in_thread(self, namespace_init: int, names: list[str]) -> tuple[int, int, int | None] | OSError:
        """Joins the user namespace and spawns the command in a thread, which joins the other ones."""
        oom_score = os.open("/proc/self/oom_score_adj", os.O_RDWR)
        usual_score = os.read(oom_score, 16)
        if "user" in names:  # only a process with a single thread can join one
            _join(namespace_init, ["user"])
        results: list[tuple[int, int, int | None] | OSError] = []
        ended = _thread.allocate_lock()
        ended.acquire()

        def run() -> None:
            try:
                init.check_result(init.libc.unshare(_UNSHARE_FOLDER))
                _join(namespace_init, [name for name in names if name != "user"])
                results.append(self._spawn_inside())
            except OSError as error:
                results.append(error)
            finally:
                ended.release()

        os.write(oom_score, init.OOM_SCORE)  # the command inherits it
        _thread.start_new_thread(run, ())
        ended.acquire()
        os.pwrite(oom_score, usual_score, 0)
        os.close(oom_score)
        init.clear_capabilities()
        return results[0]

    def spawn_in_fork(self, namespace_init: int, names: list[str]) -> tuple[int, int, int | None] | OSError:
        """Spawns the command in a fork, which then ends, so that the command becomes a child of this process.

        Bubblewrap has created a user namespace inside the one that owns the others. They can be joined only together,
        and a process that has joined another process namespace cannot start threads.
        """
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                self._run_fork(namespace_init, names, theirs)
            finally:
                os._exit(init.RESTRICT_FAILED)
        theirs.close()
        message, descriptors = receive_descriptors(ours, 2, size=1 << 12)
        ours.close()
        os.waitpid(pid, 0)
        if not message:
            return OSError("the process that starts the command has ended")
        self.failure_code, command, number, text = marshal.loads(message)
        if command:
            disk, *proxy = descriptors
            return command, disk, next(iter(proxy), None)
        return OSError(number, text)

    def _run_fork(self, namespace_init: int, names: list[str], channel: socket.socket) -> None:
        """Runs in the fork: sends the process id of the command and the descriptors, or the error."""
        command, descriptors, number, text = 0, list[int](), 0, ""
        try:
            init.write_file("/proc/self/oom_score_adj", init.OOM_SCORE)
            _join(namespace_init, names)
            command, disk, proxy = self._spawn_inside()
            descriptors = [disk] if proxy is None else [disk, proxy]
        except OSError as error:
            number, text = error.errno or 0, error.strerror or str(error)
        sent = b"".join(descriptor.to_bytes(4, sys.byteorder) for descriptor in descriptors)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)] if sent else []
        channel.sendmsg([marshal.dumps((self.failure_code, command, number, text))], rights)

    def _spawn_inside(self) -> tuple[int, int, int | None]:
        """Restricts the current thread and spawns the command, which inherits the restrictions."""
        inner = self._inner
        proxy = init.connect_to_proxy(inner["proxy_socket"], inner["port"]) if inner["proxy_socket"] else None
        disk = os.open(inner["disk"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.chdir(inner["workdir"])
        variables = self._environment | {b"PWD": inner["workdir"]}
        variables |= {os.fsencode(name): os.fsencode(value) for name, value in inner["environment"].items()}
        init.drop_capabilities(with_bounds=True)
        init.apply_restrictions(inner, self._other_processes)
        self.failure_code = init.EXEC_FAILED
        pid = os.posix_spawn(
            platform.find_program(inner["argv"][0], variables),
            inner["argv"],
            variables,
            file_actions=[(os.POSIX_SPAWN_DUP2, stream, number) for number, stream in enumerate(self._streams)],
            setsigdef=_RESET_IN_COMMAND,
            setsigmask=[],
            setsid=True,
        )
        return pid, disk, None if proxy is None else proxy.detach()


def receive_descriptors(connection: socket.socket, max_descriptors: int, size: int = 1) -> tuple[bytes, list[int]]:
    """Receives a message and up to `max_descriptors` descriptors; both are empty if the other side has closed the
    connection.

    Does what `socket.recv_fds` does without importing that module. The descriptors are not inheritable.
    """
    message, controls, _, _ = connection.recvmsg(size, socket.CMSG_LEN(max_descriptors * 4))
    descriptors = [
        int.from_bytes(data[start : start + 4], sys.byteorder)
        for level, kind, data in controls
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        for start in range(0, len(data) // 4 * 4, 4)
    ]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # noqa: FBT003  positional-only
    return message, descriptors


def _join(namespace_init: int, names: list[str]) -> None:
    init.check_result(init.libc.setns(namespace_init, sum(_NAMESPACE_BITS[name] for name in names)))


def _has_nested_user_namespace(pid: int) -> bool:
    """Returns whether the user namespace of a process is not the one that owns its mount namespace."""
    descriptor = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    try:
        owner = fcntl.ioctl(descriptor, _GET_OWNER)
    finally:
        os.close(descriptor)
    try:
        return os.fstat(owner).st_ino != _namespace_of(pid, "user")
    finally:
        os.close(owner)


class _LimitMonitor(init.CommandMonitor):
    """Checks the limits of a joined command from outside its namespaces."""

    def __init__(
        self, request: dict[str, Any], main: int, proxy_connection: Any, list_pids: Callable[[], list[int]]
    ) -> None:
        super().__init__(request, main, proxy_connection)
        self.list_pids = list_pids

    def close(self) -> None:
        """Closes the descriptors of the sandbox: an overlay stays mounted while one of its files is open."""
        os.close(self._disk)
        if self._proxy_connection is not None:
            os.close(self._proxy_connection)


def _find_namespace_init(holder: int) -> int:
    """Returns the process id of process 1 of the namespace, the only child of bubblewrap itself."""
    children = init.list_children(holder)
    if len(children) != 1:
        raise OSError(f"bubblewrap has {len(children)} child processes")
    return children[0]


def _namespace_of(pid: int | str, name: str) -> int:
    return os.stat(f"/proc/{pid}/ns/{name}").st_ino  # noqa: PTH116


def _prevent_inheritance(descriptor: int) -> None:
    if descriptor > 2:
        try:
            os.set_inheritable(descriptor, False)  # noqa: FBT003  positional-only
        except OSError:  # the descriptor that listed the others
            return
