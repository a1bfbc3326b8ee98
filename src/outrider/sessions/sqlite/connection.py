"""Connections to the file: one that writes, and a few that read without ever waiting for it."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from outrider.sessions.sqlite.files import in_our_words

T = TypeVar("T")

# Each of some 35 tables and indexes takes a page at least: a first short session is 180 KB with these, 320 KB with
# 8 KiB. A long one takes 1.49 times its payload (bench_sessions), and 1.36 times with 8 KiB.
PAGE_BYTES = 4096
READERS = 2
BUSY_MILLISECONDS = 30_000
LOG_BYTES = 16 * 1024 * 1024


def connect(path: Path, *, patient: bool = True) -> sqlite3.Connection:
    """A connection that writes. An impatient one waits for nobody, and leaves merging the log to others."""
    db = sqlite3.connect(path, isolation_level=None, cached_statements=256, check_same_thread=False)
    try:
        db.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        if not patient:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the first look may have to wait
            db.execute("PRAGMA wal_autocheckpoint = 0")
            db.execute("PRAGMA busy_timeout = 0")
    except BaseException:
        db.close()
        raise
    return db


class Readers:
    """Threads that read, each with a connection of its own. A read is one transaction: it sees one moment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="outrider-reader")

    async def run(self, read: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, read)

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        with in_our_words(self._path):
            db = self._connection()
            db.execute("BEGIN")
            try:
                return read(db)
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def _connection(self) -> sqlite3.Connection:
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
