"""When a worker that nobody started by hand ends itself."""

import asyncio
import fcntl
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TextIO

import msgspec

from outrider.background.jobs import Jobs
from outrider.config.paths import Folders, make_private
from outrider.errors import ProcessError
from outrider.sessions.records import Owner
from outrider.sessions.sqlite.owners import is_alive, this_process

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


class Holding(Owner, frozen=True):
    """`mark` tells what its process was started with, without telling what that is."""

    mark: str = ""


class WorkerLock:
    """`terms` are what the process was started with, where others should know that they would start it otherwise."""

    def __init__(self, folder: Path, terms: Sequence[str] = ()) -> None:
        self._terms = terms
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
        me = this_process()
        holding = Holding(**msgspec.structs.asdict(me), mark=_mark(me, self._terms) if self._terms else "")
        os.write(opened, msgspec.json.encode(holding))
        self._held = opened
        return True

    def leave(self) -> None:
        if self._held is not None:
            os.ftruncate(self._held, 0)
            os.close(self._held)
            self._held = None

    def holder(self) -> Holding | None:
        """Who has it; None if nobody does. What a process that was killed wrote there counts for nothing."""
        try:
            owner = msgspec.json.decode(self._file.read_bytes(), type=Holding)
        except (OSError, msgspec.MsgspecError):
            return None
        return None if is_alive(owner) is False else owner


def differs(holding: Holding, terms: Sequence[str]) -> bool:
    """Whether the process was started with other terms; False where it did not say with which."""
    return bool(holding.mark) and holding.mark != _mark(holding, terms)


def _mark(owner: Owner, terms: Sequence[str]) -> str:
    """Another one for each process: what keys are the same where is nobody's business."""
    return hashlib.sha256("\0".join([owner.id, *terms]).encode()).hexdigest()


MINUTES = 5.0
_LOOK = 2.0


async def until_idle(
    jobs: Jobs, post: WorkerLock, *, seconds: float = MINUTES * 60, look: float = _LOOK, log: Path | None = None
) -> None:
    """Returns, with the post left, once there was nothing to do for so long. A run that waits for an answer is nothing
    to do: whoever answers starts a worker again."""
    while True:
        since = monotonic()
        while monotonic() - since < seconds:
            if log is not None:
                await asyncio.to_thread(bound, log)
            if await jobs.busy():
                since = monotonic()
            await asyncio.sleep(min(look, seconds))
        # Whoever submits looks for a worker afterwards: what was submitted while this one had the post is seen here.
        post.leave()
        if not await jobs.busy() or not post.take():
            return


_LOOK_STARTING = 0.1
_PLACES = ("OUTRIDER_HOME",)  # another one has a worker of its own


def terms_of(environ: Mapping[str, str], version: str) -> list[str]:
    """What a worker keeps for as long as it lives: keys, addresses and settings of its environment, and the program."""
    kept = {name for name in environ if name.startswith("OUTRIDER_") or name.endswith(("_API_KEY", "_BASE_URL"))}
    return [version, *(f"{name}={environ[name]}" for name in sorted(kept.difference(_PLACES)))]


def ensure_worker(folders: Folders, environ: Mapping[str, str]) -> Holding | None:
    """Start one unless there is one; gives the one that was there before. It listens to nobody: runs reach it through
    the database, and it has no terminal that could be closed."""
    if holder := WorkerLock(make_private(folders.data)).holder():
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
    post = WorkerLock(folders.data)
    holder = post.holder()
    if holder is None:
        return None
    with suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGTERM)
    until = monotonic() + seconds
    while post.holder() == holder:
        if monotonic() > until:
            raise ProcessError(f"the worker, process {holder.pid}, was asked to end and has not done so yet")
        sleep(_LOOK_STARTING)
    return holder
