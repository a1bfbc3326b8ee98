"""The resident worker process of a data directory: start, stop, lock, log file and exit when idle."""

import asyncio
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TextIO

import msgspec

from outrider._posix import O_CLOEXEC, O_NOFOLLOW, fcntl
from outrider.background.health import configure_log
from outrider.background.jobs import JobClient
from outrider.config.paths import AppFolders, make_private_folder
from outrider.errors import ProcessError
from outrider.presentation.formats import format_elapsed
from outrider.sessions.leases import current_process, is_process_alive
from outrider.sessions.records import ProcessIdentity

MAX_LOG_BYTES = 1 << 20  # bytes
LOGGER_NAME = "outrider.worker"
STORE_LOGGER_NAME = "outrider.sessions"


def configure_worker_log(stream: TextIO, *, json: bool = False) -> None:
    """Writes the worker's log records to the stream: each line with a timestamp, or as a JSON object."""
    configure_log(stream, LOGGER_NAME, STORE_LOGGER_NAME, json=json)


def worker_log_path(folders: AppFolders) -> Path:
    return folders.data / "worker.log"


def truncate_log(log: Path) -> None:
    """Copies a log above the size limit to a backup and truncates it. The file is not replaced, because the worker's
    open descriptor appends to it."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > MAX_LOG_BYTES:
            shutil.copyfile(log, log.with_suffix(".log.old"))
            os.truncate(log, 0)


class LockHolder(ProcessIdentity, frozen=True):
    """The content of the lock file. `mark` is a digest of the launch values, which may contain API keys."""

    mark: str = ""


class WorkerLock:
    """An exclusive file lock for the one resident worker of a data directory, or with another `name` for its
    supervisor. `launch_values` are recorded as a digest, so that later commands can detect that they would start the
    worker with other values."""

    def __init__(self, folder: Path, launch_values: Sequence[str] = (), name: str = "worker.lock") -> None:
        self._launch_values = launch_values
        self._file = folder / name
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Returns whether this process holds the lock now; False if another process holds it."""
        if self._descriptor is not None:
            return True
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        owner = current_process()
        holder = LockHolder(
            **msgspec.structs.asdict(owner),
            mark=_launch_digest(owner, self._launch_values) if self._launch_values else "",
        )
        os.write(descriptor, msgspec.json.encode(holder))
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> LockHolder | None:
        """Returns the process that holds the lock; None if there is none. The content of a killed process is
        ignored."""
        owner = self._read_owner()
        return None if owner is None or is_process_alive(owner) is False else owner

    def has_died(self) -> bool:
        """Returns whether the last resident worker was killed: it did not release the lock."""
        owner = self._read_owner()
        return owner is not None and bool(owner.mark) and is_process_alive(owner) is False

    def _read_owner(self) -> LockHolder | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=LockHolder)
        except (OSError, msgspec.MsgspecError):
            return None


def was_launched_differently(holder: LockHolder, launch_values: Sequence[str]) -> bool:
    """Returns whether the process was started with other launch values; False if it recorded none."""
    return bool(holder.mark) and holder.mark != _launch_digest(holder, launch_values)


def _launch_digest(owner: ProcessIdentity, launch_values: Sequence[str]) -> str:
    """Returns a digest salted with the process id of the owner, so that two lock files do not show whether
    they have equal API keys."""
    return hashlib.sha256("\0".join([owner.id, *launch_values]).encode()).hexdigest()


IDLE_MINUTES = 5.0
_IDLE_POLL_SECONDS = 2.0


async def wait_until_idle(
    jobs: JobClient,
    lock: WorkerLock,
    *,
    seconds: float = IDLE_MINUTES * 60,
    poll: float = _IDLE_POLL_SECONDS,
    log: Path | None = None,
) -> None:
    """Releases the lock and returns once there was no work for `seconds`. A run that waits for an approval does not
    count: the process that stores the answer starts a worker again."""
    while True:
        idle_since = monotonic()
        while monotonic() - idle_since < seconds:
            if log is not None:
                await asyncio.to_thread(truncate_log, log)
            if await jobs.has_work():
                idle_since = monotonic()
            await asyncio.sleep(min(poll, seconds))
        # A client submits first and looks for a worker afterwards, so a run submitted while this process held the lock
        # is found by this second check.
        lock.release()
        if not await jobs.has_work() or not lock.acquire():
            return


# A different OUTRIDER_HOME has its own worker; OUTRIDER_USER is read when a run is submitted.
_IGNORED_VARIABLES = ("OUTRIDER_HOME", "OUTRIDER_USER")


def collect_launch_values(environ: Mapping[str, str], version: str) -> list[str]:
    """Returns what a worker reads only at its start: API keys, base URLs, OUTRIDER_* settings and the program
    version."""
    names = {name for name in environ if name.startswith("OUTRIDER_") or name.endswith(("_API_KEY", "_BASE_URL"))}
    return [version, *(f"{name}={environ[name]}" for name in sorted(names.difference(_IGNORED_VARIABLES)))]


def ensure_worker(folders: AppFolders, environ: Mapping[str, str]) -> LockHolder | None:
    """Starts a resident worker unless one runs, or was killed and is started again by its supervisor. Returns the
    worker or the supervisor that ran before. The process has no terminal and no socket: runs reach it through the
    database."""
    lock = WorkerLock(make_private_folder(folders.data))
    if holder := lock.holder():
        return holder
    if lock.has_died() and (supervisor := supervisor_lock(folders.data).holder()):
        return supervisor
    log = worker_log_path(folders)
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | O_NOFOLLOW, 0o600), "ab") as output:
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


_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
_STABLE_SECONDS = 60.0  # a worker that ran for longer starts the count of failures anew
_MAX_FAILURES = 8
_POLL_SECONDS = 0.1
_STOP_SECONDS = 30.0
_EXIT_SECONDS = 10.0  # for a supervisor whose worker has released its lock


def supervisor_lock(folder: Path) -> WorkerLock:
    """Returns the lock of the process that starts the resident worker again. `stop_worker` needs it, because a
    supervisor that is about to start the worker would do so after the stop."""
    return WorkerLock(folder, name="supervisor.lock")


def supervise_worker(command: Sequence[str], folder: Path, write: Callable[[str], object]) -> int:
    """Runs the command and starts it again when it was killed or failed, with a pause that doubles. Returns its exit
    code when it has ended by itself, when this process was asked to stop, or after many failures in a row; 0 at once
    if another process supervises the worker of the folder."""
    child: subprocess.Popen[bytes] | None = None
    is_stopping = False

    def stop(number: int, _: object) -> None:
        nonlocal is_stopping
        is_stopping = True
        if child is not None:
            child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    lock = supervisor_lock(make_private_folder(folder))
    if not _acquire_from_predecessor(lock, WorkerLock(folder)):
        return 0
    failures = 0
    try:
        while not is_stopping:
            start = monotonic()
            child = subprocess.Popen(command, start_new_session=True)  # signals reach it through this process only
            if is_stopping:  # the signal came before the child was known
                child.terminate()
            code = child.wait()
            failures = 1 if monotonic() - start > _STABLE_SECONDS else failures + 1
            if code == 0 or is_stopping or failures >= _MAX_FAILURES:
                return max(code, 0)
            pause = min(_FIRST_PAUSE_SECONDS * 2 ** (failures - 1), _LONGEST_PAUSE_SECONDS)
            later = format_elapsed(pause)
            write(f"the worker (process {child.pid}) ended with code {code}; it is started again in {later}")
            until = monotonic() + pause
            while not is_stopping and monotonic() < until:
                sleep(_POLL_SECONDS)  # a signal does not end a longer sleep
    finally:
        lock.release()
    return 0


def _acquire_from_predecessor(lock: WorkerLock, worker: WorkerLock) -> bool:
    """Returns whether the lock could be acquired. A supervisor whose worker has ended is about to release it."""
    until = monotonic() + _EXIT_SECONDS
    while not lock.acquire():
        if worker.holder() is not None or monotonic() > until:
            return False
        sleep(_POLL_SECONDS)
    return True


def stop_worker(folders: AppFolders) -> ProcessIdentity | None:
    """Sends SIGTERM to the supervisor of the resident worker, which passes it on, or to a worker without one. Waits for
    their exit; the worker puts its runs back into the queue. Returns None if there was neither. Raises ProcessError if
    they do not exit in time."""
    locks = supervisor_lock(folders.data), WorkerLock(folders.data)
    holders = [holder for lock in locks if (holder := lock.holder()) is not None]
    if not holders:
        return None
    with suppress(ProcessLookupError):
        os.kill(holders[0].pid, signal.SIGTERM)
    deadline = monotonic() + _STOP_SECONDS
    while running := [holder for holder in holders if holder in (lock.holder() for lock in locks)]:
        if monotonic() > deadline:
            raise ProcessError(f"the worker (process {running[-1].pid}) has received SIGTERM but has not exited yet")
        sleep(_POLL_SECONDS)
    return holders[-1]
