"""SQL for inbox items and approval requests. Each function runs inside one transaction."""

import sqlite3

import msgspec

from outrider.errors import StoreError
from outrider.sessions.records import Approval, ApprovalAnswer, ApprovalScope, InboxItem
from outrider.sessions.rows.session_rows import (
    decode_approval,
    decode_inbox_item,
    encode_record,
    raise_no_session,
    with_fingerprint,
)
from outrider.sessions.sqlite.reads import session_row
from outrider.sessions.sqlite.writes import advance_sequence


def put_inbox_item(db: sqlite3.Connection, item: InboxItem, now: int) -> InboxItem:
    key = session_row(db, item.session_id)["key"]
    known = db.execute("SELECT body FROM inbox WHERE session = ? AND id = ?", (key, item.id)).fetchone()
    if known:
        return decode_inbox_item(known[0])
    _, seq = advance_sequence(db, item.session_id, 1, now)
    item.message.join(item.session_id)
    body = encode_record(msgspec.structs.replace(item, created=item.created or now))
    db.execute("INSERT INTO inbox (session, id, seq, body) VALUES (?, ?, ?, ?)", (key, item.id, seq, body))
    return decode_inbox_item(body)


_INBOX = """
    SELECT inbox.body FROM sessions LEFT JOIN inbox ON inbox.session = sessions.key AND inbox.taken = 0
    WHERE sessions.id = ? AND sessions.deleted = 0 ORDER BY inbox.key
"""


def list_inbox(db: sqlite3.Connection, session_id: str) -> list[InboxItem]:
    """Returns the items that were not taken. One query, because every step calls it: the join yields one row with a
    NULL body for a session without items, and no row for an unknown session."""
    rows = db.execute(_INBOX, (session_id,)).fetchall()
    if not rows:
        raise_no_session(session_id)
    return [decode_inbox_item(body) for (body,) in rows if body is not None]


def put_approval(db: sqlite3.Connection, approval: Approval, now: int) -> Approval:
    approval = with_fingerprint(approval, now)
    key = session_row(db, approval.session_id)["key"]
    known = db.execute(
        "SELECT body FROM approvals WHERE session = ? AND call_id = ? AND fingerprint = ?",
        (key, approval.call_id, approval.fingerprint),
    ).fetchone()
    if known:
        return decode_approval(known[0])
    _, seq = advance_sequence(db, approval.session_id, 1, now)
    db.execute(
        "INSERT INTO approvals (session, id, seq, call_id, fingerprint, answer, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (key, approval.id, seq, approval.call_id, approval.fingerprint, approval.answer, encode_record(approval)),
    )
    return approval


def answer_approval(
    db: sqlite3.Connection,
    approval_id: str,
    answer: ApprovalAnswer,
    now: int,
    *,
    scope: ApprovalScope,
    by: str,
    words: str,
) -> Approval:
    row = db.execute("SELECT body FROM approvals WHERE id = ?", (approval_id,)).fetchone()
    if row is None:
        raise StoreError(f"there is no approval {approval_id}")
    stored = decode_approval(row[0])
    answered = stored.answered_with(answer, scope=scope, by=by, words=words, at=now)
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
    return [decode_approval(body) for (body,) in rows]
