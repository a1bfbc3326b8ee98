"""A lock between processes that lets everybody through in turn.

SQLite's own waiting is a lottery: with sixteen writers one of them may wait for seconds. Here whoever leaves the gate
has to queue again behind all who wait. The system frees both locks when a process ends, however it ends.
"""

import fcntl
import os
from pathlib import Path
from typing import Self

from outrider.sessions.sqlite.files import open_private


class Turnstile:
    def __init__(self, path: Path) -> None:
        self._queue = open_private(Path(f"{path}-queue"))
        self._gate = open_private(Path(f"{path}-gate"))

    def __enter__(self) -> Self:
        fcntl.flock(self._queue, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._gate, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._queue, fcntl.LOCK_UN)
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def try_enter(self) -> bool:
        """Enter if nobody is inside or waiting. One turnstile object is for one thread."""
        try:
            fcntl.flock(self._queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            fcntl.flock(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            fcntl.flock(self._queue, fcntl.LOCK_UN)
        return True

    def leave(self) -> None:
        fcntl.flock(self._gate, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._queue)
        os.close(self._gate)
