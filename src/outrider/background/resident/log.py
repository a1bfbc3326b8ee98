"""The log of a worker that has no terminal: bounded, with the one before it kept."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from outrider.app.config.folders import Folders

LARGEST = 1 << 20  # bytes


def log_of(folders: Folders) -> Path:
    return folders.data / "worker.log"


def bound(log: Path) -> None:
    """Begin it anew once it is too long; whoever writes at its end goes on in the same file."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > LARGEST:
            shutil.copyfile(log, log.with_suffix(".log.old"))
            os.truncate(log, 0)
