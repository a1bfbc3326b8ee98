"""Contents of files, each kept once under its own hash, in one private SQLite file."""

import hashlib
import sqlite3
import threading
import zlib
from collections.abc import Collection
from pathlib import Path

from outrider.errors import StoreError
from outrider.sessions.sqlite.failures import in_our_words
from outrider.sessions.sqlite.files import journal_mode, prepare

_LEVEL = 1


class Objects:
    """May be used from any thread. A full disk raises StorageFullError; what was kept before stays."""

    def __init__(self, path: Path) -> None:
        prepare(path)
        self._path = path
        self._lock = threading.Lock()
        with in_our_words(path):
            self._db = _open(path)

    def put(self, content: bytes) -> str:
        name = hashlib.sha256(content).hexdigest()
        with self._lock, in_our_words(self._path):
            if not self._db.execute("SELECT 1 FROM objects WHERE name = ?", (name,)).fetchone():
                body = zlib.compress(content, _LEVEL)
                self._db.execute("INSERT OR IGNORE INTO objects VALUES (?, ?)", (name, body))
        return name

    def get(self, name: str) -> bytes:
        """Raises StoreError if it is not there, or not what it was."""
        with self._lock, in_our_words(self._path):
            row = self._db.execute("SELECT body FROM objects WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise StoreError(f"the content {name} is not kept any more")
        try:
            content = zlib.decompress(row[0])
        except zlib.error as error:
            raise StoreError(f"the content {name} is damaged") from error
        if hashlib.sha256(content).hexdigest() != name:
            raise StoreError(f"the content {name} is damaged")
        return content

    def size(self) -> int:
        with self._lock, in_our_words(self._path):
            pages, free, page = (
                self._db.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
        return (pages - free) * page

    def keep_only(self, names: Collection[str]) -> None:
        with self._lock, in_our_words(self._path):
            found = [row[0] for row in self._db.execute("SELECT name FROM objects")]
            self._db.execute("BEGIN IMMEDIATE")
            dropped = [(name,) for name in found if name not in names]
            self._db.executemany("DELETE FROM objects WHERE name = ?", dropped)
            self._db.execute("COMMIT")
            self._db.execute("PRAGMA incremental_vacuum").fetchall()

    def _ask(self, pragma: str) -> int:
        return self._db.execute(f"PRAGMA {pragma}").fetchone()[0]

    def close(self) -> None:
        self._db.close()


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
    try:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute(f"PRAGMA journal_mode = {journal_mode(path)}")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("CREATE TABLE IF NOT EXISTS objects (name TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT")
    except BaseException:
        db.close()
        raise
    return db
