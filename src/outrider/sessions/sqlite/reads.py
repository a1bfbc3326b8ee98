"""SQL queries that read sessions. Each function runs inside a read transaction or the writer's transaction."""

import heapq
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from outrider.sessions.records import (
    Change,
    Grouping,
    SessionChange,
    SessionFilter,
    SessionPage,
    SessionTranscript,
    StoredSession,
    UsageRow,
)
from outrider.sessions.rows import session_rows
from outrider.sessions.rows.codec import (
    UNREADABLE,
    MessageRow,
    OldMessageCutoff,
    PartRow,
    TextBudget,
    as_bytes,
    insert_blobs,
)
from outrider.sessions.rows.session_rows import (
    CHANGES_LIMIT,
    StoredPart,
    build_page,
    build_transcript,
    decode_record_change,
    decode_session,
    filter_conditions,
    message_change,
    parse_cursor,
    part_change,
    raise_no_message,
    raise_no_session,
)

# A condition for sessions whose rows are not deleted yet: their ids are "deleted KEY", so the index of ids finds them.
IS_DELETED = "id >= 'deleted ' AND id < 'deleted!' AND deleted = 1"


def session_row(db: sqlite3.Connection, session_id: str) -> sqlite3.Row:
    cursor = db.execute("SELECT * FROM sessions WHERE id = ? AND deleted = 0", (session_id,))
    cursor.row_factory = sqlite3.Row
    row = cursor.fetchone()
    if row is None:
        raise_no_session(session_id)
    return row


def get_session(db: sqlite3.Connection, session_id: str) -> StoredSession:
    return decode_session(session_row(db, session_id))


def sequence_numbers(db: sqlite3.Connection, session_ids: Sequence[str]) -> dict[str, int]:
    """Returns the sequence numbers of the sessions that exist."""
    chosen = msgspec.json.encode(session_ids).decode()
    query = "SELECT id, seq FROM sessions WHERE id IN (SELECT value FROM json_each(?)) AND deleted = 0"
    return dict(db.execute(query, (chosen,)).fetchall())


def list_sessions(db: sqlite3.Connection, filter: SessionFilter, limit: int, after: str | None) -> SessionPage:
    conditions, values = filter_conditions(filter, "?", metadata_condition)
    if after:
        conditions.append("(active, id) < (?, ?)")
        values += parse_cursor(after)
    where = " AND ".join(["deleted = 0", *conditions])
    cursor = db.execute(
        f"SELECT * FROM sessions WHERE {where} ORDER BY active DESC, id DESC LIMIT ?", (*values, limit + 1)
    )
    cursor.row_factory = sqlite3.Row
    return build_page(cursor.fetchall(), limit)


def metadata_condition(name: str, value: object) -> tuple[str, list[Any]]:
    """Compares types too: `json_each` has 1 for true and NULL for null."""
    valid = "CASE WHEN json_valid(sessions.metadata) THEN sessions.metadata END"  # a row may be damaged
    if value is None or isinstance(value, bool):
        matches, values = "item.type = ?", [msgspec.json.encode(value).decode()]
    else:
        types = "'text'" if isinstance(value, str) else "'integer', 'real'"
        matches, values = f"item.type IN ({types}) AND item.atom = ?", [value]
    return f"EXISTS (SELECT 1 FROM json_each({valid}) AS item WHERE item.key = ? AND {matches})", [name, *values]


def load_transcript(
    db: sqlite3.Connection, session_id: str, limit: int | None, before: str | None, after: str | None
) -> SessionTranscript:
    session = session_row(db, session_id)
    key, count = session["key"], -1 if limit is None else limit + 1
    query = "SELECT key, id, role, created, body FROM messages WHERE session = ?"
    if after is not None:
        start = _message_key(db, key, after) if after else 0
        rows = db.execute(f"{query} AND key > ? ORDER BY key LIMIT ?", (key, start, count)).fetchall()
        rows, has_more = (rows[:limit], len(rows) > limit) if limit is not None else (rows, False)
        first, last = not after, not has_more
    else:
        end = _message_key(db, key, before) if before is not None else 2**62
        rows = db.execute(f"{query} AND key < ? ORDER BY key DESC LIMIT ?", (key, end, count)).fetchall()
        rows, has_more = (rows[:limit], len(rows) > limit) if limit is not None else (rows, False)
        rows.reverse()
        first, last = not has_more, before is None
    messages = [MessageRow(*row[1:]) for row in rows]
    parts = (part for row in rows for part in _read_parts(db, row[0], row[1]))
    return build_transcript(decode_session(session), messages, parts, first=first, last=last)


def load_abridged(db: sqlite3.Connection, session_id: str, text_bytes: int) -> tuple[SessionTranscript, bool]:
    """Reads messages from the last to the first, so that the newest large texts are those that are complete."""
    session = session_row(db, session_id)
    budget = TextBudget(text_bytes)
    cutoff, loaded, is_cut = OldMessageCutoff(budget), list[_ReadMessage](), False
    query = "SELECT key, id, role, created, body FROM messages WHERE session = ? ORDER BY key DESC"
    for row in db.execute(query, (session["key"],)):
        parts = list(_read_parts(db, row[0], row[1], (budget, row[2])))
        loaded.append((row, parts))
        if cutoff.is_reached(row[1], row[2], (part.row.body for part in parts)):
            loaded += _read_old_messages(db, session["key"], row[0], budget)
            is_cut = True
            break
    loaded.reverse()
    messages = [MessageRow(*row[1:]) for row, _ in loaded]
    parts = _drain_parts(loaded)
    transcript = build_transcript(decode_session(session), messages, parts, first=not is_cut)
    return transcript, is_cut or budget.is_spent


_ReadMessage = tuple[tuple[Any, ...], list[StoredPart]]


def _drain_parts(messages: list[_ReadMessage]) -> Iterator[StoredPart]:
    """Yields the parts and releases their rows, so that their texts are not in memory twice."""
    for _, parts in messages:
        yield from parts
        parts.clear()


def _read_old_messages(db: sqlite3.Connection, session: int, before: int, budget: TextBudget) -> Iterator[_ReadMessage]:
    """Yields older messages that an open session needs, the last one first: messages of the user, which have the
    settings of the session, and the last call of each tool, which may have the state of the tool."""
    # The plus sign selects the index of calls, which has all of these columns.
    calls = "SELECT max(key) FROM parts WHERE +session = ? AND outcome IS NOT NULL GROUP BY tool"
    rows = db.execute(
        f"""SELECT key, id, role, created, body FROM messages WHERE session = ? AND key < ?
        AND (role = 'user' OR key IN (SELECT message FROM parts WHERE key IN ({calls}))) ORDER BY key DESC""",
        (session, before, session),
    )
    for row in rows:
        yield row, list(_read_parts(db, row[0], row[1], (budget, row[2])))


def _message_key(db: sqlite3.Connection, session: int, message_id: str) -> int:
    row = db.execute("SELECT key FROM messages WHERE session = ? AND id = ?", (session, message_id)).fetchone()
    return row[0] if row else raise_no_message(message_id)


def _read_parts(
    db: sqlite3.Connection, message: int, message_id: str, limit: tuple[TextBudget, str] | None = None
) -> Iterator[StoredPart]:
    """Returns the parts of a message. `limit` is the budget of an abridged transcript, and the role of the message."""
    rows = db.execute("SELECT id, body, draft, blobs FROM parts WHERE message = ? ORDER BY key", (message,))
    for id, stored, draft, blobs in rows:
        body = stored
        if limit is not None and not blobs:
            budget, role = limit
            body = budget.abridge_small(stored, message, role)
        elif blobs and limit is not None:
            budget, role = limit
            body = restore_blobs(db, budget.abridge(stored, message, role))
            budget.left -= len(body)
        elif blobs:
            body = restore_blobs(db, stored)
        yield StoredPart(PartRow(id, message_id, body), bool(draft))


def restore_blobs(db: sqlite3.Connection, body: bytes, limit: int | None = None) -> bytes:
    """Returns a row with its blobs inserted, with `limit` only that many bytes of each; if one is missing, bytes that
    decode as a damaged row."""

    def fetch(name: str) -> bytes:
        if limit is None:
            return db.execute("SELECT body FROM blobs WHERE name = ?", (name,)).fetchone()[0]
        key = db.execute("SELECT rowid FROM blobs WHERE name = ?", (name,)).fetchone()[0]
        with db.blobopen("blobs", "body", key, readonly=True) as blob:
            return blob.read(limit).decode(errors="ignore").encode()

    try:
        return insert_blobs(body, fetch)
    except UNREADABLE:
        return b"a large text of this part is missing: " + as_bytes(body)


def list_changes(db: sqlite3.Connection, session_id: str, after: int, limit: int = CHANGES_LIMIT) -> list[Change]:
    """Returns up to `limit` changes with sequence numbers above `after`, in order."""
    session = session_row(db, session_id)
    session_changes = [SessionChange(session["changed"], decode_session(session))] if session["changed"] > after else []
    sources: Iterable[Iterable[Change]] = (
        session_changes,
        _message_changes(db, session, after, limit),
        _part_changes(db, session, after, limit),
        _record_changes(db, session, after, "inbox"),
        _record_changes(db, session, after, "approvals"),
    )
    merged = heapq.merge(*sources, key=lambda change: change.seq)
    return [change for change, _ in zip(merged, range(limit), strict=False)]


def _message_changes(db: sqlite3.Connection, session: sqlite3.Row, after: int, limit: int) -> Iterator[Change]:
    rows = db.execute(
        "SELECT seq, id, role, created, body FROM messages WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?",
        (session["key"], after, limit),
    )
    for seq, *row in rows:
        yield message_change(session["id"], seq, MessageRow(*row))


def _part_changes(db: sqlite3.Connection, session: sqlite3.Row, after: int, limit: int) -> Iterator[Change]:
    rows = db.execute(
        """SELECT part.seq, part.id, message.id, part.body, part.draft, part.blobs
        FROM parts AS part JOIN messages AS message ON message.key = part.message
        WHERE part.session = ? AND part.seq > ? ORDER BY part.seq LIMIT ?""",
        (session["key"], after, limit),
    )
    for seq, id, message_id, body, draft, blobs in rows:
        row = PartRow(id, message_id, restore_blobs(db, body) if blobs else body)
        yield part_change(session["id"], seq, StoredPart(row, bool(draft)))


def _record_changes(db: sqlite3.Connection, session: sqlite3.Row, after: int, table: str) -> Iterator[Change]:
    state = "AND taken IN (0, 1)" if table == "inbox" else ""  # names every column of the index before `seq`
    query = f"SELECT seq, body FROM {table} WHERE session = ? {state} AND seq > ? ORDER BY seq"
    for seq, body in db.execute(query, (session["key"], after)):
        yield decode_record_change(table, seq, body)


def usage_statistics(
    db: sqlite3.Connection, by: Grouping, since: int | None, until: int | None, session_id: str | None
) -> list[UsageRow]:
    session = session_row(db, session_id)["key"] if session_id else None
    inside = (since or 0, until if until is not None else 2**62, session, session)
    return (
        session_rows.usage_by_tool(_call_usage(db, inside))
        if by == "tool"
        else session_rows.usage_by_answer(_answer_usage(db, inside), by)
    )


def _call_usage(db: sqlite3.Connection, inside: tuple[Any, ...]) -> Iterator[session_rows.CallUsage]:
    rows = db.execute(
        f"""SELECT tool, outcome, start, end FROM parts
        WHERE outcome IS NOT NULL AND start >= ? AND start < ? AND (? IS NULL OR session = ?)
        AND session NOT IN (SELECT key FROM sessions WHERE {IS_DELETED})""",
        inside,
    )
    for tool, outcome, start, end in rows:
        yield session_rows.CallUsage(tool, outcome, start, end)


def _answer_usage(db: sqlite3.Connection, inside: tuple[Any, ...]) -> Iterator[session_rows.AnswerUsage]:
    rows = db.execute(
        f"""SELECT body FROM messages
        WHERE (role = 'assistant' OR instr(body, ?) > 0) AND created >= ? AND created < ?
        AND (? IS NULL OR session = ?) AND session NOT IN (SELECT key FROM sessions WHERE {IS_DELETED})""",
        (session_rows.USAGE_MARKER, *inside),
    )
    for (body,) in rows:
        answer = session_rows.decode_answer_usage(body)
        if answer is not None:
            yield answer
