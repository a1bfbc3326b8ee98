"""From a path to a store that can be used: private files, the right journal, the newest tables."""

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from outrider.errors import StoreDamagedError
from outrider.sessions.sqlite import files
from outrider.sessions.sqlite.connection import PAGE_BYTES, connect
from outrider.sessions.sqlite.failures import in_our_words
from outrider.sessions.sqlite.salvage import is_cut, salvage, set_aside
from outrider.sessions.sqlite.tables.schema import migrate
from outrider.sessions.sqlite.turnstile import Turnstile

FileSystem = Callable[[Path], str]

_log = logging.getLogger("outrider.sessions")


def open_file(path: Path, file_system: FileSystem = files.file_system) -> tuple[str, ...]:
    """Make or update the file; says what a person should know. Of many processes that start at once, one does it."""
    files.prepare_folder(path)
    turnstile = Turnstile(path)
    try:
        with in_our_words(path), turnstile:
            files.prepare(path)
            return _open(path, file_system)
    except StoreDamagedError:
        with in_our_words(path), turnstile:
            return recover(path, file_system)
    finally:
        turnstile.close()


def recover(path: Path, file_system: FileSystem = files.file_system) -> tuple[str, ...]:
    """Set the broken file aside and begin a new one with what could be read; the caller holds the turnstile."""
    aside = set_aside(path)
    files.prepare(path)
    notices = _open(path, file_system)
    with in_our_words(path), closing(connect(path)) as db:
        saved = salvage(aside, db)
    rows = ", ".join(f"{count} {table}" for table, count in saved.rows.items() if count) or "nothing"
    notice = f"{path} was damaged. It is kept as {aside}; from it could be read: {rows}."
    _log.error(notice)
    return (*notices, notice)


def _open(path: Path, file_system: FileSystem) -> tuple[str, ...]:
    with in_our_words(path), closing(connect(path)) as db:
        if is_cut(path, db):
            raise StoreDamagedError(f"{path} is shorter than it should be", path=str(path))
        _set_journal(db, path, files.journal_mode(path, file_system))
        backup = migrate(db, path)
    return (f"the store was brought to a newer version; the older one is kept as {backup}",) if backup else ()


def _set_journal(db: sqlite3.Connection, path: Path, wanted: str) -> None:
    if path.stat().st_size == 0:
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    if db.execute("PRAGMA journal_mode").fetchone()[0] != wanted:
        db.execute(f"PRAGMA journal_mode = {wanted}")
