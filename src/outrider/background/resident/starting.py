"""Starts a worker that outlives the terminal, and ends it."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic, sleep

from outrider.app.config.folders import Folders, make_private
from outrider.background.resident.log import log_of
from outrider.background.resident.post import Holding, Post
from outrider.errors import ProcessError
from outrider.sessions.records import Owner

_LOOK = 0.1
_PLACES = ("OUTRIDER_HOME",)  # another one has a worker of its own


def terms_of(environ: Mapping[str, str], version: str) -> list[str]:
    """What a worker keeps for as long as it lives: keys, addresses and settings of its environment, and the program."""
    kept = {name for name in environ if name.startswith("OUTRIDER_") or name.endswith(("_API_KEY", "_BASE_URL"))}
    return [version, *(f"{name}={environ[name]}" for name in sorted(kept.difference(_PLACES)))]


def ensure_worker(folders: Folders, environ: Mapping[str, str]) -> Holding | None:
    """Start one unless there is one; gives the one that was there before. It listens to nobody: runs reach it through
    the database, and it has no terminal that could be closed."""
    if holder := Post(make_private(folders.data)).holder():
        return holder
    log = log_of(folders)
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
    """Ask the worker to end, and wait for it; it gives its runs back. None if there was none, and ProcessError if it
    does not end in time."""
    post = Post(folders.data)
    holder = post.holder()
    if holder is None:
        return None
    with suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGTERM)
    until = monotonic() + seconds
    while post.holder() == holder:
        if monotonic() > until:
            raise ProcessError(f"the worker, process {holder.pid}, was asked to end and has not done so yet")
        sleep(_LOOK)
    return holder
