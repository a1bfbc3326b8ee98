"""The identity of this process, and checks whether another process is alive, independent of the wall clock."""

import os
import socket
import time
from functools import lru_cache
from pathlib import Path

import msgspec

from outrider.sessions.records import ProcessIdentity
from outrider.types.ids import new_id

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_EXITED = -1


def current_process() -> ProcessIdentity:
    """Returns the identity of this process with a new id: two stores in one process are two lease owners."""
    return msgspec.structs.replace(_process_identity(os.getpid()), id=new_id())


def boot_clock_ms() -> int:
    """Returns milliseconds since boot: equal for all processes of the machine, unaffected by clock changes."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def is_process_alive(owner: ProcessIdentity) -> bool | None:
    """Returns whether a process is alive; None if unknown: on another machine or in another PID namespace."""
    here = _process_identity(os.getpid())
    if owner.host != here.host:
        return None
    if owner.boot != here.boot:
        return False
    if owner.namespace != here.namespace:
        return None
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return owner.started in (0, _start_ticks(owner.pid))


def is_same_machine(owner: ProcessIdentity) -> bool:
    here = _process_identity(os.getpid())
    return (owner.host, owner.boot) == (here.host, here.boot)


@lru_cache(maxsize=1)
def _process_identity(pid: int) -> ProcessIdentity:
    namespace = Path("/proc/self/ns/pid")
    return ProcessIdentity(
        id="",
        host=socket.gethostname(),
        pid=pid,
        boot=_read_proc("/proc/sys/kernel/random/boot_id"),
        started=_start_ticks(pid),
        namespace=str(namespace.readlink()) if namespace.is_symlink() else "",
    )


def _start_ticks(pid: int) -> int:
    """Returns the start time of a process in clock ticks since boot, which detects a reused PID; 0 if unknown.

    A zombie counts as exited: in a container without an init process it may stay a zombie forever.
    """
    fields = _read_proc(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if fields[:1] in (["Z"], ["X"]):
        return _EXITED
    return int(fields[19]) if len(fields) > 19 else 0


def _read_proc(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
