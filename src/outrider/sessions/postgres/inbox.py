"""Leases by the server's clock, the inbox, and approvals."""

import msgspec

from outrider.errors import LeaseLostError, StoreError
from outrider.sessions.postgres.reads import fetch, session_row
from outrider.sessions.postgres.schema import Connection
from outrider.sessions.postgres.writes import advance, holder
from outrider.sessions.records import Approval, ApprovalAnswer, ApprovalScope, InboxItem, Lease, Owner
from outrider.sessions.rows.rows import approval, bound, encode_record, in_use, inbox_item, no_session


async def acquire(db: Connection, session_id: str, owner: Owner, now: int, *, ttl_ms: int, take_over: bool) -> Lease:
    row = await session_row(db, session_id, lock=True)
    current = holder(row)
    if current is not None and current.owner != owner and not take_over:
        raise in_use(current)
    return await _keep(db, Lease(session_id, row["token"] + 1, owner, now, ttl_ms))


async def renew(db: Connection, lease: Lease) -> Lease:
    row = await session_row(db, lease.session_id, lock=True)
    if row["token"] != lease.token:
        raise LeaseLostError(f"session {lease.session_id} was taken over", session_id=lease.session_id)
    return await _keep(db, lease)


async def release(db: Connection, lease: Lease) -> None:
    await db.execute("UPDATE sessions SET lease = NULL WHERE id = %s AND token = %s", (lease.session_id, lease.token))


async def _keep(db: Connection, lease: Lease) -> Lease:
    await db.execute(
        "UPDATE sessions SET token = %s, lease = %s, expires = clock_timestamp() + %s * interval '1 millisecond' "
        "WHERE id = %s",
        (lease.token, msgspec.json.encode(lease), lease.ttl_ms, lease.session_id),
    )
    return lease


async def put_inbox(db: Connection, item: InboxItem, now: int) -> InboxItem:
    key = (await session_row(db, item.session_id, lock=True))["key"]
    known = await fetch(db, "SELECT body FROM inbox WHERE session = %s AND id = %s", key, item.id)
    if known:
        return inbox_item(known[0]["body"])
    _, seq = await advance(db, item.session_id, 1, now)
    item.message.join(item.session_id)
    body = encode_record(msgspec.structs.replace(item, created=item.created or now))
    await db.execute("INSERT INTO inbox (session, id, seq, body) VALUES (%s, %s, %s, %s)", (key, item.id, seq, body))
    return inbox_item(body)


async def inbox(db: Connection, session_id: str) -> list[InboxItem]:
    """Asked before every step, so one query tells the session that is not there from the one with nothing in it."""
    rows = await fetch(
        db,
        "SELECT inbox.body FROM sessions LEFT JOIN inbox ON inbox.session = sessions.key AND NOT inbox.taken"
        " WHERE sessions.id = %s ORDER BY inbox.key",
        session_id,
    )
    return [inbox_item(row["body"]) for row in rows if row["body"] is not None] if rows else no_session(session_id)


async def ask(db: Connection, question: Approval, now: int) -> Approval:
    question = bound(question, now)
    key = (await session_row(db, question.session_id, lock=True))["key"]
    known = await fetch(
        db,
        "SELECT body FROM approvals WHERE session = %s AND call_id = %s AND fingerprint = %s",
        key,
        question.call_id,
        question.fingerprint,
    )
    if known:
        return approval(known[0]["body"])
    _, seq = await advance(db, question.session_id, 1, now)
    own = (question.id, seq, question.call_id, question.fingerprint, question.answer, encode_record(question))
    await db.execute(
        "INSERT INTO approvals (session, id, seq, call_id, fingerprint, answer, body) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s)",
        (key, *own),
    )
    return question


async def answer(
    db: Connection, approval_id: str, word: ApprovalAnswer, now: int, *, scope: ApprovalScope, by: str, words: str
) -> Approval:
    rows = await fetch(db, "SELECT body FROM approvals WHERE id = %s FOR UPDATE", approval_id)
    if not rows:
        raise StoreError(f"there is no approval {approval_id}")
    asked = approval(rows[0]["body"])
    answered = asked.answered_with(word, scope=scope, by=by, words=words, at=now)
    if answered is not asked:
        _, seq = await advance(db, asked.session_id, 1, now)
        await db.execute(
            "UPDATE approvals SET seq = %s, answer = %s, body = %s WHERE id = %s",
            (seq, answered.answer, encode_record(answered), approval_id),
        )
    return answered


async def approvals(db: Connection, session_id: str | None, *, only_open: bool) -> list[Approval]:
    conditions, values = ["true"], list[int]()
    if session_id is not None:
        conditions, values = ["session = %s"], [(await session_row(db, session_id))["key"]]
    if only_open:
        conditions.append("answer = 'open'")
    rows = await fetch(db, f"SELECT body FROM approvals WHERE {' AND '.join(conditions)} ORDER BY key", *values)
    return [approval(row["body"]) for row in rows]
