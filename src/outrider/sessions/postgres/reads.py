"""SQL queries that read sessions from Postgres."""

from collections.abc import Iterator
from typing import Any

import msgspec
from psycopg.rows import dict_row

from outrider.sessions.postgres.schema import Connection
from outrider.sessions.records import (
    Change,
    Grouping,
    SearchHit,
    SessionChange,
    SessionFilter,
    SessionPage,
    SessionTranscript,
    UsageRow,
)
from outrider.sessions.rows import search_terms, session_rows
from outrider.sessions.rows.codec import (
    UNREADABLE,
    MessageRow,
    OldMessageCutoff,
    PartRow,
    TextBudget,
    blob_names,
    insert_blobs,
    read_part,
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

BLOB_BATCH = 16  # parts whose large texts are fetched together
RowDict = dict[str, Any]


async def fetch_rows(db: Connection, query: str, *values: object) -> list[RowDict]:
    async with db.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query.encode(), values)
        return await cursor.fetchall()


async def session_row(db: Connection, session_id: str, *, lock: bool = False) -> RowDict:
    query = "SELECT *, expires > clock_timestamp() AS held FROM sessions WHERE id = %s"
    rows = await fetch_rows(db, query + (" FOR UPDATE" if lock else ""), session_id)
    return rows[0] if rows else raise_no_session(session_id)


async def list_sessions(db: Connection, filter: SessionFilter, limit: int, after: str | None) -> SessionPage:
    conditions, values = filter_conditions(filter, "%s", metadata_condition)
    if after:
        conditions.append('(active, id COLLATE "C") < (%s, %s)')
        values += parse_cursor(after)
    where = " AND ".join(["true", *conditions])
    query = f'SELECT * FROM sessions WHERE {where} ORDER BY active DESC, id COLLATE "C" DESC LIMIT %s'
    return build_page(await fetch_rows(db, query, *values, limit + 1), limit)


def metadata_condition(name: str, value: object) -> tuple[str, list[Any]]:
    return "sessions.metadata -> %s::text = %s::jsonb", [name, msgspec.json.encode(value).decode()]


async def load_transcript(
    db: Connection, session_id: str, limit: int | None, before: str | None, after: str | None
) -> SessionTranscript:
    session = await session_row(db, session_id)
    count = None if limit is None else limit + 1
    mark = 2**62 if after is None else 0
    if after or before:
        mark = await _message_key(db, session["key"], after or before)
    side, order = (">", "ASC") if after is not None else ("<", "DESC")
    rows = await fetch_rows(
        db,
        f"SELECT key, id, role, created, body FROM messages WHERE session = %s AND key {side} %s "
        f"ORDER BY key {order} LIMIT %s",
        session["key"],
        mark,
        count,
    )
    rows, has_more = (rows[:limit], len(rows) > limit) if limit is not None else (rows, False)
    if after is None:
        rows.reverse()
    first, last = (not after, not has_more) if after is not None else (not has_more, before is None)
    messages = [MessageRow(row["id"], row["role"], row["created"], row["body"]) for row in rows]
    parts = await _read_parts(db, {row["key"]: row["id"] for row in rows})
    return build_transcript(decode_session(session), messages, parts, first=first, last=last)


async def load_empty(db: Connection, session_id: str) -> SessionTranscript | None:
    """Returns the transcript of a session without messages, such as a job that starts; None if it has some."""
    query = """SELECT *, EXISTS (SELECT 1 FROM messages WHERE messages.session = sessions.key) AS has_messages
        FROM sessions WHERE id = %s"""
    rows = await fetch_rows(db, query, session_id)
    session = rows[0] if rows else raise_no_session(session_id)
    return None if session["has_messages"] else build_transcript(decode_session(session), [], [])


async def load_abridged(db: Connection, session_id: str, text_bytes: int) -> tuple[SessionTranscript, bool]:
    """Reads messages page by page from the last to the first, and only the newest large texts."""
    session = await session_row(db, session_id)
    budget = TextBudget(text_bytes)
    cutoff, loaded, is_cut = OldMessageCutoff(budget), list[_ReadMessage](), False
    query = (
        "SELECT key, id, role, created, body FROM messages WHERE session = %s AND key < %s ORDER BY key DESC LIMIT %s"
    )
    before = 2**62
    while not is_cut and (page := await fetch_rows(db, query, session["key"], before, MESSAGE_PAGE)):
        before = page[-1]["key"]
        for head, parts in await _read_page(db, page, budget):
            loaded.append((head, parts))
            if cutoff.is_reached(head.id, head.role, (part.row.body for part in parts)):
                is_cut, before = True, next(row["key"] for row in page if row["id"] == head.id)
                break
    if is_cut:
        loaded += await _read_old_messages(db, session["key"], before, budget)
    loaded.reverse()
    heads = [head for head, _ in loaded]
    transcript = build_transcript(decode_session(session), heads, _drain_parts(loaded), first=not is_cut)
    return transcript, is_cut or budget.is_spent


MESSAGE_PAGE = 500
_ReadMessage = tuple[MessageRow, list[StoredPart]]


async def _read_old_messages(db: Connection, session: int, before: int, budget: TextBudget) -> list[_ReadMessage]:
    """Returns older messages that an open session needs, the last one first: messages of the user, which have the
    settings of the session, and the last call of each tool, which may have the state of the tool."""
    rows = await fetch_rows(
        db,
        """SELECT key, id, role, created, body FROM messages WHERE session = %s AND key < %s
        AND (role = 'user' OR key IN (SELECT message FROM parts WHERE key IN (
            SELECT max(key) FROM parts WHERE session = %s AND outcome IS NOT NULL GROUP BY tool)))
        ORDER BY key DESC""",
        session,
        before,
        session,
    )
    messages: list[_ReadMessage] = []
    for start in range(0, len(rows), MESSAGE_PAGE):
        messages += await _read_page(db, rows[start : start + MESSAGE_PAGE], budget)
    return messages


async def _read_page(db: Connection, heads: list[RowDict], budget: TextBudget) -> list[_ReadMessage]:
    """Returns messages with their parts. `heads` are in the order in which the budget is used, from the last one on."""
    roles = {row["key"]: row["role"] for row in heads}
    query = "SELECT id, message, body, draft, blobs FROM parts WHERE message = ANY(%s) ORDER BY message DESC, key"
    parts = await fetch_rows(db, query, list(roles))
    large = [row for row in parts if row["blobs"]]
    names = list({name for row in large for name in blob_names(row["body"])})
    query = "SELECT name, octet_length(body) AS size FROM blobs WHERE name = ANY(%s)"
    sizes = {row["name"]: row["size"] for row in await fetch_rows(db, query, names)} if names else {}
    for row in parts:
        role = roles[row["message"]]
        if row["blobs"]:
            row["body"] = budget.abridge(row["body"], row["message"], role)
            budget.left -= sum(sizes.get(name, 0) for name in blob_names(row["body"]))
        else:
            row["body"] = budget.abridge_small(row["body"], row["message"], role)
    for start in range(0, len(large), BLOB_BATCH):
        batch = large[start : start + BLOB_BATCH]
        for row, body in zip(batch, await restore_blobs(db, batch), strict=True):
            row["body"] = body
    by_message: dict[int, list[StoredPart]] = {key: [] for key in roles}
    ids = {row["key"]: row["id"] for row in heads}
    for row in parts:
        by_message[row["message"]].append(
            StoredPart(PartRow(row["id"], ids[row["message"]], row["body"]), row["draft"])
        )
    return [(MessageRow(row["id"], row["role"], row["created"], row["body"]), by_message[row["key"]]) for row in heads]


def _drain_parts(messages: list[_ReadMessage]) -> Iterator[StoredPart]:
    """Yields parts and releases their rows, so that large texts are not in memory twice."""
    for _, parts in messages:
        yield from parts
        parts.clear()


async def _message_key(db: Connection, session: int, message_id: str | None) -> int:
    rows = await fetch_rows(db, "SELECT key FROM messages WHERE session = %s AND id = %s", session, message_id)
    return rows[0]["key"] if rows else raise_no_message(message_id or "")


async def _read_parts(db: Connection, messages: dict[int, str]) -> list[StoredPart]:
    rows = await fetch_rows(
        db,
        "SELECT id, message, body, draft, blobs FROM parts WHERE message = ANY(%s) ORDER BY key",
        list(messages),
    )
    bodies = await restore_blobs(db, rows)
    return [
        StoredPart(PartRow(row["id"], messages[row["message"]], body), row["draft"])
        for row, body in zip(rows, bodies, strict=True)
    ]


async def restore_blobs(db: Connection, rows: list[RowDict]) -> list[bytes]:
    """Returns the bodies with their blobs inserted. If a blob is missing, the body is bytes that decode as a damaged
    row."""
    names = {name for row in rows if row["blobs"] for name in blob_names(row["body"])}
    blob_rows = await fetch_rows(db, "SELECT name, body FROM blobs WHERE name = ANY(%s)", list(names)) if names else []
    blobs = {row["name"]: row["body"] for row in blob_rows}
    return [_restore_body(row["body"], blobs) if row["blobs"] else row["body"] for row in rows]


def _restore_body(body: bytes, blobs: dict[str, bytes]) -> bytes:
    try:
        return insert_blobs(body, blobs.__getitem__)
    except UNREADABLE:
        return b"a large text of this part is missing: " + body


async def list_changes(db: Connection, session_id: str, after: int, limit: int = CHANGES_LIMIT) -> list[Change]:
    """Returns up to `limit` changes with sequence numbers above `after`, in order."""
    session = await session_row(db, session_id)
    key, id = session["key"], session["id"]
    changes: list[Change] = []
    if session["changed"] > after:
        changes.append(SessionChange(session["changed"], decode_session(session)))
    newer = "WHERE session = %s AND seq > %s ORDER BY seq LIMIT %s"
    for row in await fetch_rows(db, f"SELECT seq, id, role, created, body FROM messages {newer}", key, after, limit):
        changes.append(message_change(id, row["seq"], MessageRow(row["id"], row["role"], row["created"], row["body"])))
    changes += await _part_changes(db, session, after, limit)
    for table in ("inbox", "approvals"):
        for row in await fetch_rows(db, f"SELECT seq, body FROM {table} {newer}", key, after, limit):
            changes.append(decode_record_change(table, row["seq"], row["body"]))
    return sorted(changes, key=lambda change: change.seq)[:limit]


async def _part_changes(db: Connection, session: RowDict, after: int, limit: int) -> list[Change]:
    rows = await fetch_rows(
        db,
        "SELECT part.seq, part.id, message.id AS message_id, part.body, part.draft, part.blobs FROM parts AS part "
        "JOIN messages AS message ON message.key = part.message "
        "WHERE part.session = %s AND part.seq > %s ORDER BY part.seq LIMIT %s",
        session["key"],
        after,
        limit,
    )
    return [
        part_change(session["id"], row["seq"], StoredPart(PartRow(row["id"], row["message_id"], body), row["draft"]))
        for row, body in zip(rows, await restore_blobs(db, rows), strict=True)
    ]


MAX_CANDIDATES = 200


async def search_sessions(
    db: Connection, query: search_terms.TextQuery, session_id: str | None, limit: int, filter: SessionFilter
) -> list[SearchHit]:
    if not query.terms:
        return []
    conditions, values = filter_conditions(filter, "%s", metadata_condition)
    within = f"AND session.key IN (SELECT key FROM sessions WHERE {' AND '.join(conditions)})" if conditions else ""
    expression = _tsquery_expression(query)
    titles = await fetch_rows(
        db,
        "SELECT id, title FROM sessions AS session WHERE words @@ %s::tsquery AND (%s::text IS NULL OR id = %s) "
        f"{within} ORDER BY key DESC LIMIT %s",
        expression, session_id, session_id, *values, limit,
    )  # fmt: skip
    hits = [
        SearchHit(session_id=row["id"], title=row["title"], kind="title", snippet=query.make_snippet(row["title"]))
        for row in titles
        if query.phrases_match(row["title"])
    ]
    part_rows = await fetch_rows(
        db,
        "SELECT session.id AS session_id, session.title, message.id AS message_id, part.id, part.tool, part.body, "
        "part.blobs FROM parts AS part JOIN messages AS message ON message.key = part.message "
        "JOIN sessions AS session ON session.key = part.session "
        f"WHERE part.words @@ %s::tsquery AND (%s::text IS NULL OR session.id = %s) {within} "
        "ORDER BY part.key DESC LIMIT %s",
        expression, session_id, session_id, *values, MAX_CANDIDATES + limit,
    )  # fmt: skip
    hits += _part_hits(query, part_rows, await restore_blobs(db, part_rows))
    return hits[:limit]


def _part_hits(query: search_terms.TextQuery, rows: list[RowDict], bodies: list[bytes]) -> Iterator[SearchHit]:
    for row, body in zip(rows, bodies, strict=True):
        part, _ = read_part("", PartRow("", "", body))
        text = search_terms.searchable_text(part) if part is not None else ""
        if text and query.phrases_match(text):
            yield SearchHit(
                session_id=row["session_id"],
                title=row["title"],
                kind="tool" if row["tool"] else "text",
                snippet=query.make_snippet(text),
                message_id=row["message_id"],
                part_id=row["id"],
            )


def _tsquery_expression(query: search_terms.TextQuery) -> str:
    """Returns a tsquery string with every word quoted, so that no word is parsed as an operator."""
    quoted = [f"'{word}'" for term in query.terms for word in term.words[:-1]]
    quoted += [f"'{term.words[-1]}'{':*' if term.prefix else ''}" for term in query.terms]
    return " & ".join(quoted)


async def usage_statistics(
    db: Connection, by: Grouping, since: int | None, until: int | None, session_id: str | None
) -> list[UsageRow]:
    session = (await session_row(db, session_id))["key"] if session_id else None
    inside = (since or 0, until if until is not None else 2**62, session, session)
    if by == "tool":
        query = "SELECT tool, outcome, started, ended FROM parts WHERE outcome IS NOT NULL"
        when = "started >= %s AND started < %s"
        rows = await fetch_rows(db, f"{query} AND {when} AND (%s::bigint IS NULL OR session = %s)", *inside)
        calls = (session_rows.CallUsage(row["tool"], row["outcome"], row["started"], row["ended"]) for row in rows)
        return session_rows.usage_by_tool(calls)
    query = "SELECT body FROM messages WHERE (role = 'assistant' OR position(%s in body) > 0)"
    when = "created >= %s AND created < %s AND (%s::bigint IS NULL OR session = %s)"
    rows = await fetch_rows(db, f"{query} AND {when}", session_rows.USAGE_MARKER, *inside)
    answers = (session_rows.decode_answer_usage(row["body"]) for row in rows)
    return session_rows.usage_by_answer((answer for answer in answers if answer), by)
