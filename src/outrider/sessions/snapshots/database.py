"""The private SQLite file with all contents and changes of one workspace."""

import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outrider.errors import StoreVersionError
from outrider.sessions.database_files import FairFileLock, journal_mode, prepare_file, prepare_folder, translate_errors

SCHEMA_VERSION = 1
_TABLES = (
    "CREATE TABLE IF NOT EXISTS objects (name TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT",
    """CREATE TABLE IF NOT EXISTS changes
    (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, body BLOB NOT NULL) STRICT""",
    """CREATE TABLE IF NOT EXISTS belongs
    (session TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (session, number)) STRICT, WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS under_way (id TEXT PRIMARY KEY, mark INTEGER NOT NULL, body BLOB NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT",
)


class SnapshotDatabase:
    """A SQLite connection with a lock, usable from any thread. A full disk raises StorageFullError."""

    def __init__(self, path: Path) -> None:
        prepare_folder(path)
        self.path = path
        self._lock = threading.RLock()
        self._depth = 0
        file_lock = FairFileLock(path)
        try:
            with translate_errors(path), file_lock:
                prepare_file(path)
                self._db = _open_connection(path)
        finally:
            file_lock.close()

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Runs a transaction: commits at the end, rolls back on an exception. A nested one joins the outer one."""
        with self._lock, translate_errors(self.path):
            if self._depth == 0:
                self._db.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield self._db
            except BaseException:
                self._depth -= 1
                if self._depth == 0 and self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._depth -= 1
            if self._depth == 0:
                self._commit_transaction()

    def fetch_all(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, translate_errors(self.path):
            return self._db.execute(statement, values).fetchall()

    def used_bytes(self) -> int:
        """Returns the size without free pages."""
        pages, free, page = (
            self.fetch_all(f"PRAGMA {name}")[0][0] for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * page

    def vacuum_free_pages(self) -> None:
        """Returns free pages to the file system. `execute` would stop after the first page, hence `executescript`."""
        with self._lock, translate_errors(self.path):
            self._db.executescript("PRAGMA incremental_vacuum")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _commit_transaction(self) -> None:
        try:
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def _open_connection(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
    try:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute(f"PRAGMA journal_mode = {journal_mode(path)}")
        db.execute("PRAGMA synchronous = NORMAL")
        _create_tables(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _create_tables(db: sqlite3.Connection, path: Path) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise StoreVersionError(
            f"{path} has schema version {version}; this program reads versions up to {SCHEMA_VERSION}. Update Outrider."
        )
    if version < SCHEMA_VERSION:
        for table in _TABLES:
            db.execute(table)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
