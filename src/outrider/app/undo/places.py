"""Where the changes of each workspace are kept, and why those of some are not."""

import asyncio
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from outrider.errors import ConfigurationError
from outrider.sessions import snapshots as kept
from outrider.tools.threads import Threads

T = TypeVar("T")
FOLDER = "undo"
MOST_BYTES = 8 * 1024 * 1024 * 1024  # over all workspaces


class Places:
    """One folder below `data` for each workspace, opened when it is first needed."""

    def __init__(self, data: Path) -> None:
        self._data = data / FOLDER
        self._opened: dict[Path, kept.Snapshots | str] = {}
        self._lock = asyncio.Lock()
        self._threads = Threads(8)

    async def find(self, workspace: Path) -> "kept.Snapshots | str":
        """The workspace's changes, or the reason why none are kept. Raises StoreError if that does not work now."""
        async with self._lock:
            if workspace not in self._opened:
                self._opened[workspace] = await self.run(lambda: self._open(workspace))
            return self._opened[workspace]

    def has(self, workspace: Path) -> bool:
        """Whether anything was ever kept for it."""
        return self._folder(workspace).is_dir()

    async def run(self, function: Callable[[], T]) -> T:
        """In a thread: looking at files takes its time."""
        return await self._threads.run(function)

    async def close(self) -> None:
        used = [opened for opened in self._opened.values() if isinstance(opened, kept.Snapshots)]
        for opened in used:
            await self.run(opened.close)
        if used:
            await self.run(lambda: kept.shed(self._data, MOST_BYTES))
        self._opened.clear()
        self._threads.close()

    def _open(self, workspace: Path) -> "kept.Snapshots | str":
        try:
            return kept.Snapshots(self._folder(workspace), workspace)
        except ConfigurationError as error:
            return error.message

    def _folder(self, workspace: Path) -> Path:
        return self._data / sha256(os.fsencode(workspace.resolve())).hexdigest()[:16]
