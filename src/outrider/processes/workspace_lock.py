"""The lock of one workspace: commands with an overlay, commits and edits run one at a time, also between processes."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

from outrider._posix import O_CLOEXEC, O_NOFOLLOW, fcntl

LOCKS_FOLDER = "locks"
POLL_SECONDS = 0.05
WAIT_NOTE = "waiting for another command or edit in this workspace to end\n"


class WorkspaceLock:
    """Serializes what changes a workspace. The kernel releases the file lock when its process ends, also by a kill.

    The file is in the data folder, so it covers the processes that share one. Waiting can be cancelled.
    """

    def __init__(self, data: Path, workspace: Path) -> None:
        name = sha256(os.fsencode(workspace.resolve())).hexdigest()[:24]
        self._file = data / LOCKS_FOLDER / f"{name}.lock"
        self._tasks = asyncio.Lock()

    @asynccontextmanager
    async def hold(self, on_wait: Callable[[str], object] | None = None) -> AsyncGenerator[None, None]:
        """Holds the lock; calls `on_wait` once with a note if it is not free."""
        notify = _once(on_wait)
        if self._tasks.locked():
            notify()
        async with self._tasks:
            descriptor = self._open()
            try:
                while descriptor is not None and not _try_lock(descriptor):
                    notify()
                    await asyncio.sleep(POLL_SECONDS)
                yield
            finally:
                if descriptor is not None:
                    os.close(descriptor)

    def _open(self) -> int | None:
        """Returns a descriptor of the lock file, None if the data folder cannot be written."""
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(self._file, os.O_RDWR | os.O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0o600)
        except OSError:
            return None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _once(on_wait: Callable[[str], object] | None) -> Callable[[], None]:
    waiting = [on_wait] if on_wait is not None else []

    def notify() -> None:
        if waiting:
            waiting.pop()(WAIT_NOTE)

    return notify
