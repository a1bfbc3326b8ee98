"""What a worker writes down; without a terminal it is a file, which is bounded, with the one before it kept."""

import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from outrider.app.config.folders import Folders

LARGEST = 1 << 20  # bytes
NAME = "outrider.worker"


def write_down(stream: TextIO) -> None:
    """When runs begin and end, and what went wrong; each line with its time."""
    lines = logging.StreamHandler(stream)
    lines.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    log = logging.getLogger(NAME)
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    log.propagate = False


def log_of(folders: Folders) -> Path:
    return folders.data / "worker.log"


def bound(log: Path) -> None:
    """Begin it anew once it is too long; whoever writes at its end goes on in the same file."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > LARGEST:
            shutil.copyfile(log, log.with_suffix(".log.old"))
            os.truncate(log, 0)
