"""What changes the tables. Each function runs inside the writer's transaction."""

import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from outrider.errors import LeaseLostError, PartValidationError, StoreError
from outrider.sessions.records import Lease, Owner, SessionUpdate, StoredSession
from outrider.sessions.rows.codec import MessageRow, PartRow, Row, in_place, split
from outrider.sessions.rows.rows import (
    check_token,
    columns_of,
    encode_record,
    forked,
    in_use,
    inbox_item,
    no_message,
    no_session,
    read_session,
)
from outrider.sessions.session import SessionTime
from outrider.sessions.sqlite.owners import is_alive, machine_ms, same_machine
from outrider.sessions.sqlite.reads import session_row

__all__ = ["acquire", "check", "holder", "in_use", "release", "renew"]

_decoder = msgspec.json.Decoder(Lease)


def check(db: sqlite3.Connection, session_id: str, token: int | None) -> None:
    """Raises unless this token may write. A lease that has ended is forgotten for a writer that needs none."""
    row = session_row(db, session_id)
    check_token(session_id, token, row["token"], holder(row))
    if token is None and row["lease"] is not None:
        _forget(db, session_id)


def holder(row: sqlite3.Row) -> Lease | None:
    """Who owns the session now. Another machine's owner counts until it is taken over: its clock is not ours."""
    if row["lease"] is None:
        return None
    lease = _decoder.decode(row["lease"])
    if is_alive(lease.owner) is False:
        return None
    return lease if not same_machine(lease.owner) or machine_ms() < row["expires"] else None


def acquire(db: sqlite3.Connection, session_id: str, owner: Owner, now: int, *, ttl_ms: int, take_over: bool) -> Lease:
    row = session_row(db, session_id)
    current = holder(row)
    if current is not None and current.owner != owner and not take_over:
        raise in_use(current)
    lease = Lease(session_id, row["token"] + 1, owner, now, ttl_ms)
    _keep(db, lease)
    return lease


def renew(db: sqlite3.Connection, lease: Lease) -> Lease:
    row = session_row(db, lease.session_id)
    if row["token"] != lease.token:
        raise LeaseLostError(f"session {lease.session_id} was taken over", session_id=lease.session_id)
    _keep(db, lease)
    return lease


def release(db: sqlite3.Connection, lease: Lease) -> None:
    db.execute("UPDATE sessions SET lease = NULL WHERE id = ? AND token = ?", (lease.session_id, lease.token))


def _keep(db: sqlite3.Connection, lease: Lease) -> None:
    db.execute(
        "UPDATE sessions SET token = ?, lease = ?, expires = ? WHERE id = ?",
        (lease.token, msgspec.json.encode(lease), machine_ms() + lease.ttl_ms, lease.session_id),
    )


def _forget(db: sqlite3.Connection, session_id: str) -> None:
    """An owner that expired must not come back unnoticed after somebody else has written."""
    db.execute("UPDATE sessions SET lease = NULL, token = token + 1 WHERE id = ?", (session_id,))


# The activity of a session is kept to the second: its index need not change with every part.
ACTIVITY_MS = 1000

_PUT_MESSAGE = """
    INSERT INTO messages (session, id, seq, role, created, body) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (session, id) DO UPDATE SET seq = excluded.seq, body = excluded.body
"""
_PUT_PART = """
    INSERT INTO parts (session, message, id, seq, draft, blobs, tool, outcome, start, end, body)
    VALUES (?, (SELECT key FROM messages WHERE session = ? AND id = ?), ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (message, id) DO UPDATE SET seq = excluded.seq, draft = excluded.draft, blobs = excluded.blobs,
        tool = excluded.tool, outcome = excluded.outcome, start = excluded.start, end = excluded.end,
        body = excluded.body
"""
_PART_KEY = "SELECT key FROM parts WHERE message = (SELECT key FROM messages WHERE session = ? AND id = ?) AND id = ?"


def create(db: sqlite3.Connection, session: StoredSession, now: int) -> StoredSession:
    times = session.time or SessionTime(created=now, updated=now)
    session = msgspec.structs.replace(session, seq=1, time=times)
    if db.execute("SELECT 1 FROM sessions WHERE id = ?", (session.id,)).fetchone():
        raise StoreError(f"session {session.id} exists already")
    columns = columns_of(session)
    names = ", ".join(columns)
    holes = ", ".join("?" * len(columns))
    key = db.execute(f"INSERT INTO sessions ({names}) VALUES ({holes})", tuple(columns.values())).lastrowid
    db.execute("INSERT INTO titles (rowid, title) VALUES (?, ?)", (key, columns["title"]))
    return session


def update(db: sqlite3.Connection, session_id: str, change: SessionUpdate, now: int) -> StoredSession:
    key, seq = advance(db, session_id, 1, now)
    before = read_session(session_row(db, session_id))
    session = msgspec.structs.replace(change.apply(before), seq=seq)
    columns = columns_of(session)
    settings = ", ".join(f"{name} = ?" for name in columns)
    db.execute(f"UPDATE sessions SET {settings} WHERE key = ?", (*columns.values(), key))
    if session.title != before.title:
        db.execute("UPDATE titles SET title = ? WHERE rowid = ?", (columns["title"], key))
    return session


class Append(msgspec.Struct, frozen=True):
    session_id: str
    rows: Sequence[Row]
    token: int | None
    draft: bool
    takes: Sequence[str]


def append(db: sqlite3.Connection, order: Append, now: int) -> int:
    count = len(order.rows) + len(order.takes)
    permitted = advance_as(db, order.session_id, order.token, count, now)
    if permitted is None:
        check(db, order.session_id, order.token)
        permitted = advance(db, order.session_id, count, now)
    key, last = permitted
    for seq, row in in_place(order.rows, last - count + 1):
        if isinstance(row, MessageRow):
            db.execute(_PUT_MESSAGE, (key, row.id, seq, row.role, row.created, row.body))
        else:
            _put_part(db, key, seq, row, draft=order.draft)
    for seq, item in enumerate(order.takes, last - len(order.takes) + 1):
        _take(db, key, item, seq, now)
    return last


def advance_as(
    db: sqlite3.Connection, session_id: str, token: int | None, count: int, now: int
) -> tuple[int, int] | None:
    """As `advance`, in the common case: the token is the session's, or nobody has ever held what nobody claims."""
    permission = "lease IS NULL AND ? IS NULL" if token is None else "token = ?"
    return _advance(db, f"{_ADVANCE} AND {permission} {_ADVANCED}", (count, session_id, token), now)


def advance(db: sqlite3.Connection, session_id: str, count: int, now: int) -> tuple[int, int]:
    """The session's key and the last of `count` new numbers."""
    return _advance(db, f"{_ADVANCE} {_ADVANCED}", (count, session_id), now) or no_session(session_id)


_ADVANCE = "UPDATE sessions SET seq = seq + ? WHERE id = ? AND deleted = 0"
_ADVANCED = "RETURNING key, seq, active"


def _advance(db: sqlite3.Connection, statement: str, values: tuple[Any, ...], now: int) -> tuple[int, int] | None:
    row = db.execute(statement, values).fetchone()
    if row is None:
        return None
    key, seq, active = row
    if not 0 <= now - active < ACTIVITY_MS:
        db.execute("UPDATE sessions SET active = max(created, ?) WHERE key = ?", (now, key))
    return key, seq


def delete(db: sqlite3.Connection, session_id: str, token: int | None) -> None:
    """Gone for everybody at once; its rows are swept up in small steps afterwards."""
    held = holder(session_row(db, session_id))
    if held is not None and token != held.token:
        raise in_use(held)
    _hide(db, session_id)


def clear(db: sqlite3.Connection) -> int:
    ids = [row[0] for row in db.execute("SELECT id FROM sessions WHERE deleted = 0")]
    free = [id for id in ids if holder(session_row(db, id)) is None]
    for id in free:
        _hide(db, id, descend=False)
    return len(free)


def _hide(db: sqlite3.Connection, session_id: str, *, descend: bool = True) -> None:
    children = db.execute("SELECT id FROM sessions WHERE parent = ? AND deleted = 0", (session_id,)).fetchall()
    key = db.execute(
        "UPDATE sessions SET deleted = 1, parent = NULL, id = 'deleted ' || key WHERE id = ? RETURNING key",
        (session_id,),
    ).fetchone()[0]
    db.execute("DELETE FROM titles WHERE rowid = ?", (key,))
    for (child,) in children if descend else ():
        _hide(db, child)


def fork(db: sqlite3.Connection, session_id: str, at: str | None, title: str | None, now: int) -> StoredSession:
    """Rows are copied as they are, whatever they hold; readers give them their new session."""
    source = session_row(db, session_id)
    last = _fork_point(db, source["key"], at)
    session = create(db, forked(read_session(source), last["id"] if last else "", title, now), now)
    target = session_row(db, session.id)["key"]
    end = last["key"] if last else 0
    db.execute(_COPY_MESSAGES, (target, source["key"], end))
    seq = 1 + db.execute("SELECT count(*) FROM messages WHERE session = ?", (target,)).fetchone()[0]
    copied = db.execute(_COPY_PARTS, (target, seq, target, source["key"], end)).rowcount
    db.execute(_COPY_BLOB_USES, (target, source["key"], end))
    db.execute("UPDATE sessions SET seq = ? WHERE key = ?", (seq + copied, target))
    return msgspec.structs.replace(session, seq=seq + copied)


_COPY_MESSAGES = """
    INSERT INTO messages (session, id, seq, role, created, body)
    SELECT ?, id, 1 + row_number() OVER (ORDER BY key), role, created, body FROM messages
    WHERE session = ? AND key <= ? ORDER BY key
"""
_COPY_PARTS = """
    INSERT INTO parts (session, message, id, seq, draft, blobs, tool, outcome, start, end, body)
    SELECT ?, copy.key, part.id, ? + row_number() OVER (ORDER BY part.key), draft, blobs, tool, outcome, start,
        end, part.body
    FROM messages AS message
    JOIN messages AS copy ON copy.session = ? AND copy.id = message.id
    JOIN parts AS part ON part.message = message.key
    WHERE message.session = ? AND message.key <= ? ORDER BY part.key
"""
_COPY_BLOB_USES = """
    INSERT INTO blob_uses (part, name)
    SELECT copied_part.key, uses.name
    FROM messages AS message
    JOIN parts AS part ON part.message = message.key AND part.blobs > 0
    JOIN blob_uses AS uses ON uses.part = part.key
    JOIN messages AS copy ON copy.session = ? AND copy.id = message.id
    JOIN parts AS copied_part ON copied_part.message = copy.key AND copied_part.id = part.id
    WHERE message.session = ? AND message.key <= ?
"""


def _fork_point(db: sqlite3.Connection, session: int, at: str | None) -> sqlite3.Row | None:
    if at is None:
        where, values = "session = ? ORDER BY key DESC LIMIT 1", (session,)
    else:
        where, values = "session = ? AND id = ?", (session, at)
    cursor = db.execute(f"SELECT key, id FROM messages WHERE {where}", values)
    cursor.row_factory = sqlite3.Row
    row = cursor.fetchone()
    if row is None and at is not None:
        no_message(at)
    return row


def _put_part(db: sqlite3.Connection, session: int, seq: int, row: PartRow, *, draft: bool) -> None:
    """The large texts of a draft stay in its row: it grows, and each of its values replaces the one before."""
    body, blobs = (row.body, {}) if draft else split(row.body)
    own = (row.id, seq, draft, len(blobs), row.tool, row.outcome, row.start, row.end, body)
    try:
        db.execute(_PUT_PART, (session, session, row.message_id, *own))
    except sqlite3.IntegrityError as error:
        raise PartValidationError(f"there is no message {row.message_id}", field="message_id") from error
    if blobs:
        key = db.execute(_PART_KEY, (session, row.message_id, row.id)).fetchone()[0]
        drop_blobs(db, key, but=blobs)
        db.executemany("INSERT OR IGNORE INTO blobs (name, body) VALUES (?, ?)", blobs.items())
        db.executemany("INSERT OR IGNORE INTO blob_uses VALUES (?, ?)", [(key, name) for name in blobs])


def drop_blobs(db: sqlite3.Connection, part: int, but: Collection[str] = ()) -> None:
    """Let go of a part's large texts; those that nothing else uses are deleted."""
    used = db.execute("SELECT name FROM blob_uses WHERE part = ?", (part,)).fetchall()
    for (name,) in used:
        if name not in but:
            db.execute("DELETE FROM blob_uses WHERE part = ? AND name = ?", (part, name))
            db.execute("DELETE FROM blobs WHERE name = ? AND name NOT IN (SELECT name FROM blob_uses)", (name,))


def _take(db: sqlite3.Connection, session: int, item: str, seq: int, now: int) -> None:
    row = db.execute(
        "UPDATE inbox SET taken = 1, seq = ? WHERE session = ? AND id = ? AND taken = 0 RETURNING key, body",
        (seq, session, item),
    ).fetchone()
    if row is None:
        raise StoreError(f"inbox item {item} is not there or was taken before")
    taken = msgspec.structs.replace(inbox_item(row[1]), taken=now)
    db.execute("UPDATE inbox SET body = ? WHERE key = ?", (encode_record(taken), row[0]))
