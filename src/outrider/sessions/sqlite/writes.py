"""SQL that writes sessions, rows and leases. Each function runs inside the writer's transaction."""

import sqlite3
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from outrider.errors import PartValidationError, StoreError
from outrider.sessions.leases import boot_clock_ms, is_process_alive, is_same_machine
from outrider.sessions.records import (
    Approval,
    InboxItem,
    Lease,
    ProcessIdentity,
    SessionUpdate,
    StoredSession,
)
from outrider.sessions.rows.codec import AppendRequest, MessageRow, PartRow, encode_pieces, extract_blobs, number_rows
from outrider.sessions.rows.session_rows import (
    check_token,
    decode_approval,
    decode_approvals,
    decode_inbox,
    decode_inbox_item,
    decode_session,
    encode_record,
    forked_session,
    lease_lost_error,
    raise_no_message,
    raise_no_session,
    session_columns,
    session_in_use_error,
    with_fingerprint,
)
from outrider.sessions.session import SessionTime
from outrider.sessions.sqlite.reads import session_row

_decoder = msgspec.json.Decoder(Lease)


def check_write_access(db: sqlite3.Connection, session_id: str, token: int | None) -> None:
    """Raises if `token` may not write. A write without a token invalidates an expired lease."""
    row = session_row(db, session_id)
    check_token(session_id, token, row["token"], current_lease(row))
    if token is None and row["lease"] is not None:
        _invalidate_lease(db, session_id)


def current_lease(row: sqlite3.Row) -> Lease | None:
    """Returns the valid lease, or None if it expired or its process ended.

    A lease of another machine never expires here, because its boot clock is not comparable: it must be taken over.
    """
    if row["lease"] is None:
        return None
    try:
        lease = _decoder.decode(row["lease"])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # its owner cannot renew a damaged lease
    if is_process_alive(lease.owner) is False:
        return None
    return lease if not is_same_machine(lease.owner) or boot_clock_ms() < row["expires"] else None


def acquire_lease(
    db: sqlite3.Connection, session_id: str, owner: ProcessIdentity, now: int, *, ttl_ms: int, take_over: bool
) -> Lease:
    row = session_row(db, session_id)
    current = current_lease(row)
    if current is not None and current.owner != owner and not take_over:
        raise session_in_use_error(current)
    lease = Lease(session_id, row["token"] + 1, owner, now, ttl_ms)
    _store_lease(db, lease)
    return lease


def renew_lease(db: sqlite3.Connection, lease: Lease) -> Lease:
    row = session_row(db, lease.session_id)
    if row["token"] != lease.token:
        raise lease_lost_error(lease.session_id)
    _store_lease(db, lease)
    return lease


def release_lease(db: sqlite3.Connection, lease: Lease) -> None:
    db.execute("UPDATE sessions SET lease = NULL WHERE id = ? AND token = ?", (lease.session_id, lease.token))


def _store_lease(db: sqlite3.Connection, lease: Lease) -> None:
    db.execute(
        "UPDATE sessions SET token = ?, lease = ?, expires = ? WHERE id = ?",
        (lease.token, msgspec.json.encode(lease), boot_clock_ms() + lease.ttl_ms, lease.session_id),
    )


def _invalidate_lease(db: sqlite3.Connection, session_id: str) -> None:
    """Removes an expired lease and increments the token, so that its owner cannot write after another owner has."""
    db.execute("UPDATE sessions SET lease = NULL, token = token + 1 WHERE id = ?", (session_id,))


# The activity time has a resolution of one second, so that its index does not change with every part.
ACTIVITY_RESOLUTION_MS = 1000

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
_PUT_PART_WITH_BLOBS = f"{_PUT_PART} RETURNING key"
_PUT_TITLE = "INSERT OR REPLACE INTO titles (rowid, title) VALUES (?, ?)"


def insert_session(db: sqlite3.Connection, session: StoredSession, now: int) -> StoredSession:
    times = session.time or SessionTime(created=now, updated=now)
    session = msgspec.structs.replace(session, seq=1, time=times)
    columns = session_columns(session)
    names = ", ".join(columns)
    placeholders = ", ".join("?" * len(columns))
    try:
        added = db.execute(f"INSERT INTO sessions ({names}) VALUES ({placeholders})", tuple(columns.values()))
    except sqlite3.IntegrityError as error:
        if db.execute("SELECT 1 FROM sessions WHERE id = ?", (session.id,)).fetchone():
            raise StoreError(f"session {session.id} exists already") from error
        raise
    if session.title:
        db.execute(_PUT_TITLE, (added.lastrowid, session.title))
    return session


def update_session(db: sqlite3.Connection, session_id: str, change: SessionUpdate, now: int) -> StoredSession:
    """Writes only the columns that differ, because SQLite writes an index again for each column that is set."""
    key, seq = advance_sequence(db, session_id, 1, now)
    row = session_row(db, session_id)
    session = msgspec.structs.replace(change.apply(decode_session(row)), seq=seq)
    changed = {name: value for name, value in session_columns(session).items() if row[name] != value}
    settings = ", ".join(f"{name} = ?" for name in changed)
    db.execute(f"UPDATE sessions SET {settings} WHERE key = ?", (*changed.values(), key))
    if "title" in changed:
        db.execute(_PUT_TITLE, (key, session.title))
    return session


def append_rows(db: sqlite3.Connection, request: AppendRequest, now: int) -> int:
    count = len(request.rows) + len(request.takes)
    permitted = advance_with_token(db, request.session_id, request.token, count, now)
    if permitted is None:
        check_write_access(db, request.session_id, request.token)
        permitted = advance_sequence(db, request.session_id, count, now)
    key, last = permitted
    for seq, row in number_rows(request.rows, last - count + 1):
        if isinstance(row, MessageRow):
            db.execute(_PUT_MESSAGE, (key, row.id, seq, row.role, row.created, row.body))
        else:
            _put_part(db, key, seq, row, draft=request.draft)
    for seq, item in enumerate(request.takes, last - len(request.takes) + 1):
        _take_inbox_item(db, key, item, seq, now)
    return last


def advance_with_token(
    db: sqlite3.Connection, session_id: str, token: int | None, count: int, now: int
) -> tuple[int, int] | None:
    """Advances the sequence and checks the token in one statement; returns None if the full check is needed."""
    statement = _ADVANCE_UNLEASED if token is None else _ADVANCE_LEASED
    return _execute_advance(db, statement, (count, session_id, token), now)


def advance_sequence(db: sqlite3.Connection, session_id: str, count: int, now: int) -> tuple[int, int]:
    """Reserves `count` sequence numbers; returns the session's key and the last number."""
    return _execute_advance(db, _ADVANCE, (count, session_id), now) or raise_no_session(session_id)


# Constants, because SQLite finds a prepared statement by its text.
_ADVANCE = "UPDATE sessions SET seq = seq + ? WHERE id = ? AND deleted = 0 RETURNING key, seq, active"
_ADVANCE_UNLEASED = _ADVANCE.replace(" RETURNING", " AND lease IS NULL AND ? IS NULL RETURNING")
_ADVANCE_LEASED = _ADVANCE.replace(" RETURNING", " AND token = ? RETURNING")


def _execute_advance(
    db: sqlite3.Connection, statement: str, values: tuple[Any, ...], now: int
) -> tuple[int, int] | None:
    row = db.execute(statement, values).fetchone()
    if row is None:
        return None
    key, seq, active = row
    if not 0 <= now - active < ACTIVITY_RESOLUTION_MS:
        db.execute("UPDATE sessions SET active = max(created, ?) WHERE key = ?", (now, key))
    return key, seq


def delete_session(db: sqlite3.Connection, session_id: str, token: int | None) -> None:
    """Marks a session and its children as deleted; idle maintenance deletes the rows in small batches."""
    lease = current_lease(session_row(db, session_id))
    if lease is not None and token != lease.token:
        raise session_in_use_error(lease)
    _mark_deleted(db, session_id)


def delete_unowned_sessions(db: sqlite3.Connection) -> int:
    ids = [row[0] for row in db.execute("SELECT id FROM sessions WHERE deleted = 0")]
    free = [id for id in ids if current_lease(session_row(db, id)) is None]
    for id in free:
        _mark_deleted(db, id, descend=False)
    return len(free)


def _mark_deleted(db: sqlite3.Connection, session_id: str, *, descend: bool = True) -> None:
    children = db.execute("SELECT id FROM sessions WHERE parent = ? AND deleted = 0", (session_id,)).fetchall()
    key = db.execute(
        "UPDATE sessions SET deleted = 1, parent = NULL, id = 'deleted ' || key WHERE id = ? RETURNING key",
        (session_id,),
    ).fetchone()[0]
    db.execute("DELETE FROM titles WHERE rowid = ?", (key,))
    for (child,) in children if descend else ():
        _mark_deleted(db, child)


def fork_session(db: sqlite3.Connection, session_id: str, at: str | None, title: str | None, now: int) -> StoredSession:
    """Copies rows without decoding them, including damaged rows. Rows do not contain their session id."""
    source = session_row(db, session_id)
    last = _fork_point(db, source["key"], at)
    session = insert_session(db, forked_session(decode_session(source), last["id"] if last else "", title, now), now)
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
        raise_no_message(at)
    return row


def _put_part(db: sqlite3.Connection, session: int, seq: int, row: PartRow, *, draft: bool) -> None:
    """Writes a part. Large strings of a draft stay in its row, because the next draft replaces them."""
    body, blobs = (row.body, row.texts) if draft or row.texts else extract_blobs(row.body)
    columns = (row.id, seq, draft, len(blobs), row.tool, row.outcome, row.start, row.end, body)
    try:
        put = db.execute(_PUT_PART_WITH_BLOBS if blobs else _PUT_PART, (session, session, row.message_id, *columns))
    except sqlite3.IntegrityError as error:
        raise PartValidationError(f"there is no message {row.message_id}", field="message_id") from error
    if blobs:
        key = put.fetchone()[0]
        release_blobs(db, key, but=blobs)
        for name, content in blobs.items():
            _put_blob(db, name, content)
        db.executemany("INSERT OR IGNORE INTO blob_uses VALUES (?, ?)", [(key, name) for name in blobs])


def _put_blob(db: sqlite3.Connection, name: str, content: bytes | str) -> None:
    """Stores a blob once. A text is written in chunks, because SQLite makes two copies of what a statement stores."""
    if isinstance(content, bytes):
        db.execute("INSERT OR IGNORE INTO blobs (name, body) VALUES (?, ?)", (name, content))
        return
    size = len(content) if content.isascii() else sum(map(len, encode_pieces(content)))
    added = db.execute("INSERT OR IGNORE INTO blobs (name, body) VALUES (?, zeroblob(?))", (name, size))
    if added.rowcount and added.lastrowid is not None:
        with db.blobopen("blobs", "body", added.lastrowid) as blob:
            for chunk in encode_pieces(content):
                blob.write(chunk)


def release_blobs(db: sqlite3.Connection, part: int, but: Collection[str] = ()) -> None:
    """Removes the blob references of a part, except `but`, and deletes blobs without references."""
    used = db.execute("SELECT name FROM blob_uses WHERE part = ?", (part,)).fetchall()
    for (name,) in used:
        if name not in but:
            db.execute("DELETE FROM blob_uses WHERE part = ? AND name = ?", (part, name))
            db.execute("DELETE FROM blobs WHERE name = ? AND name NOT IN (SELECT name FROM blob_uses)", (name,))


def _take_inbox_item(db: sqlite3.Connection, session: int, item: str, seq: int, now: int) -> None:
    row = db.execute(
        "UPDATE inbox SET taken = 1, seq = ? WHERE session = ? AND id = ? AND taken = 0 RETURNING key, body",
        (seq, session, item),
    ).fetchone()
    if row is None:
        raise StoreError(f"inbox item {item} is not there or was taken before")
    taken_item = msgspec.structs.replace(decode_inbox_item(row[1]), taken=now)
    db.execute("UPDATE inbox SET body = ? WHERE key = ?", (encode_record(taken_item), row[0]))


_KNOWN_INPUT = """
    SELECT inbox.body FROM sessions JOIN inbox ON inbox.session = sessions.key
    WHERE sessions.id = ? AND sessions.deleted = 0 AND inbox.id = ?
"""


def put_inbox_item(db: sqlite3.Connection, item: InboxItem, now: int) -> InboxItem:
    stored = db.execute(_KNOWN_INPUT, (item.session_id, item.id)).fetchone()
    if stored:
        return decode_inbox_item(stored[0])
    key, seq = advance_sequence(db, item.session_id, 1, now)
    item.message.join(item.session_id)
    body = encode_record(msgspec.structs.replace(item, created=item.created or now))
    db.execute("INSERT INTO inbox (session, id, seq, body) VALUES (?, ?, ?, ?)", (key, item.id, seq, body))
    return decode_inbox_item(body)


_INBOX = """
    SELECT inbox.body FROM sessions LEFT JOIN inbox ON inbox.session = sessions.key AND inbox.taken = 0
    WHERE sessions.id = ? AND sessions.deleted = 0 ORDER BY inbox.seq, inbox.key
"""


def list_inbox(db: sqlite3.Connection, session_id: str) -> list[InboxItem]:
    """Returns the items that were not taken. One query, because every step calls it: the join yields one row with a
    NULL body for a session without items, and no row for an unknown session."""
    rows = db.execute(_INBOX, (session_id,)).fetchall()
    if not rows:
        raise_no_session(session_id)
    return decode_inbox(body for (body,) in rows if body is not None)


def put_approval(db: sqlite3.Connection, approval: Approval, now: int) -> Approval:
    approval = with_fingerprint(approval, now)
    key = session_row(db, approval.session_id)["key"]
    stored = db.execute(
        "SELECT body FROM approvals WHERE session = ? AND call_id = ? AND fingerprint = ?",
        (key, approval.call_id, approval.fingerprint),
    ).fetchone()
    if stored:
        return decode_approval(stored[0])
    _, seq = advance_sequence(db, approval.session_id, 1, now)
    db.execute(
        "INSERT INTO approvals (session, id, seq, call_id, fingerprint, answer, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (key, approval.id, seq, approval.call_id, approval.fingerprint, approval.answer, encode_record(approval)),
    )
    return approval


def answer_approval(
    db: sqlite3.Connection, approval_id: str, respond: Callable[[Approval, int], Approval], now: int
) -> Approval:
    """Stores the approval that `respond` returns for the stored approval and the time, if it is another value."""
    row = db.execute("SELECT body FROM approvals WHERE id = ?", (approval_id,)).fetchone()
    if row is None:
        raise StoreError(f"there is no approval {approval_id}")
    stored = decode_approval(row[0])
    answered = respond(stored, now)
    if answered is not stored:
        _, seq = advance_sequence(db, stored.session_id, 1, now)
        db.execute(
            "UPDATE approvals SET seq = ?, answer = ?, body = ? WHERE id = ?",
            (seq, answered.answer, encode_record(answered), approval_id),
        )
    return answered


def list_approvals(db: sqlite3.Connection, session_id: str | None, *, only_open: bool) -> list[Approval]:
    conditions, values = ["session IN (SELECT key FROM sessions WHERE deleted = 0)"], list[int]()
    if session_id is not None:
        conditions, values = ["session = ?"], [session_row(db, session_id)["key"]]
    if only_open:
        conditions.append("answer = 'open'")
    rows = db.execute(f"SELECT body FROM approvals WHERE {' AND '.join(conditions)} ORDER BY key", values)
    return decode_approvals(body for (body,) in rows)
