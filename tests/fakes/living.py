"""Looks whether processes are alive, by the numbers that commands write down for a test."""

import contextlib
import shlex
import time
from pathlib import Path


def is_alive(pid: int) -> bool:
    """A zombie is not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    return False


def number_in(path: Path, patience: float = 30.0) -> int:
    """The number that a command writes into a file, once it has."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            if (text := path.read_text()).endswith("\n"):
                return int(text)
        time.sleep(0.01)
    raise AssertionError(f"nothing was written to {path.name}")


def until_there(path: Path) -> str:
    """Words for a shell: it goes on when there is such a file."""
    return f"until [ -e {shlex.quote(str(path))} ]; do sleep 0.02; done"


def wait_until_dead(*pids: int, patience: float = 30.0) -> None:
    """What a test kills would live longer than the patience; how soon it ends is for a quiet machine to say."""
    end = time.monotonic() + patience
    while any(map(is_alive, pids)):
        assert time.monotonic() < end, f"still alive: {[pid for pid in pids if is_alive(pid)]}"
        time.sleep(0.01)
