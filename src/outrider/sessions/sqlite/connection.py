"""Connections to the SQLite file: writing connections, and a pool of reading threads that never wait for writers."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from outrider.sessions.database_files import translate_errors

T = TypeVar("T")

# Each of some 35 tables and indexes needs at least one page: a short first session takes 180 KB with 4 KiB pages and
# 320 KB with 8 KiB. A long session takes 1.49 times its payload (bench_sessions), and 1.36 times with 8 KiB.
PAGE_BYTES = 4096
READER_THREADS = 2
BUSY_MILLISECONDS = 30_000
WAL_LIMIT_BYTES = 16 * 1024 * 1024


def connect_writer(path: Path, *, wait_for_locks: bool = True) -> sqlite3.Connection:
    """Opens a connection for writing. Without `wait_for_locks` it fails at once if the file is locked, and never
    checkpoints the write-ahead log."""
    db = sqlite3.connect(path, isolation_level=None, cached_statements=256, check_same_thread=False)
    try:
        db.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
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
            db.execute("BEGIN")
            try:
                return read(db)
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def _thread_connection(self) -> sqlite3.Connection:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            db.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
            db.execute("PRAGMA query_only = ON")
            self._local.db = db
            self._opened.append(db)
        return db

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)
        for db in self._opened:
            db.close()
