"""SQLite's errors in our words."""

import errno
import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from outrider.errors import (
    StorageFullError,
    StoreDamagedError,
    StoreError,
    StoreUnavailableError,
)

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
