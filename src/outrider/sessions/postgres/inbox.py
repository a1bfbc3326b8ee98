"""SQL for leases, which expire by the server's clock, inbox items and approval requests."""

import msgspec

from outrider.errors import StoreError
from outrider.sessions.postgres.reads import fetch_rows, session_row
from outrider.sessions.postgres.schema import Connection
from outrider.sessions.postgres.writes import advance_sequence, current_lease
from outrider.sessions.records import Approval, ApprovalAnswer, ApprovalScope, InboxItem, Lease, ProcessIdentity
from outrider.sessions.rows.session_rows import (
    decode_approval,
    decode_inbox_item,
    encode_record,
    lease_lost_error,
    raise_no_session,
    session_in_use_error,
    with_fingerprint,
)


async def acquire_lease(
    db: Connection, session_id: str, owner: ProcessIdentity, now: int, *, ttl_ms: int, take_over: bool
) -> Lease:
    row = await session_row(db, session_id, lock=True)
    current = current_lease(row)
    if current is not None and current.owner != owner and not take_over:
        raise session_in_use_error(current)
    return await _store_lease(db, Lease(session_id, row["token"] + 1, owner, now, ttl_ms))


async def renew_lease(db: Connection, lease: Lease) -> Lease:
    row = await session_row(db, lease.session_id, lock=True)
    if row["token"] != lease.token:
        raise lease_lost_error(lease.session_id)
    return await _store_lease(db, lease)


async def release_lease(db: Connection, lease: Lease) -> None:
    await db.execute("UPDATE sessions SET lease = NULL WHERE id = %s AND token = %s", (lease.session_id, lease.token))


async def _store_lease(db: Connection, lease: Lease) -> Lease:
    await db.execute(
        "UPDATE sessions SET token = %s, lease = %s, expires = clock_timestamp() + %s * interval '1 millisecond' "
        "WHERE id = %s",
        (lease.token, msgspec.json.encode(lease), lease.ttl_ms, lease.session_id),
    )
    return lease


async def put_inbox_item(db: Connection, item: InboxItem, now: int) -> InboxItem:
    key = (await session_row(db, item.session_id, lock=True))["key"]
    known = await fetch_rows(db, "SELECT body FROM inbox WHERE session = %s AND id = %s", key, item.id)
    if known:
        return decode_inbox_item(known[0]["body"])
    _, seq = await advance_sequence(db, item.session_id, 1, now)
    item.message.join(item.session_id)
    body = encode_record(msgspec.structs.replace(item, created=item.created or now))
    await db.execute("INSERT INTO inbox (session, id, seq, body) VALUES (%s, %s, %s, %s)", (key, item.id, seq, body))
    return decode_inbox_item(body)


async def list_inbox(db: Connection, session_id: str) -> list[InboxItem]:
    """Returns the items that were not taken. One query, because every step calls it: the join yields one row with a
    NULL body for a session without items, and no row for an unknown session."""
    rows = await fetch_rows(
        db,
        "SELECT inbox.body FROM sessions LEFT JOIN inbox ON inbox.session = sessions.key AND NOT inbox.taken"
        " WHERE sessions.id = %s ORDER BY inbox.key",
        session_id,
    )
    return (
        [decode_inbox_item(row["body"]) for row in rows if row["body"] is not None]
        if rows
        else raise_no_session(session_id)
    )


async def put_approval(db: Connection, approval: Approval, now: int) -> Approval:
    approval = with_fingerprint(approval, now)
    key = (await session_row(db, approval.session_id, lock=True))["key"]
    known = await fetch_rows(
        db,
        "SELECT body FROM approvals WHERE session = %s AND call_id = %s AND fingerprint = %s",
        key,
        approval.call_id,
        approval.fingerprint,
    )
    if known:
        return decode_approval(known[0]["body"])
    _, seq = await advance_sequence(db, approval.session_id, 1, now)
    own = (approval.id, seq, approval.call_id, approval.fingerprint, approval.answer, encode_record(approval))
    await db.execute(
        "INSERT INTO approvals (session, id, seq, call_id, fingerprint, answer, body) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s)",
        (key, *own),
    )
    return approval


async def answer_approval(
    db: Connection, approval_id: str, answer: ApprovalAnswer, now: int, *, scope: ApprovalScope, by: str, words: str
) -> Approval:
    rows = await fetch_rows(db, "SELECT body FROM approvals WHERE id = %s FOR UPDATE", approval_id)
    if not rows:
        raise StoreError(f"there is no approval {approval_id}")
    stored = decode_approval(rows[0]["body"])
    answered = stored.answered_with(answer, scope=scope, by=by, words=words, at=now)
    if answered is not stored:
        _, seq = await advance_sequence(db, stored.session_id, 1, now)
        await db.execute(
            "UPDATE approvals SET seq = %s, answer = %s, body = %s WHERE id = %s",
            (seq, answered.answer, encode_record(answered), approval_id),
        )
    return answered


async def list_approvals(db: Connection, session_id: str | None, *, only_open: bool) -> list[Approval]:
    conditions, values = ["true"], list[int]()
    if session_id is not None:
        conditions, values = ["session = %s"], [(await session_row(db, session_id))["key"]]
    if only_open:
        conditions.append("answer = 'open'")
    rows = await fetch_rows(db, f"SELECT body FROM approvals WHERE {' AND '.join(conditions)} ORDER BY key", *values)
    return [decode_approval(row["body"]) for row in rows]
