"""SQL that writes sessions and rows to Postgres.

Each function runs inside one transaction. With `retried`, an earlier attempt may have been committed: its connection
was lost before the response to COMMIT arrived.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import msgspec
from psycopg import errors

from outrider.errors import PartValidationError, StoreError
from outrider.sessions.leases import has_ended_here
from outrider.sessions.postgres.reads import RowDict, fetch_rows, session_row
from outrider.sessions.postgres.schema import Connection
from outrider.sessions.records import (
    Approval,
    InboxItem,
    Lease,
    ProcessIdentity,
    SessionUpdate,
    StoredSession,
    StoredValue,
)
from outrider.sessions.rows import search_terms
from outrider.sessions.rows.codec import AppendRequest, MessageRow, PartRow, extract_blobs
from outrider.sessions.rows.session_rows import (
    check_token,
    decode_approval,
    decode_approvals,
    decode_inbox,
    decode_inbox_item,
    decode_session,
    encode_record,
    lease_lost_error,
    raise_no_message,
    raise_no_session,
    session_columns,
    session_in_use_error,
    with_fingerprint,
)
from outrider.sessions.session import SessionTime
from outrider.types.codec import AnyPart
from outrider.types.messages import Message

MAX_LEXEMES, MAX_LEXEME_CHARACTERS = 20_000, 200
CHANNEL = "outrider_changes"
_lease_decoder = msgspec.json.Decoder(Lease)


async def insert_session(db: Connection, session: StoredSession, now: int, *, retried: bool = False) -> StoredSession:
    times = session.time or SessionTime(created=now, updated=now)
    session = msgspec.structs.replace(session, seq=1, time=times)
    columns = session_columns(session)
    names, placeholders = ", ".join(columns), ", ".join(["%s"] * len(columns))
    inserted = await fetch_rows(
        db,
        f"INSERT INTO sessions ({names}, words) VALUES ({placeholders}, array_to_tsvector(%s)) "
        "ON CONFLICT DO NOTHING RETURNING key",
        *columns.values(),
        split_lexemes(session.title),
    )
    if not inserted and not retried:
        raise StoreError(f"session {session.id} exists already")
    return session


async def update_session(db: Connection, session_id: str, change: SessionUpdate, now: int) -> StoredSession:
    key, seq = await advance_sequence(db, session_id, 1, now)
    session = msgspec.structs.replace(change.apply(decode_session(await session_row(db, session_id))), seq=seq)
    columns = session_columns(session)
    settings = ", ".join(f"{name} = %s" for name in columns)
    await db.execute(
        f"UPDATE sessions SET {settings}, words = array_to_tsvector(%s) WHERE key = %s".encode(),
        (*columns.values(), split_lexemes(session.title), key),
    )
    return session


class AppendStatement(msgspec.Struct, frozen=True):
    """The statement that stores the rows of a request and takes its inbox items. It changes nothing if it fails. With a
    token it also checks the token, so that it needs no transaction unless there are `blobs` to store."""

    request: AppendRequest
    sql: bytes
    values: dict[str, object]
    blobs: Sequence[tuple[PartRow, dict[str, bytes]]]

    @property
    def needs_transaction(self) -> bool:
        return self.request.token is None or bool(self.blobs)


def prepare_append(request: AppendRequest, stored_values: Sequence[StoredValue]) -> AppendStatement:
    """Builds the statement that stores the values, whose rows are in the request. If a row occurs twice, it stores the
    last version at the position of the first."""
    count = len(request.rows) + len(request.takes)
    messages, parts = dict[str, tuple[int, MessageRow]](), dict[tuple[str, str], tuple[int, PartRow]]()
    for back, row in zip(range(count - 1, -1, -1), request.rows, strict=False):
        if isinstance(row, MessageRow):
            messages[row.id] = back, row
        else:
            parts[row.message_id, row.id] = back, row
    values: dict[str, object] = {"id": request.session_id, "count": count, "token": request.token}
    if messages:
        values |= {
            "message_ids": list(messages),
            "message_backs": [back for back, _ in messages.values()],
            "roles": [row.role for _, row in messages.values()],
            "created": [row.created for _, row in messages.values()],
            "message_bodies": [row.body for _, row in messages.values()],
        }
    blobs = list[tuple[PartRow, dict[str, bytes]]]()
    if parts:
        split = _without_blobs if request.draft else extract_blobs
        stored = [split(row.body) for _, row in parts.values()]
        blobs = [(row, row_blobs) for (_, row), (_, row_blobs) in zip(parts.values(), stored, strict=True) if row_blobs]
        values |= {
            "draft": request.draft,
            "part_messages": [row.message_id for _, row in parts.values()],
            "part_ids": [row.id for _, row in parts.values()],
            "part_backs": [back for back, _ in parts.values()],
            "blob_counts": [len(row_blobs) for _, row_blobs in stored],
            "tools": [row.tool for _, row in parts.values()],
            "outcomes": [row.outcome for _, row in parts.values()],
            "starts": [row.start for _, row in parts.values()],
            "ends": [row.end for _, row in parts.values()],
            "part_bodies": [body for body, _ in stored],
            "words": [""] * len(parts) if request.draft else _list_lexemes(stored_values, parts),
        }
    sql = _append_sql(
        fenced=request.token is not None, messages=bool(messages), parts=bool(parts), takes=bool(request.takes)
    )
    return AppendStatement(request, sql, values, blobs)


async def append_rows(db: Connection, append: AppendStatement, now: int, *, retried: bool) -> int:
    request, values = append.request, {**append.values, "now": now, "channel": CHANNEL}
    if request.token is None:
        row = await _advance_row(db, request.session_id, len(request.rows) + len(request.takes), now)
        check_token(request.session_id, None, row["token"], current_lease(row))
        if row["lease"] is not None:  # an expired owner must not write after another owner has
            await db.execute("UPDATE sessions SET lease = NULL, token = token + 1 WHERE key = %s", (row["key"],))
        values |= {"key": row["key"], "seq": row["seq"]}
    if request.takes:
        values |= await _take_items(db, request, now, retried=retried)
    try:
        result = await (await db.execute(append.sql, values)).fetchone()
    except errors.NotNullViolation as error:  # a part without a message has no key of one
        names = {row.message_id for row in request.rows if isinstance(row, PartRow)}
        names -= {row.id for row in request.rows if isinstance(row, MessageRow)}
        raise PartValidationError(f"there is no message {' or '.join(sorted(names))}", field="message_id") from error
    except errors.DivisionByZero as error:
        raise StoreError(f"inbox item {', '.join(request.takes)} was taken before") from error
    if result is None:
        await session_row(db, request.session_id)
        raise lease_lost_error(request.session_id)
    for row, blobs in append.blobs:
        await _put_blobs(db, request.session_id, row, blobs)
    return result[0]


_FENCED_SESSION = """
    UPDATE sessions SET seq = seq + %(count)s, active = greatest(created, %(now)s)
    WHERE id = %(id)s AND token = %(token)s RETURNING key, seq, pg_notify(%(channel)s, %(id)s)"""
_LOCKED_SESSION = "SELECT %(key)s::bigint AS key, %(seq)s::bigint AS seq"
_PUT_MESSAGES = """, message AS (
    INSERT INTO messages (session, id, seq, role, created, body)
    SELECT session.key, row.id, session.seq - row.back, row.role, row.created, row.body
    FROM session, unnest(%(message_ids)s::text[], %(message_backs)s::bigint[], %(roles)s::text[],
        %(created)s::bigint[], %(message_bodies)s::bytea[]) WITH ORDINALITY
        AS row (id, back, role, created, body, place)
    ORDER BY row.place
    ON CONFLICT (session, id) DO UPDATE SET seq = excluded.seq, body = excluded.body
    RETURNING key, id)"""
# A statement does not see the rows that it inserts, so the message of a part is looked up in both.
_NEW_MESSAGE = "(SELECT key FROM message WHERE message.id = row.message)"
_OLD_MESSAGE = "(SELECT key FROM messages WHERE messages.session = session.key AND messages.id = row.message)"
_PUT_PARTS = """, part AS (
    INSERT INTO parts (session, message, id, seq, draft, blobs, tool, outcome, started, ended, body, words)
    SELECT session.key, {}, row.id, session.seq - row.back, %(draft)s, row.blobs, row.tool, row.outcome, row.started,
        row.ended, row.body, array_to_tsvector(string_to_array(row.words, ' '))
    FROM session, unnest(%(part_messages)s::text[], %(part_ids)s::text[], %(part_backs)s::bigint[],
        %(blob_counts)s::integer[], %(tools)s::text[], %(outcomes)s::text[], %(starts)s::bigint[], %(ends)s::bigint[],
        %(part_bodies)s::bytea[], %(words)s::text[]) WITH ORDINALITY
        AS row (message, id, back, blobs, tool, outcome, started, ended, body, words, place)
    ORDER BY row.place
    ON CONFLICT (message, id) DO UPDATE SET seq = excluded.seq, draft = excluded.draft, blobs = excluded.blobs,
        tool = excluded.tool, outcome = excluded.outcome, started = excluded.started, ended = excluded.ended,
        body = excluded.body, words = excluded.words)"""
_TAKE_ITEMS = """, taken AS (
    UPDATE inbox SET taken = true, seq = session.seq - item.back, body = item.body
    FROM session, unnest(%(item_ids)s::text[], %(item_backs)s::bigint[], %(item_bodies)s::bytea[])
        AS item (id, back, body)
    WHERE inbox.session = session.key AND inbox.id = item.id AND (%(retried)s OR NOT inbox.taken)
    RETURNING inbox.id)"""
# If not all items were taken, the division by zero fails the statement, so that nothing is stored.
_ALL_TAKEN = ", 1 / ((SELECT count(*) FROM taken) = %(items)s)::integer"


@cache
def _append_sql(*, fenced: bool, messages: bool, parts: bool, takes: bool) -> bytes:
    """Returns the statement without the steps that have nothing to do, because each step takes time to start."""
    message = f"coalesce({_NEW_MESSAGE}, {_OLD_MESSAGE})" if messages else _OLD_MESSAGE
    steps = [_PUT_MESSAGES] * messages + [_PUT_PARTS.format(message)] * parts + [_TAKE_ITEMS] * takes
    session = _FENCED_SESSION if fenced else _LOCKED_SESSION
    return f"WITH session AS ({session}){''.join(steps)} SELECT session.seq{_ALL_TAKEN * takes} FROM session".encode()


async def _take_items(db: Connection, request: AppendRequest, now: int, *, retried: bool) -> dict[str, object]:
    """Returns the values that mark inbox items as taken. Raises StoreError if an item does not exist or was taken."""
    rows = await fetch_rows(
        db,
        "SELECT id, body FROM inbox WHERE session = (SELECT key FROM sessions WHERE id = %s) AND id = ANY(%s)"
        " AND (%s OR NOT taken)",
        request.session_id,
        list(request.takes),
        retried,
    )
    items = {row["id"]: decode_inbox_item(row["body"]) for row in rows}
    for item in request.takes:
        if item not in items:
            raise StoreError(f"inbox item {item} is not there or was taken before")
    taken_items = [msgspec.structs.replace(items[item], taken=now) for item in request.takes]
    return {
        "item_ids": list(request.takes),
        "item_backs": list(range(len(taken_items) - 1, -1, -1)),
        "item_bodies": [encode_record(item) for item in taken_items],
        "items": len(set(request.takes)),
        "retried": retried,
    }


_ADVANCE = """
    UPDATE sessions SET seq = seq + %s, active = greatest(created, %s) WHERE id = %s
    RETURNING key, seq, token, lease, expires > clock_timestamp() AS held, pg_notify(%s, %s)
"""


async def advance_sequence(db: Connection, session_id: str, count: int, now: int) -> tuple[int, int]:
    """Reserves `count` sequence numbers and queues a notification for the commit; returns key and last number."""
    row = await _advance_row(db, session_id, count, now)
    return row["key"], row["seq"]


async def _advance_row(db: Connection, session_id: str, count: int, now: int) -> RowDict:
    """Reserves `count` sequence numbers and returns the row of the session with its lease. The UPDATE locks the row
    until the commit."""
    rows = await fetch_rows(db, _ADVANCE, count, now, session_id, CHANNEL, session_id)
    return rows[0] if rows else raise_no_session(session_id)


async def notify_change(db: Connection, session_id: str) -> None:
    await db.execute("SELECT pg_notify(%s, %s)", (CHANNEL, session_id))


async def delete_session(db: Connection, session_id: str, token: int | None, *, retried: bool) -> None:
    rows = await fetch_rows(db, "SELECT 1 FROM sessions WHERE id = %s", session_id)
    if retried and not rows:
        return
    row = await session_row(db, session_id, lock=True)
    lease = current_lease(row)
    if lease is not None and token != lease.token:
        raise session_in_use_error(lease)
    deleted = await fetch_rows(
        db,
        """WITH RECURSIVE family AS (
            SELECT id FROM sessions WHERE id = %s
            UNION SELECT child.id FROM sessions AS child JOIN family ON child.parent = family.id
        ) DELETE FROM sessions WHERE id IN (SELECT id FROM family) RETURNING id""",
        session_id,
    )
    await _after_delete(db, deleted)


async def delete_unowned_sessions(db: Connection) -> int:
    deleted = await fetch_rows(
        db, "DELETE FROM sessions WHERE lease IS NULL OR expires <= clock_timestamp() RETURNING id"
    )
    await _after_delete(db, deleted)
    return len(deleted)


async def _after_delete(db: Connection, deleted: list[RowDict]) -> None:
    await db.execute("DELETE FROM blobs WHERE NOT EXISTS (SELECT 1 FROM blob_uses WHERE blob_uses.name = blobs.name)")
    for row in deleted:
        await notify_change(db, row["id"])


async def fork_session(
    db: Connection, source: RowDict, fork: StoredSession, end: int, now: int, *, retried: bool
) -> StoredSession:
    """Copies rows without decoding them, including damaged rows. Rows do not contain their session id."""
    if retried and await fetch_rows(db, "SELECT 1 FROM sessions WHERE id = %s", fork.id):
        return decode_session(await session_row(db, fork.id))
    session = await insert_session(db, fork, now)
    target = (await session_row(db, session.id))["key"]
    await db.execute(_COPY_MESSAGES, (target, source["key"], end))
    seq = 1 + (await fetch_rows(db, "SELECT count(*) AS n FROM messages WHERE session = %s", target))[0]["n"]
    copied = (await db.execute(_COPY_PARTS, (target, seq, target, source["key"], end))).rowcount
    await db.execute(_COPY_BLOB_USES, (target, source["key"], end))
    await db.execute("UPDATE sessions SET seq = %s WHERE key = %s", (seq + copied, target))
    return msgspec.structs.replace(session, seq=seq + copied)


async def find_fork_point(db: Connection, session: int, at: str | None) -> RowDict:
    if at is None:
        rows = await fetch_rows(
            db, "SELECT key, id FROM messages WHERE session = %s ORDER BY key DESC LIMIT 1", session
        )
        return rows[0] if rows else {"key": 0, "id": ""}
    rows = await fetch_rows(db, "SELECT key, id FROM messages WHERE session = %s AND id = %s", session, at)
    return rows[0] if rows else raise_no_message(at)


_COPY_MESSAGES = """
    INSERT INTO messages (session, id, seq, role, created, body)
    SELECT %s, id, 1 + row_number() OVER (ORDER BY key), role, created, body FROM messages
    WHERE session = %s AND key <= %s ORDER BY key
"""
_COPY_PARTS = """
    INSERT INTO parts (session, message, id, seq, draft, blobs, tool, outcome, started, ended, body, words)
    SELECT %s, copy.key, part.id, %s + row_number() OVER (ORDER BY part.key), draft, blobs, tool, outcome, started,
        ended, part.body, words
    FROM messages AS message
    JOIN messages AS copy ON copy.session = %s AND copy.id = message.id
    JOIN parts AS part ON part.message = message.key
    WHERE message.session = %s AND message.key <= %s ORDER BY part.key
"""
_COPY_BLOB_USES = """
    INSERT INTO blob_uses (part, name)
    SELECT copied_part.key, uses.name
    FROM messages AS message
    JOIN parts AS part ON part.message = message.key AND part.blobs > 0
    JOIN blob_uses AS uses ON uses.part = part.key
    JOIN messages AS copy ON copy.session = %s AND copy.id = message.id
    JOIN parts AS copied_part ON copied_part.message = copy.key AND copied_part.id = part.id
    WHERE message.session = %s AND message.key <= %s
"""


def current_lease(row: RowDict) -> Lease | None:
    """Returns the lease if it is valid by the server's clock and its process is not known to have ended."""
    if row["lease"] is None or not row["held"]:
        return None
    lease = _lease_decoder.decode(row["lease"])
    return None if has_ended_here(lease.owner) else lease


def split_lexemes(text: str) -> list[str]:
    """Returns the distinct words of a text, split as a query is."""
    lexemes = {word for word in search_terms.split_words(text) if len(word) <= MAX_LEXEME_CHARACTERS}
    return sorted(lexemes)[:MAX_LEXEMES]


def _without_blobs(body: bytes) -> tuple[bytes, dict[str, bytes]]:
    return body, {}


def _list_lexemes(values: Sequence[StoredValue], names: Iterable[tuple[str, str]]) -> list[str]:
    """Returns the words of the last version of each part. The key of a part is its id with the id of its message."""
    last = dict[tuple[str, str], AnyPart]()
    for value in values:
        for part in value.parts if isinstance(value, Message) else (value,):
            last[part.message_id, part.id] = part
    return [" ".join(split_lexemes(search_terms.searchable_text(last[name]))) for name in names]


async def _put_blobs(db: Connection, session_id: str, row: PartRow, blobs: dict[str, bytes]) -> None:
    (part,) = await fetch_rows(
        db,
        """SELECT parts.key FROM parts JOIN messages ON messages.key = parts.message
        WHERE messages.session = (SELECT key FROM sessions WHERE id = %s) AND messages.id = %s AND parts.id = %s""",
        session_id,
        row.message_id,
        row.id,
    )
    await db.execute(_RELEASE_BLOBS, (part["key"], list(blobs)))
    for name, content in blobs.items():
        await db.execute("INSERT INTO blobs VALUES (%s, %s) ON CONFLICT DO NOTHING", (name, content))
        await db.execute("INSERT INTO blob_uses VALUES (%s, %s) ON CONFLICT DO NOTHING", (part["key"], name))


_RELEASE_BLOBS = """
    WITH gone AS (DELETE FROM blob_uses WHERE part = %s AND NOT name = ANY(%s) RETURNING part, name)
    DELETE FROM blobs USING gone WHERE blobs.name = gone.name AND NOT EXISTS (
        SELECT 1 FROM blob_uses WHERE blob_uses.name = gone.name AND blob_uses.part <> gone.part)
"""


async def acquire_lease(
    db: Connection, session_id: str, owner: ProcessIdentity, now: int, *, ttl_ms: int, take_over: bool
) -> Lease:
    """Replaces the lease that it has read, without a transaction; reads again if that has changed in between."""
    while True:
        row = await session_row(db, session_id)
        current = current_lease(row)
        if current is not None and current.owner != owner and not take_over:
            raise session_in_use_error(current)
        lease = Lease(session_id, row["token"] + 1, owner, now, ttl_ms)
        seen = (row["token"], row["lease"], row["expires"])
        if await _store_lease(db, lease, _IS_UNCHANGED, seen):
            return lease


_IS_UNCHANGED = (
    " AND token = %s AND lease IS NOT DISTINCT FROM %s::bytea AND expires IS NOT DISTINCT FROM %s::timestamptz"
)


async def renew_lease(db: Connection, lease: Lease) -> Lease:
    if not await _store_lease(db, lease, " AND token = %s", (lease.token,)):
        await session_row(db, lease.session_id)
        raise lease_lost_error(lease.session_id)
    return lease


async def release_lease(db: Connection, lease: Lease) -> None:
    await db.execute("UPDATE sessions SET lease = NULL WHERE id = %s AND token = %s", (lease.session_id, lease.token))


async def _store_lease(db: Connection, lease: Lease, condition: str, seen: tuple[object, ...]) -> bool:
    """Stores the lease if the condition still holds for the row. Returns whether it was stored."""
    stored = await db.execute(
        "UPDATE sessions SET token = %s, lease = %s, expires = clock_timestamp() + %s * interval '1 millisecond'"
        f" WHERE id = %s{condition}".encode(),
        (lease.token, msgspec.json.encode(lease), lease.ttl_ms, lease.session_id, *seen),
    )
    return stored.rowcount > 0


async def put_inbox_item(db: Connection, item: InboxItem, now: int) -> InboxItem:
    key = (await session_row(db, item.session_id, lock=True))["key"]
    stored = await fetch_rows(db, "SELECT body FROM inbox WHERE session = %s AND id = %s", key, item.id)
    if stored:
        return decode_inbox_item(stored[0]["body"])
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
        decode_inbox(row["body"] for row in rows if row["body"] is not None) if rows else raise_no_session(session_id)
    )


async def put_approval(db: Connection, approval: Approval, now: int) -> Approval:
    approval = with_fingerprint(approval, now)
    key = (await session_row(db, approval.session_id, lock=True))["key"]
    stored = await fetch_rows(
        db,
        "SELECT body FROM approvals WHERE session = %s AND call_id = %s AND fingerprint = %s",
        key,
        approval.call_id,
        approval.fingerprint,
    )
    if stored:
        return decode_approval(stored[0]["body"])
    _, seq = await advance_sequence(db, approval.session_id, 1, now)
    columns = (approval.id, seq, approval.call_id, approval.fingerprint, approval.answer, encode_record(approval))
    await db.execute(
        "INSERT INTO approvals (session, id, seq, call_id, fingerprint, answer, body) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s)",
        (key, *columns),
    )
    return approval


async def answer_approval(
    db: Connection, approval_id: str, respond: Callable[[Approval, int], Approval], now: int
) -> Approval:
    """Stores the approval that `respond` returns for the stored approval and the time, if it is another value."""
    rows = await fetch_rows(db, "SELECT body FROM approvals WHERE id = %s FOR UPDATE", approval_id)
    if not rows:
        raise StoreError(f"there is no approval {approval_id}")
    stored = decode_approval(rows[0]["body"])
    answered = respond(stored, now)
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
    return decode_approvals(row["body"] for row in rows)
