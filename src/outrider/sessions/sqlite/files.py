"""Files of a store: private, never through a planted link, and with a journal that their file system can keep."""

import errno
import fcntl
import os
import sqlite3
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from outrider.errors import StorageFullError, StoreDamagedError, StoreError, StoreUnavailableError

# Shared memory and locks of these cannot be trusted between machines, and a write-ahead log needs both.
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "ncpfs", "vboxsf"})
_COMPANIONS = ("-wal", "-shm", "-journal")


def prepare_folder(path: Path) -> None:
    """The folder of a store, ours alone: 0700. Raises StoreUnavailableError where that cannot be."""
    if "\0" in str(path):
        raise StoreUnavailableError(f"{str(path)!r} is not a path")
    try:
        private_directory(path.parent)
        for suffix in _COMPANIONS:
            _refuse_link(Path(f"{path}{suffix}"))
    except OSError as error:
        raise StoreUnavailableError(f"the store {path} cannot be used: {error.strerror}", path=str(path)) from error


def prepare(path: Path) -> None:
    """The file, ours alone: 0600. One that is there is not opened: closing it would drop the locks that connections of
    this process have on it, and others would take the log from under them."""
    try:
        if path.is_symlink() or path.exists():
            _refuse_foreign(path, path.lstat())
            if stat.S_IMODE(path.lstat().st_mode) & 0o077:
                path.chmod(0o600)
        else:
            create_private(path)
    except OSError as error:
        raise StoreUnavailableError(f"the store {path} cannot be used: {error.strerror}", path=str(path)) from error


def private_directory(path: Path) -> None:
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    status = path.stat()
    if missing or (status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & 0o022):
        path.chmod(0o700)
    if status.st_uid not in (os.geteuid(), 0):
        raise StoreUnavailableError(f"{path} belongs to somebody else", path=str(path))


def open_private(path: Path) -> int:
    """A descriptor of a plain file that only we can read, made if it is missing."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnavailableError(f"{path} cannot be opened: {error.strerror}", path=str(path)) from error
    status = os.fstat(descriptor)
    try:
        _refuse_foreign(path, status)
    except StoreUnavailableError:
        os.close(descriptor)
        raise
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.fchmod(descriptor, 0o600)
    return descriptor


def create_private(path: Path) -> None:
    """A new, empty file; one that is there already, or a link, raises FileExistsError."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def file_system(path: Path) -> str:
    """The type of the file system that holds the path; empty where the system does not tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    real = path.resolve()
    best = ("", "")
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = left.split()[4].replace("\\040", " ")
        if real.is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, right.split()[0])
    return best[1]


def journal_mode(path: Path, type_of: Callable[[Path], str] = file_system) -> str:
    kind = type_of(path.parent)
    return "delete" if kind in _NETWORK or kind.startswith("fuse.") else "wal"


def companions(path: Path) -> list[Path]:
    """The file and what SQLite keeps beside it."""
    return [path, *(Path(f"{path}{suffix}") for suffix in _COMPANIONS)]


def log_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def _refuse_foreign(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
        raise StoreUnavailableError(f"{path} is not a plain file of ours; refusing to write to it", path=str(path))


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise StoreUnavailableError(f"{path} is a link; refusing to write through it", path=str(path))


_FULL_BYTES = 256 * 1024
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
}


@contextmanager
def in_our_words(path: Path) -> Generator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise explain(error, path) from error


def explain(error: Exception, path: Path) -> StoreError:
    if isinstance(error, StoreError):
        return error
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    where = {"path": str(path)}
    if code == sqlite3.SQLITE_FULL or _disk_is_full(error, code, path):
        return StorageFullError(f"there is no space left for {path}; nothing was written", **where)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreDamagedError(f"{path} is damaged: {error}", **where)
    if code in _UNAVAILABLE or isinstance(error, OSError):
        return StoreUnavailableError(f"{path} cannot be used now: {error}", **where)
    return StoreError(f"{path}: {error}", **where)


def _disk_is_full(error: Exception, code: int, path: Path) -> bool:
    """A full disk also shows as a failed write, or as shared memory that cannot grow."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if code not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return False
    try:
        status = os.statvfs(path.parent)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < _FULL_BYTES


class FairFileLock:
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
