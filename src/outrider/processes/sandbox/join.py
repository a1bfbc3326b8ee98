"""Starts a command in the namespaces of bubblewrap without a new interpreter inside the sandbox.

Bubblewrap starts a holder, a program that only waits, so that its namespaces exist. The command guard joins their user
namespace. One of its threads joins the others, applies the restrictions to itself and spawns the command, which
inherits both. Namespaces, capabilities, Landlock and seccomp belong to a thread, so the guard itself stays outside and
monitors the command. No process is forked for this: a fork of an interpreter copies its memory page by page.
"""

from __future__ import annotations

import _thread
import marshal
import os
import select
import sys
import time

from outrider.processes import platform
from outrider.processes.sandbox import init

TYPE_CHECKING = False  # importing typing takes longer than everything else here
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn
else:
    import _signal as signal

LEFTOVER_SECONDS = 0.1  # how long children of an ended command may take to end by themselves
MAX_LEFTOVERS, MAX_COMMAND_LINE = 10, 200
_KILL_SECONDS = 10.0
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
    """Runs the launch request in the second argument, to try whether this machine lets a process join namespaces."""
    platform.become_subreaper()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    request = marshal.loads(bytes.fromhex(sys.argv[2]))
    command = start_in_namespaces(request, [os.dup(number) for number in range(3)])
    while (ended := os.waitpid(command.pid, os.WNOHANG))[0] == 0:
        command.enforce_limits()
        signal.sigtimedwait([signal.SIGCHLD], init.POLL_SECONDS)
    os._exit(command.end(os.waitstatus_to_exitcode(ended[1]), lambda _: None))


def start_in_namespaces(request: dict[str, Any], streams: Sequence[int], *interrupts: int | None) -> JoinedCommand:
    """Starts a command in new namespaces.

    `request` is a launch request with a join part, `streams` are the command's standard streams. If a descriptor of
    `interrupts` becomes readable before the namespaces exist, or if they cannot be created, the result is a command
    that consists of bubblewrap alone.
    """
    inner: dict[str, Any] = marshal.loads(request["join"]["init"])
    from_holder, holder_output = os.pipe()
    holder_input, to_holder = os.pipe()
    try:
        holder = _start_holder(request["join"]["holder"], (holder_input, holder_output, streams[2]))
    finally:
        os.close(holder_input)
        os.close(holder_output)
    os.dup2(streams[2], 2)  # for error messages
    command = JoinedCommand(holder)
    if _is_ready(to_holder, from_holder, *interrupts):
        try:
            command.join(request["environment"], inner, streams)
        except OSError as error:
            command.fail(init.report_start_error(inner, error, command.failure_code))
    return command


def _start_holder(argv: list[bytes], streams: Sequence[int]) -> int:
    return os.posix_spawn(
        argv[0],
        argv,
        _HOLDER_ENVIRONMENT,
        file_actions=[(os.POSIX_SPAWN_DUP2, source, number) for number, source in enumerate(streams)],
        setsigdef=_RESET_IN_HOLDER,
        setsigmask=[],
        setsid=True,
    )


def _is_ready(to_holder: int, from_holder: int, *interrupts: int | None) -> bool:
    """Waits until the holder sends a byte back, when all mounts exist; returns False if it ends or is interrupted."""
    try:
        os.write(to_holder, b"+")
    except OSError:
        return False
    poller = select.poll()
    for descriptor in (from_holder, *interrupts):
        if descriptor is not None:
            poller.register(descriptor, select.POLLIN)
    return from_holder in {descriptor for descriptor, _ in poller.poll()} and os.read(from_holder, 1) != b""


class JoinedCommand:
    """A command in the namespaces of a holder, and the monitor of its limits. `pid` is the process to wait for."""

    def __init__(self, holder: int) -> None:
        self.pid = holder
        self.failure_code = init.RESTRICT_FAILED
        self._holder = holder
        self._failed: int | None = None
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
        oom_score = os.open("/proc/self/oom_score_adj", os.O_RDWR)
        init.raise_priority()
        if "user" in new:  # only a process with a single thread can join one
            init.check_result(init.libc.setns(self._namespace_init, _NAMESPACE_BITS["user"]))
            new.remove("user")
        usual_score = os.read(oom_score, 16)
        os.write(oom_score, init.OOM_SCORE)  # the command inherits it
        proxy, disk = self._spawn(environment, inner, streams, sum(_NAMESPACE_BITS[name] for name in new))
        os.pwrite(oom_score, usual_score, 0)
        os.close(oom_score)
        init.clear_capabilities()
        self._limits = _LimitMonitor(inner | {"disk": disk}, self.pid, proxy, self._list_pids)

    def _spawn(
        self, environment: dict[bytes, bytes], inner: dict[str, Any], streams: Sequence[int], namespaces: int
    ) -> tuple[Any, int]:
        """Spawns the command in a thread; returns the connection to the proxy and a descriptor of the disk."""
        results: list[Any] = []
        ended = _thread.allocate_lock()
        ended.acquire()

        def run() -> None:
            try:
                results.append(self._spawn_inside(environment, inner, streams, namespaces))
            except BaseException as error:  # noqa: BLE001  raised again in the first thread
                results.append(error)
            finally:
                ended.release()

        _thread.start_new_thread(run, ())
        ended.acquire()
        (result,) = results
        if isinstance(result, BaseException):
            raise result
        return result

    def _spawn_inside(
        self, environment: dict[bytes, bytes], inner: dict[str, Any], streams: Sequence[int], namespaces: int
    ) -> tuple[Any, int]:
        init.check_result(init.libc.unshare(_UNSHARE_FOLDER))
        init.check_result(init.libc.setns(self._namespace_init, namespaces))
        proxy = init.connect_to_proxy(inner["proxy_socket"], inner["port"]) if inner["proxy_socket"] else None
        disk = os.open(inner["disk"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.chdir(inner["workdir"])
        variables = environment | {b"PWD": inner["workdir"]}
        variables |= {os.fsencode(name): os.fsencode(value) for name, value in inner["environment"].items()}
        init.drop_capabilities(with_bounds=True)
        init.apply_restrictions(inner, others=len(self._holders) + 1)
        self.failure_code = init.EXEC_FAILED
        self.pid = os.posix_spawn(
            platform.find_program(inner["argv"][0], variables),
            inner["argv"],
            variables,
            file_actions=[(os.POSIX_SPAWN_DUP2, stream, number) for number, stream in enumerate(streams)],
            setsigdef=_RESET_IN_COMMAND,
            setsigmask=[],
            setsid=True,
        )
        return proxy, disk

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
        if self._limits is not None and (reason := self._limits.find_exceeded_limit()):
            self._kill_namespace()
            init.print_error(f"the command was killed: {reason}")

    def end(self, code: int, report: Callable[[list[str]], None]) -> int:
        """Ends all processes that the command left, after a moment, and reports them; returns the exit code."""
        if self._limits is not None:
            self._report_leftovers(report)
            self._kill_namespace()
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
        lines = (init.read_file(f"/proc/{pid}/cmdline") for pid in self._list_pids())
        texts = (line.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace") for line in lines if line)
        return [" ".join(text.split())[:MAX_COMMAND_LINE] for text in texts][:MAX_LEFTOVERS]

    def _list_pids(self) -> list[int]:
        return [pid for pid in init.list_descendants() if pid not in self._holders]

    def _kill_namespace(self) -> None:
        """Kills process 1 of the namespace and waits for its end, with which everything in the namespace has ended."""
        try:
            signal.pidfd_send_signal(self._namespace_init, signal.SIGKILL)
        except OSError:
            return
        select.select([self._namespace_init], [], [], _KILL_SECONDS)


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
            self._proxy_connection.close()


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
