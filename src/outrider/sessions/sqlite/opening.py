"""From a path to a store that can be used: private files, the right journal, the newest tables."""

import sqlite3
from pathlib import Path

from outrider.sessions.sqlite import files
from outrider.sessions.sqlite.connection import PAGE_BYTES, connect
from outrider.sessions.sqlite.failures import in_our_words
from outrider.sessions.sqlite.tables.schema import migrate
from outrider.sessions.sqlite.turnstile import Turnstile


def open_file(path: Path) -> tuple[str, ...]:
    """Make or update the file; says what a person should know. Of many processes that start at once, one does it."""
    files.prepare(path)
    turnstile = Turnstile(path)
    try:
        with in_our_words(path), turnstile:
            return _open(path)
    finally:
        turnstile.close()


def _open(path: Path) -> tuple[str, ...]:
    db = connect(path)
    try:
        _set_journal(db, path)
        backup = migrate(db, path)
    finally:
        db.close()
    return (f"the store was brought to a newer version; the older one is kept as {backup}",) if backup else ()


def _set_journal(db: sqlite3.Connection, path: Path) -> None:
    if path.stat().st_size == 0:
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    wanted = files.journal_mode(path)
    if db.execute("PRAGMA journal_mode").fetchone()[0] != wanted:
        db.execute(f"PRAGMA journal_mode = {wanted}")
