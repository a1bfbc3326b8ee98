"""The SQLite file: its schema and migrations, writing connections, and reading threads that never wait for writers."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from outrider.errors import StoreVersionError
from outrider.sessions.database_files import create_private_file, open_connection, translate_errors
from outrider.sessions.failpoints import failpoint

T = TypeVar("T")

# Each of some 32 tables and indexes needs at least one page: a short first session takes 170 KB with 4 KiB pages and
# 320 KB with 8 KiB. A long session takes 1.49 times its payload (bench_sessions), and 1.36 times with 8 KiB.
PAGE_BYTES = 4096
READER_THREADS = 2
WAL_LIMIT_BYTES = 16 * 1024 * 1024


def connect_writer(path: Path, *, wait_for_locks: bool = True) -> sqlite3.Connection:
    """Opens a connection for writing. Without `wait_for_locks` it fails at once if the file is locked, and never
    checkpoints the write-ahead log."""
    db = open_connection(path, cached_statements=256)
    try:
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
        if not wait_for_locks:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the first query may need to recover the WAL
            db.execute("PRAGMA wal_autocheckpoint = 0")
            db.execute("PRAGMA busy_timeout = 0")
    except BaseException:
        db.close()
        raise
    return db


def _run_read(db: sqlite3.Connection, read: Callable[[sqlite3.Connection], T]) -> T:
    db.execute("BEGIN")
    try:
        return read(db)
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def decode_leniently(text: bytes) -> str:
    """Decodes a text column; damaged bytes become replacement characters."""
    return text.decode("utf-8", "replace")


class ReaderPool:
    """Runs reads in threads, one connection per thread. Each read is one transaction and so sees one snapshot."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._pool = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="outrider-reader")

    async def run(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `read` in a reader thread. Raises StoreError instead of SQLite errors."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read_in_transaction, read)

    def _read_in_transaction(self, read: Callable[[sqlite3.Connection], T]) -> T:
        with translate_errors(self._path):
            db = self._thread_connection()
            try:
                return _run_read(db, read)
            except sqlite3.OperationalError as error:
                if "decode to UTF-8" not in str(error):
                    raise
            # A damaged text column: read again with replacement characters, which is slower.
            db.text_factory = decode_leniently
            return _run_read(db, read)

    def _thread_connection(self) -> sqlite3.Connection:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = open_connection(self._path)
            db.execute("PRAGMA query_only = ON")
            self._local.db = db
            self._opened.append(db)
        return db

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)
        for db in self._opened:
            db.close()


APPLICATION_ID = 0x4F757472
Migration = Callable[[sqlite3.Connection], None]

# `body` columns are JSON. `seq` is the session's sequence number of the row's last change. The order of parts within
# a message, and of messages within a session, is the order of `key`.
_TABLES = """
CREATE TABLE sessions (
    key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL, changed INTEGER NOT NULL,
    active INTEGER NOT NULL, created INTEGER NOT NULL, title TEXT NOT NULL, workspace TEXT NOT NULL,
    mode TEXT NOT NULL, agent TEXT NOT NULL, parent TEXT, archived INTEGER, body BLOB NOT NULL,
    token INTEGER NOT NULL DEFAULT 0, lease BLOB, expires INTEGER NOT NULL DEFAULT 0,
    indexed INTEGER NOT NULL DEFAULT 0, deleted INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX sessions_by_activity ON sessions (active, id) WHERE deleted = 0;
CREATE INDEX sessions_by_workspace ON sessions (workspace, active, id) WHERE deleted = 0;
CREATE INDEX sessions_by_parent ON sessions (parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_deleted ON sessions (key) WHERE deleted = 1;
CREATE TABLE messages (
    key INTEGER PRIMARY KEY, session INTEGER NOT NULL, id TEXT NOT NULL, seq INTEGER NOT NULL,
    role TEXT NOT NULL, created INTEGER NOT NULL, body BLOB NOT NULL, UNIQUE (session, id)
) STRICT;
CREATE INDEX messages_in_order ON messages (session);
CREATE INDEX messages_by_change ON messages (session, seq);
CREATE TABLE parts (
    key INTEGER PRIMARY KEY, session INTEGER NOT NULL, message INTEGER NOT NULL, id TEXT NOT NULL,
    seq INTEGER NOT NULL, draft INTEGER NOT NULL, blobs INTEGER NOT NULL, tool TEXT, outcome TEXT,
    start INTEGER, end INTEGER, body BLOB NOT NULL, UNIQUE (message, id)
) STRICT;
CREATE INDEX parts_by_change ON parts (session, seq);
CREATE INDEX parts_by_call ON parts (start, tool, outcome, end, session) WHERE outcome IS NOT NULL;
CREATE TABLE blobs (name TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE blob_uses (
    part INTEGER NOT NULL, name TEXT NOT NULL, PRIMARY KEY (part, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_uses_by_name ON blob_uses (name);
CREATE TABLE inbox (
    key INTEGER PRIMARY KEY, session INTEGER NOT NULL, id TEXT NOT NULL, seq INTEGER NOT NULL,
    taken INTEGER NOT NULL DEFAULT 0, body BLOB NOT NULL, UNIQUE (session, id)
) STRICT;
CREATE INDEX inbox_by_change ON inbox (session, seq);
CREATE TABLE approvals (
    key INTEGER PRIMARY KEY, session INTEGER NOT NULL, id TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL,
    call_id TEXT NOT NULL, fingerprint TEXT NOT NULL, answer TEXT NOT NULL, body BLOB NOT NULL,
    UNIQUE (session, call_id, fingerprint)
) STRICT;
CREATE INDEX approvals_by_change ON approvals (session, seq);
CREATE VIRTUAL TABLE titles USING fts5 (title, tokenize = 'unicode61 remove_diacritics 2');
CREATE VIRTUAL TABLE words USING fts5 (
    text, content = '', detail = none, tokenize = 'unicode61 remove_diacritics 2'
);
"""


def create_tables(db: sqlite3.Connection) -> None:
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            db.execute(statement)


def add_owner_columns(db: sqlite3.Connection) -> None:
    """Adds the owner of a session and a copy of its metadata, which queries filter by."""
    db.execute("ALTER TABLE sessions ADD COLUMN owner TEXT NOT NULL DEFAULT ''")
    db.execute("ALTER TABLE sessions ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}'")
    db.execute("CREATE INDEX sessions_by_owner ON sessions (owner, active, id) WHERE deleted = 0 AND owner <> ''")


def add_open_item_indexes(db: sqlite3.Connection) -> None:
    """Adds indexes of the open inbox items and approvals. Every step reads these, while the number of closed ones only
    grows."""
    db.execute("CREATE INDEX inbox_open ON inbox (session, key) WHERE taken = 0")
    db.execute("CREATE INDEX approvals_open ON approvals (session, key) WHERE answer = 'open'")


def drop_spare_structures(db: sqlite3.Connection) -> None:
    """Drops structures that another index can replace, since each takes a page of a new store and is written with every
    change: deleted sessions have special ids, one index of the inbox has its state and its changes, and the order of
    found titles does not depend on their lengths."""
    db.execute("DROP INDEX sessions_deleted")
    db.execute("DROP INDEX inbox_by_change")
    db.execute("DROP INDEX inbox_open")
    db.execute("CREATE INDEX inbox_by_state ON inbox (session, taken, seq)")
    db.execute("DROP TABLE titles")
    db.execute(
        "CREATE VIRTUAL TABLE titles USING fts5 (title, columnsize = 0, tokenize = 'unicode61 remove_diacritics 2')"
    )
    db.execute("INSERT INTO titles (rowid, title) SELECT key, title FROM sessions WHERE deleted = 0")


# Entry n migrates schema version n to n + 1. Entries are only added, never changed.
MIGRATIONS: tuple[Migration, ...] = (create_tables, add_owner_columns, add_open_item_indexes, drop_spare_structures)


def migrate_schema(db: sqlite3.Connection, path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> Path | None:
    """Migrates the store to the newest schema in one transaction. The caller holds the file lock.

    Backs up an older store first and returns the path of the backup. Raises StoreVersionError for a newer schema.
    """
    version = schema_version(db)
    if version > len(migrations):
        raise StoreVersionError(
            f"{path} was written by a newer version (schema {version}; this one knows {len(migrations)}). "
            "Update Outrider, or use another data directory.",
            found=version,
            supported=len(migrations),
        )
    if version == len(migrations):
        return None
    backup = _backup_database(db, path, version) if version else None
    db.execute("BEGIN IMMEDIATE")
    try:
        for step in migrations[version:]:
            step(db)
            failpoint("FP-mid-migration")
        db.execute(f"PRAGMA user_version = {len(migrations)}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    return backup


def schema_version(db: sqlite3.Connection) -> int:
    return db.execute("PRAGMA user_version").fetchone()[0]


def _backup_database(db: sqlite3.Connection, path: Path, version: int) -> Path:
    """Copies the database under a temporary name and renames it, so that an existing backup is always complete."""
    backup, unfinished = Path(f"{path}.v{version}.backup"), Path(f"{path}.v{version}.backup-unfinished")
    if backup.exists():
        return backup
    unfinished.unlink(missing_ok=True)
    create_private_file(unfinished)
    with sqlite3.connect(unfinished) as copy:
        db.backup(copy)
    copy.close()
    unfinished.replace(backup)
    return backup
