"""Full-text search with lexemes that `split_lexemes` computes, and the queries of usage statistics."""

from collections.abc import Iterator

from outrider.sessions.postgres.reads import RowDict, fetch_rows, metadata_condition, restore_blobs, session_row
from outrider.sessions.postgres.schema import Connection
from outrider.sessions.records import Grouping, SearchHit, SessionFilter, UsageRow
from outrider.sessions.rows import search_terms, statistics
from outrider.sessions.rows.codec import PartRow, read_part
from outrider.sessions.rows.session_rows import filter_conditions

MAX_CANDIDATES = 200


async def search_sessions(
    db: Connection, query: search_terms.TextQuery, session_id: str | None, limit: int, filter: SessionFilter
) -> list[SearchHit]:
    if not query.terms:
        return []
    wanted, values = filter_conditions(filter, "%s", metadata_condition)
    within = f"AND session.key IN (SELECT key FROM sessions WHERE {' AND '.join(wanted)})" if wanted else ""
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
    found = await fetch_rows(
        db,
        "SELECT session.id AS session_id, session.title, message.id AS message_id, part.id, part.tool, part.body, "
        "part.blobs FROM parts AS part JOIN messages AS message ON message.key = part.message "
        "JOIN sessions AS session ON session.key = part.session "
        f"WHERE part.words @@ %s::tsquery AND (%s::text IS NULL OR session.id = %s) {within} "
        "ORDER BY part.key DESC LIMIT %s",
        expression, session_id, session_id, *values, MAX_CANDIDATES + limit,
    )  # fmt: skip
    hits += _part_hits(query, found, await restore_blobs(db, found))
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
        calls = (statistics.CallUsage(row["tool"], row["outcome"], row["started"], row["ended"]) for row in rows)
        return statistics.usage_by_tool(calls)
    query = "SELECT body FROM messages WHERE (role = 'assistant' OR position(%s in body) > 0)"
    when = "created >= %s AND created < %s AND (%s::bigint IS NULL OR session = %s)"
    rows = await fetch_rows(db, f"{query} AND {when}", statistics.USAGE_MARKER, *inside)
    answers = (statistics.decode_answer_usage(row["body"]) for row in rows)
    return statistics.usage_by_answer((answer for answer in answers if answer), by)
