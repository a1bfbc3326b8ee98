"""From a path to a store that can be used: private files, the right journal, the newest tables."""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from outrider.errors import StoreDamagedError, StoreError
from outrider.sessions.rows.codec import MessageRow, PartRow, names_in, read_message, read_part
from outrider.sessions.sqlite import files
from outrider.sessions.sqlite.connection import PAGE_BYTES, connect
from outrider.sessions.sqlite.files import FairFileLock, companions, in_our_words, journal_mode, log_of
from outrider.sessions.sqlite.reads import whole
from outrider.sessions.sqlite.schema import MIGRATIONS, migrate, version_of
from outrider.sessions.sqlite.search import sweep_some

_TABLES = ("sessions", "messages", "parts", "blobs", "inbox", "approvals")


class Salvaged(msgspec.Struct, frozen=True):
    """How many rows of each table could be read."""

    aside: Path
    rows: dict[str, int]


def is_cut(path: Path, db: sqlite3.Connection) -> bool:
    """Whether a piece of the last page is missing; missing pages are seen by SQLite itself. While a log waits to be
    merged the file may lag behind. It is asked through a connection: see files.prepare."""
    db.execute("PRAGMA schema_version").fetchone()  # the size of pages is known once the first was read
    page: int = db.execute("PRAGMA page_size").fetchone()[0]
    log = log_of(path)
    return path.stat().st_size % page > 0 and not (log.exists() and log.stat().st_size > 0)


def set_aside(path: Path) -> Path:
    """Give the file and what belongs to it another name, with the time in it."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    aside = Path(f"{path}.damaged-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = Path(f"{path}.damaged-{stamp}-{number}")
    for old, new in zip(companions(path), companions(aside), strict=True):
        if old.exists():
            old.rename(new)
    return aside


def salvage(aside: Path, fresh: sqlite3.Connection) -> Salvaged:
    """Copy every readable row. Rows whose session or message is lost get a stand-in, so that nothing hangs loose."""
    counts: dict[str, int] = dict.fromkeys(_TABLES, 0)
    with closing(sqlite3.connect(aside, isolation_level=None)) as broken:
        broken.execute("PRAGMA writable_schema = ON")  # without it SQLite reads nothing of a file that is too short
        fresh.execute("BEGIN IMMEDIATE")
        for table in _TABLES:
            for row in _rows(broken, table):
                counts[table] += _copy(fresh, table, row)
        _stand_in(fresh)
        _renew_what_follows(fresh)
        fresh.execute("COMMIT")
    return Salvaged(aside, counts)


def _rows(db: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    """In order while that works; then each row by itself, as far as the table may reach."""
    last = 0
    try:
        for row in _select(db, table, "rowid > 0 ORDER BY rowid", ()):
            last = row["rowid"]
            yield row
        return
    except (sqlite3.Error, UnicodeDecodeError):
        pass
    for key in range(last + 1, _end(db, table)):
        try:
            yield from _select(db, table, "rowid = ?", (key,))
        except (sqlite3.Error, UnicodeDecodeError):
            continue


def _select(db: sqlite3.Connection, table: str, where: str, values: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    cursor = db.execute(f"SELECT rowid AS rowid, * FROM {table} NOT INDEXED WHERE {where}", values)
    names = [column[0] for column in cursor.description]
    for row in cursor:
        yield dict(zip(names, row, strict=True))


def _end(db: sqlite3.Connection, table: str) -> int:
    try:
        return 1 + (db.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0] or 0)
    except sqlite3.Error:
        pass
    try:  # no page holds more rows than this
        return 1 + 200 * db.execute("PRAGMA page_count").fetchone()[0]
    except sqlite3.Error:
        return 0


def _copy(fresh: sqlite3.Connection, table: str, row: dict[str, Any]) -> int:
    known = {column[1] for column in fresh.execute(f"PRAGMA table_info({table})")}
    kept = {name: value for name, value in row.items() if name in known or name == "rowid"}
    if "key" in kept:
        del kept["rowid"]
    names, holes = ", ".join(kept), ", ".join("?" * len(kept))
    try:
        insert = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({holes})"
        return fresh.execute(insert, tuple(kept.values())).rowcount
    except sqlite3.Error:
        return 0


def _stand_in(db: sqlite3.Connection) -> None:
    lost = "SELECT DISTINCT message, session, body FROM parts WHERE message NOT IN (SELECT key FROM messages)"
    for message, session, body in db.execute(f"{lost} GROUP BY message").fetchall():
        id = _field(body, "message_id") or f"lost-{message}"
        db.execute(
            "INSERT OR IGNORE INTO messages (key, session, id, seq, role, created, body) VALUES (?, ?, ?, 0, ?, 0, ?)",
            (message, session, id, "assistant", b"lost"),
        )
    lost = "SELECT session, body FROM messages WHERE session NOT IN (SELECT key FROM sessions) GROUP BY session"
    for session, body in db.execute(lost).fetchall():
        id = _field(body, "session_id") or f"lost-{session}"
        db.execute(
            """INSERT OR IGNORE INTO sessions
            (key, id, seq, changed, active, created, title, workspace, mode, agent, body)
            VALUES (?, ?, 0, 0, 0, 0, '(recovered)', '', 'agent', '', ?)""",
            (session, id, b"{}"),
        )


def _field(body: bytes, name: str) -> str | None:
    try:
        return msgspec.json.decode(body, type=dict[str, Any]).get(name)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _renew_what_follows(db: sqlite3.Connection) -> None:
    """What can be worked out from the rows: numbers, titles, uses of blobs; words are indexed again by and by."""
    for table in ("messages", "parts", "inbox", "approvals"):
        db.execute(
            f"""UPDATE sessions SET seq = max(seq, coalesce((SELECT max(seq) FROM {table}
            WHERE session = sessions.key), 0)), indexed = 0, lease = NULL"""
        )
    for key, session in db.execute("SELECT key, session FROM messages WHERE seq = 0").fetchall():
        db.execute("UPDATE messages SET seq = ? WHERE key = ?", (_next_seq(db, session), key))
    for (key,) in db.execute("SELECT key FROM sessions WHERE changed = 0").fetchall():
        db.execute("UPDATE sessions SET changed = ? WHERE key = ?", (_next_seq(db, key), key))
    db.execute("DELETE FROM titles")
    db.execute("INSERT INTO titles (rowid, title) SELECT key, title FROM sessions WHERE deleted = 0")
    for key, body in db.execute("SELECT key, body FROM parts WHERE blobs > 0").fetchall():
        uses = [(key, name) for name in set(names_in(body))]
        db.executemany("INSERT OR IGNORE INTO blob_uses VALUES (?, ?)", uses)


def _next_seq(db: sqlite3.Connection, session: int) -> int:
    return db.execute("UPDATE sessions SET seq = seq + 1 WHERE key = ? RETURNING seq", (session,)).fetchone()[0]


FileSystem = Callable[[Path], str]

_log = logging.getLogger("outrider.sessions")


def open_file(path: Path, file_system: FileSystem = files.file_system) -> tuple[str, ...]:
    """Make or update the file; says what a person should know. Of many processes that start at once, one does it."""
    files.prepare_folder(path)
    turnstile = FairFileLock(path)
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
    turnstile = FairFileLock(path)
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
    turnstile = FairFileLock(path)
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
