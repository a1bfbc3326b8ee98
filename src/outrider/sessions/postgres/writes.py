"""What changes the tables. Each function runs inside one transaction, and may run again after a lost answer."""

from collections.abc import Sequence

import msgspec

from outrider.errors import PartValidationError, StoreError
from outrider.sessions.postgres.reads import Row, fetch, session_row
from outrider.sessions.postgres.schema import Connection
from outrider.sessions.records import Lease, SessionUpdate, StoredSession
from outrider.sessions.rows import search_terms as words
from outrider.sessions.rows.codec import MessageRow, PartRow, in_place, read_part, split
from outrider.sessions.rows.codec import Row as AnyRow
from outrider.sessions.rows.rows import (
    check_token,
    columns_of,
    encode_record,
    in_use,
    inbox_item,
    no_message,
    no_session,
    read_session,
)
from outrider.sessions.session import SessionTime

LEXEMES, LEXEME_CHARACTERS = 20_000, 200
CHANNEL = "outrider_changes"
_lease = msgspec.json.Decoder(Lease)


class Append(msgspec.Struct, frozen=True):
    session_id: str
    rows: Sequence[AnyRow]
    token: int | None
    draft: bool
    takes: Sequence[str]


async def create(db: Connection, session: StoredSession, now: int, *, again: bool = False) -> StoredSession:
    times = session.time or SessionTime(created=now, updated=now)
    session = msgspec.structs.replace(session, seq=1, time=times)
    columns = columns_of(session)
    names, holes = ", ".join(columns), ", ".join(["%s"] * len(columns))
    made = await fetch(
        db,
        f"INSERT INTO sessions ({names}, words) VALUES ({holes}, array_to_tsvector(%s)) "
        "ON CONFLICT DO NOTHING RETURNING key",
        *columns.values(),
        lexemes(session.title),
    )
    if not made and not again:
        raise StoreError(f"session {session.id} exists already")
    return session


async def update(db: Connection, session_id: str, change: SessionUpdate, now: int) -> StoredSession:
    key, seq = await advance(db, session_id, 1, now)
    session = msgspec.structs.replace(change.apply(read_session(await session_row(db, session_id))), seq=seq)
    columns = columns_of(session)
    settings = ", ".join(f"{name} = %s" for name in columns)
    await db.execute(
        f"UPDATE sessions SET {settings}, words = array_to_tsvector(%s) WHERE key = %s".encode(),
        (*columns.values(), lexemes(session.title), key),
    )
    return session


async def append(db: Connection, order: Append, now: int, *, again: bool) -> int:
    count = len(order.rows) + len(order.takes)
    row = await _advanced(db, order.session_id, count, now)
    check_token(order.session_id, order.token, row["token"], holder(row))
    if order.token is None and row["lease"] is not None:  # an owner that expired must not come back unnoticed
        await db.execute("UPDATE sessions SET lease = NULL, token = token + 1 WHERE key = %s", (row["key"],))
    key, last = row["key"], row["seq"]
    for seq, value in in_place(order.rows, last - count + 1):
        if isinstance(value, MessageRow):
            await db.execute(_PUT_MESSAGE, (key, value.id, seq, value.role, value.created, value.body))
        else:
            await _put_part(db, key, seq, value, draft=order.draft)
    for seq, item in enumerate(order.takes, last - len(order.takes) + 1):
        await _take(db, key, item, seq, now, again=again)
    return last


_PUT_MESSAGE = """
    INSERT INTO messages (session, id, seq, role, created, body) VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT (session, id) DO UPDATE SET seq = excluded.seq, body = excluded.body
"""
_PUT_PART = """
    INSERT INTO parts (session, message, id, seq, draft, blobs, tool, outcome, started, ended, body, words)
    SELECT %s, key, %s, %s, %s, %s, %s, %s, %s, %s, %s, array_to_tsvector(%s)
    FROM messages WHERE session = %s AND id = %s
    ON CONFLICT (message, id) DO UPDATE SET seq = excluded.seq, draft = excluded.draft, blobs = excluded.blobs,
        tool = excluded.tool, outcome = excluded.outcome, started = excluded.started, ended = excluded.ended,
        body = excluded.body, words = excluded.words
    RETURNING key
"""


_ADVANCE = """
    UPDATE sessions SET seq = seq + %s, active = greatest(created, %s) WHERE id = %s
    RETURNING key, seq, token, lease, expires > clock_timestamp() AS held, pg_notify(%s, %s)
"""


async def advance(db: Connection, session_id: str, count: int, now: int) -> tuple[int, int]:
    """The session's key and the last of `count` new numbers; whoever follows the session is told at the commit."""
    row = await _advanced(db, session_id, count, now)
    return row["key"], row["seq"]


async def _advanced(db: Connection, session_id: str, count: int, now: int) -> Row:
    """The same with the session's lease, which nobody else can change until the commit."""
    rows = await fetch(db, _ADVANCE, count, now, session_id, CHANNEL, session_id)
    return rows[0] if rows else no_session(session_id)


async def tell(db: Connection, session_id: str) -> None:
    await db.execute("SELECT pg_notify(%s, %s)", (CHANNEL, session_id))


async def delete(db: Connection, session_id: str, token: int | None, *, again: bool) -> None:
    rows = await fetch(db, "SELECT 1 FROM sessions WHERE id = %s", session_id)
    if again and not rows:
        return
    row = await session_row(db, session_id, lock=True)
    owner = holder(row)
    if owner is not None and token != owner.token:
        raise in_use(owner)
    gone = await fetch(
        db,
        """WITH RECURSIVE family AS (
            SELECT id FROM sessions WHERE id = %s
            UNION SELECT child.id FROM sessions AS child JOIN family ON child.parent = family.id
        ) DELETE FROM sessions WHERE id IN (SELECT id FROM family) RETURNING id""",
        session_id,
    )
    await _after_delete(db, gone)


async def clear(db: Connection) -> int:
    gone = await fetch(db, "DELETE FROM sessions WHERE lease IS NULL OR expires <= clock_timestamp() RETURNING id")
    await _after_delete(db, gone)
    return len(gone)


async def _after_delete(db: Connection, gone: list[Row]) -> None:
    await db.execute("DELETE FROM blobs WHERE NOT EXISTS (SELECT 1 FROM blob_uses WHERE blob_uses.name = blobs.name)")
    for row in gone:
        await tell(db, row["id"])


async def fork(db: Connection, source: Row, fork: StoredSession, end: int, now: int, *, again: bool) -> StoredSession:
    """Rows are copied as they are, whatever they hold; readers give them their new session."""
    if again and await fetch(db, "SELECT 1 FROM sessions WHERE id = %s", fork.id):
        return read_session(await session_row(db, fork.id))
    session = await create(db, fork, now)
    target = (await session_row(db, session.id))["key"]
    await db.execute(_COPY_MESSAGES, (target, source["key"], end))
    seq = 1 + (await fetch(db, "SELECT count(*) AS n FROM messages WHERE session = %s", target))[0]["n"]
    copied = (await db.execute(_COPY_PARTS, (target, seq, target, source["key"], end))).rowcount
    await db.execute(_COPY_BLOB_USES, (target, source["key"], end))
    await db.execute("UPDATE sessions SET seq = %s WHERE key = %s", (seq + copied, target))
    return msgspec.structs.replace(session, seq=seq + copied)


async def fork_point(db: Connection, session: int, at: str | None) -> Row:
    if at is None:
        rows = await fetch(db, "SELECT key, id FROM messages WHERE session = %s ORDER BY key DESC LIMIT 1", session)
        return rows[0] if rows else {"key": 0, "id": ""}
    rows = await fetch(db, "SELECT key, id FROM messages WHERE session = %s AND id = %s", session, at)
    return rows[0] if rows else no_message(at)


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


def holder(row: Row) -> Lease | None:
    """Who owns the session now, by the server's clock."""
    return _lease.decode(row["lease"]) if row["lease"] is not None and row["held"] else None


def lexemes(text: str) -> list[str]:
    """The distinct words of a text, as a search means them."""
    found = {word for word in words.split_words(text) if len(word) <= LEXEME_CHARACTERS}
    return sorted(found)[:LEXEMES]


async def _put_part(db: Connection, session: int, seq: int, row: PartRow, *, draft: bool) -> None:
    body, blobs = (row.body, {}) if draft else split(row.body)
    part, _ = read_part("", row)
    text = "" if draft or part is None else words.searchable(part)
    own = (row.id, seq, draft, len(blobs), row.tool, row.outcome, row.start, row.end, body, lexemes(text))
    kept = await (await db.execute(_PUT_PART, (session, *own, session, row.message_id))).fetchone()
    if kept is None:
        raise PartValidationError(f"there is no message {row.message_id}", field="message_id")
    if blobs:
        await db.execute(_LET_GO, (kept[0], list(blobs)))
    for name, content in blobs.items():
        await db.execute("INSERT INTO blobs VALUES (%s, %s) ON CONFLICT DO NOTHING", (name, content))
        await db.execute("INSERT INTO blob_uses VALUES (%s, %s) ON CONFLICT DO NOTHING", (kept[0], name))


_LET_GO = """
    WITH gone AS (DELETE FROM blob_uses WHERE part = %s AND NOT name = ANY(%s) RETURNING part, name)
    DELETE FROM blobs USING gone WHERE blobs.name = gone.name AND NOT EXISTS (
        SELECT 1 FROM blob_uses WHERE blob_uses.name = gone.name AND blob_uses.part <> gone.part)
"""


async def _take(db: Connection, session: int, item: str, seq: int, now: int, *, again: bool) -> None:
    free = "" if again else "AND NOT taken"
    rows = await fetch(
        db,
        f"UPDATE inbox SET taken = true, seq = %s WHERE session = %s AND id = %s {free} RETURNING key, body",
        seq,
        session,
        item,
    )
    if not rows:
        raise StoreError(f"inbox item {item} is not there or was taken before")
    taken = msgspec.structs.replace(inbox_item(rows[0]["body"]), taken=now)
    await db.execute("UPDATE inbox SET body = %s WHERE key = %s", (encode_record(taken), rows[0]["key"]))
