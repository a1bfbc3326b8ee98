"""The post of the worker of a data directory: held by one process at a time, and free again when it ends, however."""

import fcntl
import os
from pathlib import Path

import msgspec

from outrider.sessions.records import Owner
from outrider.sessions.sqlite.owners import is_alive, this_process


class Post:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "worker.lock"
        self._held: int | None = None

    def take(self) -> bool:
        """Whether it is ours now: False if another process has it."""
        if self._held is not None:
            return True
        opened = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(opened)
            return False
        os.ftruncate(opened, 0)
        os.write(opened, msgspec.json.encode(this_process()))
        self._held = opened
        return True

    def leave(self) -> None:
        if self._held is not None:
            os.ftruncate(self._held, 0)
            os.close(self._held)
            self._held = None

    def holder(self) -> Owner | None:
        """Who has it; None if nobody does. What a process that was killed wrote there counts for nothing."""
        try:
            owner = msgspec.json.decode(self._file.read_bytes(), type=Owner)
        except (OSError, msgspec.MsgspecError):
            return None
        return None if is_alive(owner) is False else owner
