"""Files of a SQLite database: private permissions, no symbolic links, journal mode, a fair lock, and error mapping.

The check of a Postgres database's encoding is here too, because the store and the runs share it.
"""

import errno
import os
import sqlite3
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from outrider._posix import O_CLOEXEC, O_NOFOLLOW, fcntl, require_posix
from outrider.errors import ConfigurationError, StorageFullError, StoreDamagedError, StoreError, StoreUnavailableError

# A write-ahead log needs shared memory and file locks, which are unreliable between machines on these file systems.
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "ncpfs", "vboxsf"}
)
_SUFFIXES = ("-wal", "-shm", "-journal")
LOCK_SUFFIX = "-gate"
BUSY_SECONDS = 30


def prepare_folder(path: Path) -> None:
    """Creates the folder of a store with mode 0700. Raises StoreUnavailableError if that is not possible."""
    require_posix("a store in a file")
    if "\0" in str(path):
        raise StoreUnavailableError(f"{str(path)!r} is not a path")
    try:
        make_private_directory(path.parent)
        for suffix in _SUFFIXES:
            _check_not_link(Path(f"{path}{suffix}"))
    except OSError as error:
        raise StoreUnavailableError(f"the store {path} cannot be used: {error.strerror}", path=str(path)) from error


def prepare_file(path: Path) -> None:
    """Creates the file with mode 0600, or checks an existing one without opening it.

    Closing a descriptor would drop the POSIX locks that SQLite connections of this process hold on the file, and
    another process could then delete the write-ahead log in use.
    """
    try:
        if path.is_symlink() or path.exists():
            _check_ownership(path, path.lstat())
            if stat.S_IMODE(path.lstat().st_mode) & 0o077:
                path.chmod(0o600)
        else:
            create_private_file(path)
    except OSError as error:
        raise StoreUnavailableError(f"the store {path} cannot be used: {error.strerror}", path=str(path)) from error


def make_private_directory(path: Path) -> None:
    """Creates a folder that only its owner can open. In an existing folder of this user, removes the right of other
    users to replace files, except in a shared folder such as /tmp, where the sticky bit prevents that."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if missing:
        path.chmod(0o700)
    elif status.st_uid == os.geteuid() and mode & 0o022 and not mode & stat.S_ISVTX:
        path.chmod(mode & ~0o022)
    if status.st_uid not in (os.geteuid(), 0):
        raise StoreUnavailableError(f"{path} belongs to another user; choose another data directory", path=str(path))


def open_private_file(path: Path) -> int:
    """Opens a regular file with mode 0600, creates it if it is missing, and returns its descriptor."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnavailableError(f"{path} cannot be opened: {error.strerror}", path=str(path)) from error
    status = os.fstat(descriptor)
    try:
        _check_ownership(path, status)
    except StoreUnavailableError:
        os.close(descriptor)
        raise
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.fchmod(descriptor, 0o600)
    return descriptor


def create_private_file(path: Path) -> None:
    """Creates an empty file with mode 0600. Raises FileExistsError if the path exists, also as a link."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0o600))


def file_system_type(path: Path) -> str:
    """Returns the type of the file system of a path; an empty string if the system has no /proc."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    real = path.resolve()
    best = ("", "")
    for line in lines:
        mount_fields, _, type_fields = line.partition(" - ")
        mount = mount_fields.split()[4].replace("\\040", " ")
        if real.is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, type_fields.split()[0])
    return best[1]


def journal_mode(path: Path, type_of: Callable[[Path], str] = file_system_type) -> str:
    kind = type_of(path.parent)
    return "delete" if kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse.") else "wal"


def open_connection(path: Path, *, cached_statements: int = 128) -> sqlite3.Connection:
    """Opens a connection that any thread may use, without implicit transactions. It waits for locks of other
    connections."""
    return sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=cached_statements
    )


def configure_connection(db: sqlite3.Connection, path: Path) -> None:
    """Configures a connection to a database other than the store: it waits for locks of other connections, uses the
    journal that suits the file system, and syncs at checkpoints only, so a power failure may lose the last commits."""
    db.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
    db.execute(f"PRAGMA journal_mode = {journal_mode(path)}")
    db.execute("PRAGMA synchronous = NORMAL")


def store_file_paths(path: Path) -> list[Path]:
    """Returns the paths of the database file and of SQLite's additional files."""
    return [path, *(Path(f"{path}{suffix}") for suffix in _SUFFIXES)]


def wal_path(path: Path) -> Path:
    return Path(f"{path}-wal")


def _check_ownership(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
        raise StoreUnavailableError(
            f"{path} is not a regular file of this user; refusing to write to it", path=str(path)
        )


def _check_not_link(path: Path) -> None:
    if path.is_symlink():
        raise StoreUnavailableError(f"{path} is a link; refusing to write through it", path=str(path))


_DISK_FULL_BYTES = 256 * 1024
_UNAVAILABLE_CODES = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
}


@contextmanager
def translate_errors(path: Path) -> Generator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise to_store_error(error, path) from error
    except UnicodeDecodeError as error:  # SQLite quotes the damaged schema in its error, and Python cannot decode it
        raise StoreDamagedError(f"{path} is damaged: its schema is not readable", path=str(path)) from error


def to_store_error(error: Exception, path: Path) -> StoreError:
    if isinstance(error, StoreError):
        return error
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    where = {"path": str(path)}
    if code == sqlite3.SQLITE_FULL or _disk_is_full(error, code, path):
        return StorageFullError(f"there is no space left for {path}; nothing was written", **where)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        remedy = "`outrider doctor --repair` copies what is readable to a new file"
        return StoreDamagedError(f"{path} is damaged: {error}; {remedy}", **where)
    if code in _UNAVAILABLE_CODES or isinstance(error, OSError):
        return StoreUnavailableError(f"{path} cannot be used now: {error}", **where)
    return StoreError(f"{path}: {error}", **where)


def _disk_is_full(error: Exception, code: int, path: Path) -> bool:
    """Returns whether the disk is full. SQLite may report this as an I/O error or as CANTOPEN of the shared memory."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if code not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return False
    try:
        status = os.statvfs(path.parent)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < _DISK_FULL_BYTES


class FairFileLock:
    """A lock between processes that serves waiters in order: a waiter holds `-queue` until it gets `-gate`.

    SQLite's own lock is polled, so a busy process could starve others.
    """

    def __init__(self, path: Path) -> None:
        self._queue = open_private_file(Path(f"{path}-queue"))
        self._gate = open_private_file(Path(f"{path}{LOCK_SUFFIX}"))

    def __enter__(self) -> Self:
        fcntl.flock(self._queue, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._gate, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._queue, fcntl.LOCK_UN)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def try_acquire(self) -> bool:
        """Acquires the lock if no process holds it or waits for it. Each thread needs its own lock object."""
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

    def release(self) -> None:
        fcntl.flock(self._gate, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._queue)
        os.close(self._gate)


def check_encoding(encoding: str | None) -> None:
    """Raises ConfigurationError for a Postgres database without an encoding, because it returns bytes in place of
    text."""
    if encoding == "SQL_ASCII":
        raise ConfigurationError(
            "the Postgres database has the encoding SQL_ASCII, but Outrider stores Unicode text; create one with"
            " createdb -E UTF8 -T template0 NAME"
        )
