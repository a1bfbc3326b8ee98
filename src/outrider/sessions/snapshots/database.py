"""The one private SQLite file in which everything about a workspace's changes is kept."""

import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outrider.errors import StoreVersionError
from outrider.sessions.sqlite.files import FairFileLock, in_our_words, journal_mode, prepare, prepare_folder

VERSION = 1
_TABLES = (
    "CREATE TABLE IF NOT EXISTS objects (name TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT",
    """CREATE TABLE IF NOT EXISTS changes
    (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, body BLOB NOT NULL) STRICT""",
    """CREATE TABLE IF NOT EXISTS belongs
    (session TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (session, number)) STRICT, WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS under_way (id TEXT PRIMARY KEY, mark INTEGER NOT NULL, body BLOB NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT",
)


class Database:
    """May be used from any thread. A full disk raises StorageFullError; what was kept before stays."""

    def __init__(self, path: Path) -> None:
        prepare_folder(path)
        self.path = path
        self._lock = threading.RLock()
        self._depth = 0
        turnstile = FairFileLock(path)
        try:
            with in_our_words(path), turnstile:
                prepare(path)
                self._db = _open(path)
        finally:
            turnstile.close()

    @contextmanager
    def writing(self) -> Generator[sqlite3.Connection]:
        """All that is written inside is kept, or none of it; one inside another is part of it."""
        with self._lock, in_our_words(self.path):
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
                self._commit()

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, in_our_words(self.path):
            return self._db.execute(statement, values).fetchall()

    def size(self) -> int:
        """Bytes in use; what was deleted and not yet given back does not count."""
        pages, free, page = (
            self.read(f"PRAGMA {name}")[0][0] for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * page

    def shrink(self) -> None:
        """Give back what was deleted; as a plain statement it would end after the first page."""
        with self._lock, in_our_words(self.path):
            self._db.executescript("PRAGMA incremental_vacuum")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _commit(self) -> None:
        try:
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
    try:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute(f"PRAGMA journal_mode = {journal_mode(path)}")
        db.execute("PRAGMA synchronous = NORMAL")
        _make_tables(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _make_tables(db: sqlite3.Connection, path: Path) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise StoreVersionError(f"{path} was written by a newer version ({version}; this one reads {VERSION})")
    if version < VERSION:
        for table in _TABLES:
            db.execute(table)
        db.execute(f"PRAGMA user_version = {VERSION}")
