"""Starts a command in the namespaces of bubblewrap without a new interpreter inside the sandbox.

Bubblewrap starts a holder, a program that only waits, so that its namespaces exist. A fork of the command guard joins
them, forks the command with its restrictions and monitors it. This is the work of the sandbox init, which takes ten
milliseconds longer, because it starts as a script.
"""

import marshal
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NoReturn

from outrider.processes import platform
from outrider.processes.sandbox import init

LEFTOVER_SECONDS = 0.1  # how long children of an ended command may take to end by themselves
MAX_LEFTOVERS, MAX_COMMAND_LINE = 10, 200
_HOLDER_FAILED = 1
_MAX_STARTS, _MAX_ERRORS = 5, 4096
_KILL_SECONDS = 10.0
_NAMESPACE_BITS = {
    "user": 0x10000000,
    "mnt": 0x00020000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "cgroup": 0x02000000,
}
# The holder ignores SIGTERM as its parent does, so that the command can handle it and exit first.
_RESET_IN_HOLDER = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP)

ReportLeftovers = Callable[[list[str]], None]
"""Reports the command lines of processes that a command left running."""


def main() -> NoReturn:
    """Runs the launch request in the second argument, to try whether this machine lets a process join namespaces."""
    platform.become_subreaper()
    request = marshal.loads(bytes.fromhex(sys.argv[2]))
    pid = start_in_namespaces(request, [os.dup(number) for number in range(3)], lambda _: None)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        while True:  # process 1 of a container may reap no orphans, and bubblewrap would stay as a zombie
            os.wait()
    except ChildProcessError:
        os._exit(code)


def start_in_namespaces(request: dict[str, Any], streams: Sequence[int], report: ReportLeftovers) -> int:
    """Starts a command in new namespaces; returns the process id of its monitor, which exits with the command's code.

    `request` is a launch request with a join part, `streams` are the command's standard streams.
    """
    inner: dict[str, Any] = marshal.loads(request["join"]["init"])
    errors = os.memfd_create("errors")
    holder, channel = _start_holder(request, inner["seccomp"], request["join"]["holder"], errors)
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(streams[2], 2)  # for error messages
            if not _is_ready(channel):
                holder, channel = _start_holder_again(request, inner["seccomp"], errors)
            _run_monitor(request, inner, streams, _open_namespace_init(holder), report)
        except OSError as error:
            init.print_error(f"the sandbox could not be set up: {error}")
        finally:
            os._exit(init.RESTRICT_FAILED)
    channel.close()
    os.close(errors)
    return pid


def _start_holder(
    request: dict[str, Any], seccomp: bytes, argv: Sequence[bytes], errors: int
) -> tuple[int, socket.socket]:
    """Starts bubblewrap with the seccomp filter of the command; returns its process id and a connection to the holder.

    Without Landlock the command can write to the memory of all processes in the namespace. A process there without
    the filter would be a way around it.
    """
    program, *arguments = argv
    filter_file = os.memfd_create("seccomp")
    ours, theirs = socket.socketpair()
    try:
        os.write(filter_file, seccomp)
        os.lseek(filter_file, 0, os.SEEK_SET)
        streams = (theirs.fileno(), theirs.fileno(), errors, filter_file)
        pid = os.posix_spawn(
            program,
            [program, b"--seccomp", b"3", *arguments],
            request["environment"],
            file_actions=[(os.POSIX_SPAWN_DUP2, source, number) for number, source in enumerate(streams)],
            setsigdef=_RESET_IN_HOLDER,
            setsigmask=[],
            setsid=True,
        )
    finally:
        theirs.close()
        os.close(filter_file)
    return pid, ours


def _start_holder_again(request: dict[str, Any], seccomp: bytes, errors: int) -> tuple[int, socket.socket]:
    """Starts bubblewrap without mounts over files that have disappeared since the mounts were listed, such as sockets.

    Exits with the messages of bubblewrap if it fails for another reason.
    """
    argv: list[bytes] = request["join"]["holder"]
    for _ in range(_MAX_STARTS):
        needed = _drop_missing(argv)
        if needed == argv:
            break
        argv = needed
        os.ftruncate(errors, 0)
        os.lseek(errors, 0, os.SEEK_SET)
        holder, channel = _start_holder(request, seccomp, argv, errors)
        if _is_ready(channel):
            return holder, channel
        channel.close()
    os.write(2, os.pread(errors, _MAX_ERRORS, 0))
    os._exit(_HOLDER_FAILED)


def _drop_missing(argv: list[bytes]) -> list[bytes]:
    """Returns the arguments of bubblewrap without those that hide a file that does not exist any more."""
    kept: list[bytes] = []
    position = 0
    while position < len(argv):
        option = argv[position : position + 3]
        if option[:2] == [b"--ro-bind", b"/dev/null"] and not os.path.lexists(option[2]):
            position += 3
        else:
            kept.append(argv[position])
            position += 1
    return kept


def _run_monitor(
    request: dict[str, Any],
    inner: dict[str, Any],
    streams: Sequence[int],
    namespace_init: tuple[int, int],
    report: ReportLeftovers,
) -> NoReturn:
    """Joins the namespaces, forks the command and waits for it. Runs in a fork of the command guard."""
    signal.set_wakeup_fd(-1)
    init.raise_priority()
    _join_namespaces(*namespace_init)
    proxy = init.connect_to_proxy(inner["proxy_socket"], inner["port"]) if inner["proxy_socket"] else None
    holders = set(init.list_proc())
    signal.pthread_sigmask(signal.SIG_BLOCK, init.WAITED_SIGNALS)
    pid = os.fork()
    if pid == 0:
        init.exec_command(
            inner, lambda: _prepare_command(request["environment"], inner, streams), others=len(holders) + 2
        )
    init.clear_capabilities()
    _JoinedMonitor(inner, pid, proxy, namespace_init[1], holders, report).run()


def _is_ready(channel: socket.socket) -> bool:
    """Waits until the holder sends a byte back, when all mounts exist; returns False if it has ended."""
    try:
        channel.sendall(b"+")
        return channel.recv(1) != b""
    except ConnectionError:
        return False


def _open_namespace_init(holder: int) -> tuple[int, int]:
    """Returns the process id and a pidfd of process 1 of the namespace, the only child of bubblewrap itself."""
    children = init.list_children(holder)
    if len(children) != 1:
        raise OSError(f"bubblewrap has {len(children)} child processes")
    pidfd = os.pidfd_open(children[0])
    if init.list_children(holder) != children:  # the process id could belong to another process by now
        raise OSError("bubblewrap has ended")
    return children[0], pidfd


def _join_namespaces(pid: int, pidfd: int) -> None:
    new = [name for name in _NAMESPACE_BITS if _namespace_of(pid, name) != _namespace_of(os.getpid(), name)]
    init.check_result(init.libc.setns(pidfd, sum(_NAMESPACE_BITS[name] for name in new)))
    if not {"mnt", "pid"} <= set(new):
        raise OSError("bubblewrap has created no namespaces")


def _namespace_of(pid: int, name: str) -> int:
    return os.stat(f"/proc/{pid}/ns/{name}").st_ino  # noqa: PTH116


def _prepare_command(environment: dict[bytes, bytes], inner: dict[str, Any], streams: Sequence[int]) -> None:
    """Sets up what the command inherits, in its process."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(inner["workdir"])
    os.environb.clear()
    os.environb.update(environment | {b"PWD": inner["workdir"]})
    init.drop_capabilities(with_bounds=True)


class _JoinedMonitor(init.CommandMonitor):
    """Monitors from outside the process namespace; killing process 1 of the namespace ends everything in it."""

    def __init__(
        self,
        request: dict[str, Any],
        main: int,
        proxy_connection: Any,
        namespace_init: int,
        holders: set[int],
        report: ReportLeftovers,
    ) -> None:
        super().__init__(request, main, proxy_connection)
        self._namespace_init = namespace_init
        self._holders = holders
        self._report = report

    def list_pids(self) -> list[int]:
        return [pid for pid in init.list_proc() if pid not in self._holders]

    def on_ended(self) -> None:
        """Waits a moment for children of the ended command, then reports those that still run."""
        for _ in range(int(LEFTOVER_SECONDS / 0.01)):
            if not (running := self._list_running()):
                return
            signal.sigtimedwait(init.WAITED_SIGNALS, 0.01)
            self.reap_children()
        if running := self._list_running():
            self._report(running)

    def _list_running(self) -> list[str]:
        """Returns the start of some command lines. The command chooses how many there are, and how long they are."""
        lines = (init.read_file(f"/proc/{pid}/cmdline", MAX_COMMAND_LINE) for pid in self.list_pids())
        shown = islice((line for line in lines if line), MAX_LEFTOVERS)
        return [" ".join(line.replace(b"\0", b" ").decode(errors="replace").split()) for line in shown]

    def kill_all(self) -> None:
        try:
            signal.pidfd_send_signal(self._namespace_init, signal.SIGKILL)
        except OSError:
            return
        select.select([self._namespace_init], [], [], _KILL_SECONDS)
