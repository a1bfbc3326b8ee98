"""What people ask of a session, and what it asks of them: the inbox, and approvals."""

import sqlite3

import msgspec

from outrider.errors import StoreError
from outrider.sessions.records import Approval, ApprovalAnswer, ApprovalScope, InboxItem
from outrider.sessions.rows.rows import approval, bound, encode_record, inbox_item, no_session
from outrider.sessions.sqlite.reads import session_row
from outrider.sessions.sqlite.writes import advance


def put_inbox(db: sqlite3.Connection, item: InboxItem, now: int) -> InboxItem:
    key = session_row(db, item.session_id)["key"]
    known = db.execute("SELECT body FROM inbox WHERE session = ? AND id = ?", (key, item.id)).fetchone()
    if known:
        return inbox_item(known[0])
    _, seq = advance(db, item.session_id, 1, now)
    item.message.join(item.session_id)
    body = encode_record(msgspec.structs.replace(item, created=item.created or now))
    db.execute("INSERT INTO inbox (session, id, seq, body) VALUES (?, ?, ?, ?)", (key, item.id, seq, body))
    return inbox_item(body)


_INBOX = """
    SELECT inbox.body FROM sessions LEFT JOIN inbox ON inbox.session = sessions.key AND inbox.taken = 0
    WHERE sessions.id = ? AND sessions.deleted = 0 ORDER BY inbox.key
"""


def inbox(db: sqlite3.Connection, session_id: str) -> list[InboxItem]:
    """In one statement, since every step asks: a session without input is a row without a body."""
    rows = db.execute(_INBOX, (session_id,)).fetchall()
    if not rows:
        no_session(session_id)
    return [inbox_item(body) for (body,) in rows if body is not None]


def ask(db: sqlite3.Connection, question: Approval, now: int) -> Approval:
    question = bound(question, now)
    key = session_row(db, question.session_id)["key"]
    known = db.execute(
        "SELECT body FROM approvals WHERE session = ? AND call_id = ? AND fingerprint = ?",
        (key, question.call_id, question.fingerprint),
    ).fetchone()
    if known:
        return approval(known[0])
    _, seq = advance(db, question.session_id, 1, now)
    db.execute(
        "INSERT INTO approvals (session, id, seq, call_id, fingerprint, answer, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (key, question.id, seq, question.call_id, question.fingerprint, question.answer, encode_record(question)),
    )
    return question


def answer(
    db: sqlite3.Connection,
    approval_id: str,
    word: ApprovalAnswer,
    now: int,
    *,
    scope: ApprovalScope,
    by: str,
    words: str,
) -> Approval:
    row = db.execute("SELECT body FROM approvals WHERE id = ?", (approval_id,)).fetchone()
    if row is None:
        raise StoreError(f"there is no approval {approval_id}")
    asked = approval(row[0])
    answered = asked.answered_with(word, scope=scope, by=by, words=words, at=now)
    if answered is not asked:
        _, seq = advance(db, asked.session_id, 1, now)
        db.execute(
            "UPDATE approvals SET seq = ?, answer = ?, body = ? WHERE id = ?",
            (seq, answered.answer, encode_record(answered), approval_id),
        )
    return answered


def approvals(db: sqlite3.Connection, session_id: str | None, *, only_open: bool) -> list[Approval]:
    conditions, values = ["session IN (SELECT key FROM sessions WHERE deleted = 0)"], list[int]()
    if session_id is not None:
        conditions, values = ["session = ?"], [session_row(db, session_id)["key"]]
    if only_open:
        conditions.append("answer = 'open'")
    rows = db.execute(f"SELECT body FROM approvals WHERE {' AND '.join(conditions)} ORDER BY key", values)
    return [approval(body) for (body,) in rows]
