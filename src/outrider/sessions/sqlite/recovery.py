"""Opens, checks, repairs and compacts a SQLite store. A damaged file is renamed and its readable rows are copied."""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from outrider.errors import StoreDamagedError, StoreError
from outrider.sessions.database_files import (
    LOCK_SUFFIX,
    FairFileLock,
    file_system_type,
    journal_mode,
    prepare_file,
    prepare_folder,
    store_file_paths,
    translate_errors,
    wal_path,
)
from outrider.sessions.rows.codec import MessageRow, PartRow, blob_names, read_message, read_part
from outrider.sessions.sqlite.connection import (
    MIGRATIONS,
    PAGE_BYTES,
    connect_writer,
    decode_leniently,
    migrate_schema,
    schema_version,
)
from outrider.sessions.sqlite.reads import restore_blobs
from outrider.sessions.sqlite.search import delete_batch

_TABLES = ("sessions", "messages", "parts", "blobs", "inbox", "approvals")


class SalvageResult(msgspec.Struct, frozen=True):
    """The path of the renamed damaged file, and the number of copied rows per table."""

    damaged_path: Path
    rows: dict[str, int]


def is_truncated(path: Path, db: sqlite3.Connection) -> bool:
    """Returns whether the last page is incomplete. SQLite itself detects missing pages.

    With a non-empty write-ahead log the file may legitimately be shorter. The page size comes from the connection and
    not from the file header: see `prepare_file`.
    """
    db.execute("PRAGMA schema_version").fetchone()  # SQLite knows the page size after its first read
    page: int = db.execute("PRAGMA page_size").fetchone()[0]
    log = wal_path(path)
    return path.stat().st_size % page > 0 and not (log.exists() and log.stat().st_size > 0)


def move_aside(path: Path) -> Path:
    """Renames the database files to a name with a timestamp and returns the new path."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    damaged_path = Path(f"{path}.damaged-{stamp}")
    number = 1
    while damaged_path.exists():
        number += 1
        damaged_path = Path(f"{path}.damaged-{stamp}-{number}")
    for old, new in zip(store_file_paths(path), store_file_paths(damaged_path), strict=True):
        if old.exists():
            old.rename(new)
    return damaged_path


def salvage_rows(damaged_path: Path, fresh: sqlite3.Connection) -> SalvageResult:
    """Copies every readable row. Rows without their session or message get a placeholder parent."""
    counts: dict[str, int] = dict.fromkeys(_TABLES, 0)
    with closing(sqlite3.connect(damaged_path, isolation_level=None)) as damaged_db:
        damaged_db.text_factory = decode_leniently
        damaged_db.execute("PRAGMA writable_schema = ON")  # otherwise SQLite rejects a truncated file
        fresh.execute("BEGIN IMMEDIATE")
        for table in _TABLES:
            for row in _readable_rows(damaged_db, table):
                counts[table] += _copy_row(fresh, table, row)
        _add_placeholders(fresh)
        _rebuild_derived(fresh)
        fresh.execute("COMMIT")
    return SalvageResult(damaged_path, counts)


def _readable_rows(db: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    """Yields the readable rows: in order until the first error, then row by row up to the highest possible rowid."""
    last = 0
    try:
        for row in _select_rows(db, table, "rowid > 0 ORDER BY rowid", ()):
            last = row["rowid"]
            yield row
        return
    except (sqlite3.Error, UnicodeDecodeError):
        pass
    for key in range(last + 1, _row_limit(db, table)):
        try:
            yield from _select_rows(db, table, "rowid = ?", (key,))
        except (sqlite3.Error, UnicodeDecodeError):
            continue


def _select_rows(db: sqlite3.Connection, table: str, where: str, values: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    cursor = db.execute(f"SELECT rowid AS rowid, * FROM {table} NOT INDEXED WHERE {where}", values)
    names = [column[0] for column in cursor.description]
    for row in cursor:
        yield dict(zip(names, row, strict=True))


def _row_limit(db: sqlite3.Connection, table: str) -> int:
    try:
        return 1 + (db.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0] or 0)
    except sqlite3.Error:
        pass
    try:  # no page holds more rows than this
        return 1 + 200 * db.execute("PRAGMA page_count").fetchone()[0]
    except sqlite3.Error:
        return 0


def _copy_row(fresh: sqlite3.Connection, table: str, row: dict[str, Any]) -> int:
    columns = {column[1] for column in fresh.execute(f"PRAGMA table_info({table})")}
    values = {name: value for name, value in row.items() if name in columns or name == "rowid"}
    if "key" in values:
        del values["rowid"]
    names, placeholders = ", ".join(values), ", ".join("?" * len(values))
    try:
        insert = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({placeholders})"
        return fresh.execute(insert, tuple(values.values())).rowcount
    except sqlite3.Error:
        return 0


def _add_placeholders(db: sqlite3.Connection) -> None:
    orphans = "SELECT DISTINCT message, session, body FROM parts WHERE message NOT IN (SELECT key FROM messages)"
    for message, session, body in db.execute(f"{orphans} GROUP BY message").fetchall():
        id = _json_field(body, "message_id") or f"lost-{message}"
        db.execute(
            "INSERT OR IGNORE INTO messages (key, session, id, seq, role, created, body) VALUES (?, ?, ?, 0, ?, 0, ?)",
            (message, session, id, "assistant", b"lost"),
        )
    orphans = "SELECT session, body FROM messages WHERE session NOT IN (SELECT key FROM sessions) GROUP BY session"
    for session, body in db.execute(orphans).fetchall():
        id = _json_field(body, "session_id") or f"lost-{session}"
        db.execute(
            """INSERT OR IGNORE INTO sessions
            (key, id, seq, changed, active, created, title, workspace, mode, agent, body)
            VALUES (?, ?, 0, 0, 0, 0, '(recovered)', '', 'agent', '', ?)""",
            (session, id, b"{}"),
        )


def _json_field(body: bytes, name: str) -> str | None:
    try:
        return msgspec.json.decode(body, type=dict[str, Any]).get(name)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _rebuild_derived(db: sqlite3.Connection) -> None:
    """Rebuilds derived data: sequence numbers, titles, blob references. Idle maintenance rebuilds the text index."""
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
        uses = [(key, name) for name in set(blob_names(body))]
        db.executemany("INSERT OR IGNORE INTO blob_uses VALUES (?, ?)", uses)


def _next_seq(db: sqlite3.Connection, session: int) -> int:
    return db.execute("UPDATE sessions SET seq = seq + 1 WHERE key = ? RETURNING seq", (session,)).fetchone()[0]


FileSystemType = Callable[[Path], str]

_log = logging.getLogger("outrider.sessions")
_HEADER = b"SQLite format 3\0"


def open_file(path: Path, file_system: FileSystemType = file_system_type) -> tuple[str, ...]:
    """Creates, migrates or recovers the file under the file lock. Returns notices for the user."""
    prepare_folder(path)
    with translate_errors(path):
        _reject_foreign_file(path)
    file_lock = FairFileLock(path)
    try:
        with translate_errors(path), file_lock:
            notices = _empty_file_notice(path)
            prepare_file(path)
            return (*notices, *_open_database(path, file_system))
    except StoreDamagedError:
        with translate_errors(path), file_lock:
            return recover_file(path, file_system)
    finally:
        file_lock.close()


def _reject_foreign_file(path: Path) -> None:
    """Raises StoreError for a file that is not a database and never was a store, such as a document: it must not be
    moved as a damaged store would be. Files of stores have a lock file in the same folder. Other files can be opened
    here, because no connection of this process has a lock on them."""
    if Path(f"{path}{LOCK_SUFFIX}").exists() or path.is_symlink() or not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(len(_HEADER))
    if start and start != _HEADER:
        raise StoreError(
            f"{path} is not a database, so it was not changed; choose another path for the store", path=str(path)
        )


def _empty_file_notice(path: Path) -> tuple[str, ...]:
    """Reports an existing file without content: only damage or a manual deletion leaves one behind."""
    if not path.is_file() or path.stat().st_size or (wal_path(path).exists() and wal_path(path).stat().st_size):
        return ()
    notice = f"{path} was empty, so its sessions are gone; a new store was created. Restore a backup if you have one."
    _log.error(notice)
    return (notice,)


def recover_file(path: Path, file_system: FileSystemType = file_system_type) -> tuple[str, ...]:
    """Renames the damaged file and creates a new one with its readable rows. The caller holds the file lock."""
    damaged_path = move_aside(path)
    prepare_file(path)
    notices = _open_database(path, file_system)
    with translate_errors(path), closing(connect_writer(path)) as db:
        salvaged = salvage_rows(damaged_path, db)
    rows = ", ".join(f"{count} {table}" for table, count in salvaged.rows.items() if count) or "nothing"
    notice = f"{path} was damaged. It was renamed to {damaged_path}; recovered rows: {rows}."
    _log.error(notice)
    return (*notices, notice)


def _open_database(path: Path, file_system: FileSystemType) -> tuple[str, ...]:
    with translate_errors(path), closing(connect_writer(path)) as db:
        if is_truncated(path, db):
            raise StoreDamagedError(f"{path} is shorter than it should be", path=str(path))
        _reject_foreign_database(db, path)
        _set_journal(db, path, journal_mode(path, file_system))
        backup = migrate_schema(db, path)
    if backup is None:
        return ()
    notice = f"{path} was migrated; older versions cannot open it any more. A backup for them: {backup}"
    _log.warning(notice)
    return (notice,)


def _reject_foreign_database(db: sqlite3.Connection, path: Path) -> None:
    """Raises StoreError for a database of another program, which Outrider must neither extend nor move."""
    if tables := _foreign_tables(db):
        text = f"{path} is a database of another program (tables: {tables}), so it was not changed"
        raise StoreError(f"{text}; move it away, or restore a backup of the sessions", path=str(path))


def _foreign_tables(db: sqlite3.Connection) -> str:
    """Returns the names of the tables if none of them belongs to a store."""
    rows = db.execute("SELECT CAST(name AS BLOB) FROM sqlite_master WHERE type = 'table'")
    names = sorted(decode_leniently(name) for (name,) in rows)
    return ", ".join(names[:3]) if {"sessions", "messages", "parts"}.isdisjoint(names) else ""


def _set_journal(db: sqlite3.Connection, path: Path, mode: str) -> None:
    if path.stat().st_size == 0:
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    if db.execute("PRAGMA journal_mode").fetchone()[0] != mode:
        db.execute(f"PRAGMA journal_mode = {mode}")


_CONSISTENCY_QUERIES = {
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


class StoreHealth(msgspec.Struct, frozen=True):
    """The result of a check. `problems` lists defects of the file, `damaged` the rows that cannot be decoded. A
    `foreign` file has these tables of another program."""

    path: Path
    version: int = 0
    bytes: int = 0
    log_bytes: int = 0
    rows: dict[str, int] = {}
    problems: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    foreign: str = ""

    @property
    def is_newer(self) -> bool:
        """Whether a newer version of the program wrote the file; this one must not change it."""
        return self.version > len(MIGRATIONS)

    @property
    def is_healthy(self) -> bool:
        return not self.problems and not self.damaged


def check_file(path: Path) -> StoreHealth:
    """Checks the file, its indexes, references and rows, without changing anything."""
    try:
        with translate_errors(path), closing(connect_writer(path)) as db:
            db.text_factory = decode_leniently
            if is_truncated(path, db):
                return StoreHealth(path, problems=("the file is shorter than it should be",))
            if foreign := _foreign_tables(db):
                return StoreHealth(path, problems=("it is a database of another program",), foreign=foreign)
            return _examine_database(path, db)
    except StoreError as error:
        return StoreHealth(path, problems=(error.message,))


def repair_file(path: Path) -> StoreHealth:
    """Rebuilds indexes and deletes unused blobs; copies the readable rows to a new file if the file is damaged.

    No row is deleted. Returns the result of a new check. A file of a newer version or another program is not changed.
    """
    if (health := check_file(path)).is_newer or health.foreign:
        return health
    file_lock = FairFileLock(path)
    try:
        with file_lock:
            if not _passes_quick_check(path):
                recover_file(path)
            with translate_errors(path), closing(connect_writer(path)) as db:
                db.execute("REINDEX")
                db.execute("DELETE FROM blobs WHERE name NOT IN (SELECT name FROM blob_uses)")
                db.execute("INSERT INTO words (words) VALUES ('delete-all')")
                db.execute("UPDATE sessions SET indexed = 0")
    finally:
        file_lock.close()
    return check_file(path)


def compact_file(path: Path) -> int:
    """Deletes the rows of deleted sessions and runs VACUUM; returns the number of freed bytes."""
    file_lock = FairFileLock(path)
    before = _total_size(path)
    try:
        with file_lock, translate_errors(path), closing(connect_writer(path)) as db:
            while delete_batch(db):
                pass
            db.execute("INSERT INTO words (words) VALUES ('optimize')")
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        file_lock.close()
    return before - _total_size(path)


def _examine_database(path: Path, db: sqlite3.Connection) -> StoreHealth:
    version = schema_version(db)
    problems = [row[0] for row in db.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
    if version != len(MIGRATIONS):
        problems.append(f"the schema has version {version}; this program has {len(MIGRATIONS)}")
        return StoreHealth(path, version, _total_size(path), problems=tuple(problems))
    if db.execute("PRAGMA journal_mode").fetchone()[0] != journal_mode(path):
        problems.append("the journal does not suit the file system")
    for problem, query in _CONSISTENCY_QUERIES.items():
        if count := db.execute(query).fetchone()[0]:
            problems.append(f"{count} {problem}")
    log = Path(f"{path}-wal")
    return StoreHealth(
        path=path,
        version=version,
        bytes=path.stat().st_size,
        log_bytes=log.stat().st_size if log.exists() else 0,
        rows={table: _count_rows(db, table) for table in ("sessions", "messages", "parts", "blobs")},
        problems=tuple(problems),
        damaged=tuple(_damaged_rows(db)),
    )


def _damaged_rows(db: sqlite3.Connection) -> list[str]:
    problems: list[str] = []
    for id, role, created, body in db.execute("SELECT id, role, created, body FROM messages"):
        _, problem = read_message("", MessageRow(id, role, created, body))
        problems += [f"message {id}: {problem.error}"] if problem else []
    for id, body, blobs in db.execute("SELECT id, body, blobs FROM parts"):
        _, problem = read_part("", PartRow(id, "", restore_blobs(db, body) if blobs else body))
        problems += [f"part {id}: {problem.error}"] if problem else []
    return problems


def _passes_quick_check(path: Path) -> bool:
    try:
        with closing(connect_writer(path)) as db:
            return not is_truncated(path, db) and db.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
    except sqlite3.Error:
        return False


def _count_rows(db: sqlite3.Connection, table: str) -> int:
    return db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def _total_size(path: Path) -> int:
    return sum(file.stat().st_size for file in store_file_paths(path) if file.exists())
