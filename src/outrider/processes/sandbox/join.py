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
from typing import Any, NoReturn

from outrider.processes import platform
from outrider.processes.sandbox import init

LEFTOVER_SECONDS = 0.1  # how long children of an ended command may take to end by themselves
MAX_LEFTOVERS, MAX_COMMAND_LINE = 10, 200
_HOLDER_FAILED = 1
_DUMPABLE = 4
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
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def start_in_namespaces(request: dict[str, Any], streams: Sequence[int], report: ReportLeftovers) -> int:
    """Starts a command in new namespaces; returns the process id of its monitor, which exits with the command's code.

    `request` is a launch request with a join part, `streams` are the command's standard streams.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            holder = _start_holder(request, theirs.fileno(), streams[2])
        pid = os.fork()
        if pid == 0:
            try:
                _run_monitor(request, streams, ours, holder, report)
            except OSError as error:
                init.print_error(f"the sandbox could not be set up: {error}")
            finally:
                os._exit(init.RESTRICT_FAILED)
        return pid


def _start_holder(request: dict[str, Any], channel: int, errors: int) -> int:
    argv = request["join"]["holder"]
    return os.posix_spawn(
        argv[0],
        argv,
        request["environment"],
        file_actions=[
            (os.POSIX_SPAWN_DUP2, source, number) for number, source in enumerate((channel, channel, errors))
        ],
        setsigdef=_RESET_IN_HOLDER,
        setsigmask=[],
        setsid=True,
    )


def _run_monitor(
    request: dict[str, Any], streams: Sequence[int], channel: socket.socket, holder: int, report: ReportLeftovers
) -> NoReturn:
    """Joins the namespaces, forks the command and waits for it. Runs in a fork of the command guard."""
    signal.set_wakeup_fd(-1)
    inner: dict[str, Any] = marshal.loads(request["join"]["init"])
    os.dup2(streams[2], 2)  # for error messages
    if not _is_ready(channel):
        os._exit(_HOLDER_FAILED)  # bubblewrap has printed the reason
    namespace_init = _open_namespace_init(holder)
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
    # Joining a user namespace has cleared this, and the files in /proc/self would belong to another user.
    init.check_result(init.libc.prctl(_DUMPABLE, 1, 0, 0, 0))
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
        lines = (init.read_file(f"/proc/{pid}/cmdline") for pid in self.list_pids())
        texts = (line.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace") for line in lines if line)
        return [" ".join(text.split())[:MAX_COMMAND_LINE] for text in texts][:MAX_LEFTOVERS]

    def kill_all(self) -> None:
        try:
            signal.pidfd_send_signal(self._namespace_init, signal.SIGKILL)
        except OSError:
            return
        select.select([self._namespace_init], [], [], _KILL_SECONDS)
