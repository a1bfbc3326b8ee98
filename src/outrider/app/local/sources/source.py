"""The contract of a source of weights, and the unfinished file that all of them append to."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from outrider.app.local.weights import Weights
from outrider.errors import WeightsError

Advance = Callable[[int], None]
"""Told how many bytes of the whole are there; what it raises ends the download."""


class SourceError(Exception):
    """This source cannot bring the weights, or no more of them; the text says why."""


class Partial:
    """The beginning of the weights. It is only ever appended to or cut, so any source can go on where another left."""

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        self.path = path

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def cut(self, size: int) -> None:
        self._file.truncate(size)

    def append(self, piece: bytes) -> None:
        try:
            self._file.seek(0, os.SEEK_END)
            self._file.write(piece)
            self._file.flush()
        except OSError as error:
            raise WeightsError(
                f"the weights could not be written to {self.path.parent}: {error.strerror}; free some space and fetch "
                "them again, what came is kept"
            ) from error

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()


class Source(Protocol):
    name: str

    def fetch(self, weights: Weights, partial: Partial, advance: Advance) -> None:
        """Append until the weights are whole. Raises SourceError; what was appended stays."""
        ...
