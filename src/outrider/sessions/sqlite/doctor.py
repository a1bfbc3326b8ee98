"""Looks after a store's file: what is wrong with it, mending what can be mended, giving space back."""

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from outrider.errors import StoreError
from outrider.sessions.rows.codec import MessageRow, PartRow, read_message, read_part
from outrider.sessions.sqlite.connection import connect
from outrider.sessions.sqlite.failures import in_our_words
from outrider.sessions.sqlite.files import companions, journal_mode
from outrider.sessions.sqlite.opening import recover
from outrider.sessions.sqlite.salvage import is_cut
from outrider.sessions.sqlite.tables.chores import sweep_some
from outrider.sessions.sqlite.tables.reads import whole
from outrider.sessions.sqlite.tables.schema import MIGRATIONS, version_of
from outrider.sessions.sqlite.turnstile import Turnstile

_LOOSE = {
    "messages without a session": "SELECT count(*) FROM messages WHERE session NOT IN (SELECT key FROM sessions)",
    "parts without a message": "SELECT count(*) FROM parts WHERE message NOT IN (SELECT key FROM messages)",
    "large texts that nothing uses": "SELECT count(*) FROM blobs WHERE name NOT IN (SELECT name FROM blob_uses)",
    "large texts that are missing": "SELECT count(*) FROM blob_uses WHERE name NOT IN (SELECT name FROM blobs)",
    "sequence numbers past their session's": (
        "SELECT count(*) FROM parts JOIN sessions ON sessions.key = parts.session WHERE parts.seq > sessions.seq"
    ),
    "sequence numbers used twice": (
        "SELECT count(*) FROM (SELECT 1 FROM (SELECT session, seq FROM messages UNION ALL "
        "SELECT session, seq FROM parts UNION ALL SELECT session, seq FROM inbox UNION ALL "
        "SELECT session, seq FROM approvals) GROUP BY session, seq HAVING count(*) > 1)"
    ),
}


class Health(msgspec.Struct, frozen=True):
    """`problems` is empty for a healthy store; `damaged` names rows that are reported and left as they are."""

    path: Path
    version: int = 0
    bytes: int = 0
    log_bytes: int = 0
    rows: dict[str, int] = {}
    problems: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        return not self.problems and not self.damaged


def check(path: Path) -> Health:
    """Look at everything and change nothing."""
    try:
        with in_our_words(path), closing(connect(path)) as db:
            if is_cut(path, db):
                return Health(path, problems=("the file is shorter than it should be",))
            return _examine(path, db)
    except StoreError as error:
        return Health(path, problems=(error.message,))


def repair(path: Path) -> Health:
    """Rebuild indexes, drop what nothing refers to, or start a new file with what can be read; rows are never lost."""
    turnstile = Turnstile(path)
    try:
        with turnstile:
            if not _is_sound(path):
                recover(path)
            with in_our_words(path), closing(connect(path)) as db:
                db.execute("REINDEX")
                db.execute("DELETE FROM blobs WHERE name NOT IN (SELECT name FROM blob_uses)")
                db.execute("INSERT INTO words (words) VALUES ('delete-all')")
                db.execute("UPDATE sessions SET indexed = 0")
    finally:
        turnstile.close()
    return check(path)


def compact(path: Path) -> int:
    """Sweep up what was deleted and give the space back; says how many bytes."""
    turnstile = Turnstile(path)
    before = _size(path)
    try:
        with turnstile, in_our_words(path), closing(connect(path)) as db:
            while sweep_some(db):
                pass
            db.execute("INSERT INTO words (words) VALUES ('optimize')")
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        turnstile.close()
    return before - _size(path)


def _examine(path: Path, db: sqlite3.Connection) -> Health:
    version = version_of(db)
    problems = [row[0] for row in db.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
    if version != len(MIGRATIONS):
        problems.append(f"the schema has version {version}; this program has {len(MIGRATIONS)}")
        return Health(path, version, _size(path), problems=tuple(problems))
    if db.execute("PRAGMA journal_mode").fetchone()[0] != journal_mode(path):
        problems.append("the journal does not suit the file system")
    for what, query in _LOOSE.items():
        if count := db.execute(query).fetchone()[0]:
            problems.append(f"{count} {what}")
    log = Path(f"{path}-wal")
    return Health(
        path=path,
        version=version,
        bytes=path.stat().st_size,
        log_bytes=log.stat().st_size if log.exists() else 0,
        rows={table: _count(db, table) for table in ("sessions", "messages", "parts", "blobs")},
        problems=tuple(problems),
        damaged=tuple(_damaged(db)),
    )


def _damaged(db: sqlite3.Connection) -> list[str]:
    found: list[str] = []
    for id, role, created, body in db.execute("SELECT id, role, created, body FROM messages"):
        _, problem = read_message("", MessageRow(id, role, created, body))
        found += [f"message {id}: {problem.error}"] if problem else []
    for id, body, blobs in db.execute("SELECT id, body, blobs FROM parts"):
        _, problem = read_part("", PartRow(id, "", whole(db, body) if blobs else body))
        found += [f"part {id}: {problem.error}"] if problem else []
    return found


def _is_sound(path: Path) -> bool:
    try:
        with closing(connect(path)) as db:
            return not is_cut(path, db) and db.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
    except sqlite3.Error:
        return False


def _count(db: sqlite3.Connection, table: str) -> int:
    return db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in companions(path) if file.exists())
