"""The names of the workspace's files, looked up when they are first wanted and again when they may be old."""

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from outrider.app.views.files import workspace_files

OLD_AFTER = 10.0  # seconds


class FileNames:
    """`found` is called when there are others than before."""

    def __init__(
        self, workspace: Path, start: Callable[[Coroutine[Any, Any, None]], None], found: Callable[[], None]
    ) -> None:
        self._workspace = workspace
        self._start = start
        self._found = found
        self._names: Sequence[str] = ()
        self._looked = float("-inf")

    def names(self) -> Sequence[str]:
        """Those that are known; typing never waits for the others."""
        if monotonic() - self._looked > OLD_AFTER:
            self._looked = monotonic()
            self._start(self._look())
        return self._names

    async def _look(self) -> None:
        names = await workspace_files(self._workspace)
        if names != self._names:
            self._names = names
            self._found()
