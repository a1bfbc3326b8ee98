"""Finds what a test left behind: tasks of its event loop, and processes that still live."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

GRACE_SECONDS = 5.0
"""What ends is given time to end, also on a machine that has much else to do; only a leak waits for all of it."""

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make grandchildren whose parent died our own children (Linux), so that they are found as well."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hear_interrupts() -> None:
    """A shell starts what runs in its background deaf to them, and so would be every program that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def child_processes() -> set[int]:
    """Living children of this process; empty where the system does not tell (no /proc)."""
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= {int(pid) for pid in listing.read_text().split()}
    return {pid for pid in found if not (_ended(pid) or "resource_tracker" in command_of(pid))}


def command_of(pid: int) -> str:
    """Its command line, which is empty for a moment while a program starts."""
    for _ in range(50):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
            if command or _ended(pid):
                return command
        time.sleep(0.002)
    return ""


def leaked_processes(before: set[int], grace: float = GRACE_SECONDS) -> dict[int, str]:
    """New children that are alive after a moment of grace; they are killed so that no later test suffers."""
    deadline = time.monotonic() + grace
    while (leaked := child_processes() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    commands = {pid: command_of(pid) for pid in leaked}
    for pid in leaked:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return commands


async def leaked_tasks(before: set[asyncio.Task[object]], grace: float = GRACE_SECONDS) -> list[str]:
    """New tasks that are pending although every task has had a chance, and a moment of grace, to end."""
    deadline = time.monotonic() + grace
    await asyncio.sleep(0)
    while (leaked := asyncio.all_tasks() - before - {asyncio.current_task()}) and time.monotonic() < deadline:
        await asyncio.sleep(0.001)
    return sorted(str(task.get_coro()) for task in leaked)


def _ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in {"Z", "X"}
