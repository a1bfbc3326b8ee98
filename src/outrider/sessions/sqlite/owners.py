"""Who this process is, and whether another one still lives: by the system's own marks, never by the wall clock."""

import os
import socket
import time
from functools import lru_cache
from pathlib import Path

import msgspec

from outrider.sessions.records import Owner
from outrider.types.ids import new_id

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_ENDED = -1


def this_process() -> Owner:
    """A new owner each time: two stores in one process are two owners."""
    return msgspec.structs.replace(_process(os.getpid()), id=new_id())


def machine_ms() -> int:
    """Milliseconds since this machine started: the same for all its processes, untouched by setting the clock."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


def is_alive(owner: Owner) -> bool | None:
    """None where it cannot be known: on another machine, or in a container whose processes we do not see."""
    here = _process(os.getpid())
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
    return owner.started in (0, _started(owner.pid))


def same_machine(owner: Owner) -> bool:
    here = _process(os.getpid())
    return (owner.host, owner.boot) == (here.host, here.boot)


@lru_cache(maxsize=1)
def _process(pid: int) -> Owner:
    namespace = Path("/proc/self/ns/pid")
    return Owner(
        id="",
        host=socket.gethostname(),
        pid=pid,
        boot=_read("/proc/sys/kernel/random/boot_id"),
        started=_started(pid),
        namespace=str(namespace.readlink()) if namespace.is_symlink() else "",
    )


def _started(pid: int) -> int:
    """Ticks after the machine's start, which tell a process from a later one with the same number. One that has ended
    and that nobody has asked about yet (in a container it may be for good) is none any more."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if fields[:1] in (["Z"], ["X"]):
        return _ENDED
    return int(fields[19]) if len(fields) > 19 else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
