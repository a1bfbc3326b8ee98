"""A broken file is set aside, never deleted, and what can still be read from it goes into a new one."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from outrider.sessions.rows.blobs import names_in
from outrider.sessions.sqlite.files import companions, log_of

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
