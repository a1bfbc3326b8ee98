"""Starts a worker that outlives the terminal, and ends it."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from outrider.app.config.folders import Folders, make_private
from outrider.background.resident.post import Post
from outrider.sessions.records import Owner

LARGEST_LOG = 1 << 20  # bytes; a longer one is begun anew, and the one before it kept
_LOOK = 0.1


def log_of(folders: Folders) -> Path:
    return folders.data / "worker.log"


def ensure_worker(folders: Folders, environ: Mapping[str, str]) -> Owner | None:
    """Start one unless there is one; gives the one that was there before. It listens to nobody: runs reach it through
    the database, and it has no terminal that could be closed."""
    if holder := Post(make_private(folders.data)).holder():
        return holder
    log = log_of(folders)
    with suppress(FileNotFoundError):
        if log.stat().st_size > LARGEST_LOG:
            log.replace(log.with_suffix(".log.old"))
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), "ab") as output:
        subprocess.Popen(
            [sys.executable, "-m", "outrider", "worker", "--resident"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folders.data,
            env=dict(environ),
            start_new_session=True,
        )
    return None


def stop_worker(folders: Folders, *, seconds: float = 30.0) -> Owner | None:
    """Ask the worker to end, and wait for it; it gives its runs back. None if there was none."""
    post = Post(folders.data)
    holder = post.holder()
    if holder is None:
        return None
    with suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGTERM)
    until = monotonic() + seconds
    while post.holder() == holder and monotonic() < until:
        sleep(_LOOK)
    return holder
