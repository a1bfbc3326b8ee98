"""Full-text search by lexemes of our own making, and the rows that usage statistics are folded from."""

from collections.abc import Iterator

from outrider.sessions.postgres.reads import Row, fetch, session_row, whole
from outrider.sessions.postgres.schema import Connection
from outrider.sessions.records import Grouping, SearchHit, UsageRow
from outrider.sessions.rows import search_terms as words
from outrider.sessions.rows import statistics
from outrider.sessions.rows.codec import PartRow, read_part

CANDIDATES = 200


async def search(db: Connection, query: words.Query, session_id: str | None, limit: int) -> list[SearchHit]:
    if not query.terms:
        return []
    wanted = _expression(query)
    titles = await fetch(
        db,
        "SELECT id, title FROM sessions WHERE words @@ %s::tsquery AND (%s::text IS NULL OR id = %s) "
        "ORDER BY key DESC LIMIT %s",
        wanted, session_id, session_id, limit,
    )  # fmt: skip
    hits = [
        SearchHit(session_id=row["id"], title=row["title"], kind="title", snippet=query.snippet(row["title"]))
        for row in titles
        if query.phrases_match(row["title"])
    ]
    found = await fetch(
        db,
        "SELECT session.id AS session_id, session.title, message.id AS message_id, part.id, part.tool, part.body, "
        "part.blobs FROM parts AS part JOIN messages AS message ON message.key = part.message "
        "JOIN sessions AS session ON session.key = part.session "
        "WHERE part.words @@ %s::tsquery AND (%s::text IS NULL OR session.id = %s) ORDER BY part.key DESC LIMIT %s",
        wanted, session_id, session_id, CANDIDATES + limit,
    )  # fmt: skip
    hits += _part_hits(query, found, await whole(db, found))
    return hits[:limit]


def _part_hits(query: words.Query, rows: list[Row], bodies: list[bytes]) -> Iterator[SearchHit]:
    for row, body in zip(rows, bodies, strict=True):
        part, _ = read_part("", PartRow("", "", body))
        text = words.searchable(part) if part is not None else ""
        if text and query.phrases_match(text):
            yield SearchHit(
                session_id=row["session_id"],
                title=row["title"],
                kind="tool" if row["tool"] else "text",
                snippet=query.snippet(text),
                message_id=row["message_id"],
                part_id=row["id"],
            )


def _expression(query: words.Query) -> str:
    """Every word in quotes, so that nothing in a query is taken for syntax."""
    quoted = [f"'{word}'" for term in query.terms for word in term.words[:-1]]
    quoted += [f"'{term.words[-1]}'{':*' if term.prefix else ''}" for term in query.terms]
    return " & ".join(quoted)


async def usage(
    db: Connection, by: Grouping, since: int | None, until: int | None, session_id: str | None
) -> list[UsageRow]:
    session = (await session_row(db, session_id))["key"] if session_id else None
    inside = (since or 0, until if until is not None else 2**62, session, session)
    if by == "tool":
        query = "SELECT tool, outcome, started, ended FROM parts WHERE outcome IS NOT NULL"
        when = "started >= %s AND started < %s"
        rows = await fetch(db, f"{query} AND {when} AND (%s::bigint IS NULL OR session = %s)", *inside)
        calls = (statistics.CallUsage(row["tool"], row["outcome"], row["started"], row["ended"]) for row in rows)
        return statistics.by_tool(calls)
    query = "SELECT body FROM messages WHERE (role = 'assistant' OR position(%s in body) > 0)"
    when = "created >= %s AND created < %s AND (%s::bigint IS NULL OR session = %s)"
    rows = await fetch(db, f"{query} AND {when}", statistics.USED, *inside)
    answers = (statistics.read_answer(row["body"]) for row in rows)
    return statistics.by_answer((answer for answer in answers if answer), by)
