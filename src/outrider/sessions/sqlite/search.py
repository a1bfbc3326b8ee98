"""Full-text search, and idle maintenance: indexing new parts and deleting the rows of deleted sessions.

A session is indexed when the writer is idle and the session has not changed for a while, and always before a search.
"""

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from outrider.sessions.records import SearchHit, SessionFilter
from outrider.sessions.rows import search_terms
from outrider.sessions.rows.codec import PartRow, read_part
from outrider.sessions.rows.session_rows import filter_conditions
from outrider.sessions.sqlite.reads import IS_DELETED, metadata_condition, restore_blobs
from outrider.sessions.sqlite.writes import release_blobs

INDEX_BATCH = 200  # parts in one transaction
SESSION_BATCH = 500
MAX_CANDIDATES = 2000
SEARCHED_BYTES = search_terms.SEARCHED_CHARACTERS * 4  # the longest encoding of a character


class IndexProgress(NamedTuple):
    """The result of one batch: `has_more` if another batch may find work, `waits` if sessions changed too recently."""

    has_more: bool
    waits: bool


def index_batch(db: sqlite3.Connection, since: int, until: int | None = None) -> IndexProgress:
    """Indexes a batch of parts of the sessions whose last activity is at or after `since` and not after `until`.

    One query finds many sessions. There is no index of the sessions that wait, so a query for each of them would make
    the time for all of them quadratic."""
    waiting = db.execute(
        "SELECT key, seq, indexed, active FROM sessions WHERE deleted = 0 AND active >= ? AND indexed < seq "
        "ORDER BY active LIMIT ?",
        (since, SESSION_BATCH),
    ).fetchall()
    remaining = INDEX_BATCH
    for session, seq, indexed, active in waiting:
        if until is not None and active > until:
            return IndexProgress(has_more=False, waits=True)
        remaining -= _index_session(db, session, seq, indexed)
        if remaining <= 0:
            break
    return IndexProgress(has_more=bool(waiting), waits=False)


def _index_session(db: sqlite3.Connection, session: int, seq: int, indexed: int) -> int:
    """Indexes the next parts of a session; returns their number."""
    parts = db.execute(_UNINDEXED_PARTS, (session, indexed, INDEX_BATCH)).fetchall()
    for key, _, draft, blobs, body in parts:
        text = "" if draft else part_text(db, body, blobs=blobs)
        if text:
            db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (key, search_terms.space_words(text)))
    reached = parts[-1][1] if len(parts) == INDEX_BATCH else seq
    db.execute("UPDATE sessions SET indexed = ? WHERE key = ?", (reached, session))
    return len(parts)


_UNINDEXED_PARTS = """
    SELECT key, seq, draft, blobs, body FROM parts
    WHERE session = ? AND seq > ? AND NOT EXISTS (SELECT 1 FROM words_docsize WHERE id = parts.key)
    ORDER BY seq LIMIT ?
"""


def unindex_part(db: sqlite3.Connection, key: int, text: str) -> None:
    if text and _is_indexed(db, key):
        db.execute(
            "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", (key, search_terms.space_words(text))
        )


def part_text(db: sqlite3.Connection, body: bytes, *, blobs: int) -> str:
    """Returns the searchable text of a part. Only the beginning of large texts is read."""
    part, _ = read_part("", PartRow("", "", restore_blobs(db, body, SEARCHED_BYTES) if blobs else body))
    return search_terms.searchable_text(part) if part is not None else ""


def search_sessions(
    db: sqlite3.Connection, query: search_terms.TextQuery, session_id: str | None, limit: int, filter: SessionFilter
) -> list[SearchHit]:
    if not query.terms:
        return []
    conditions, values = filter_conditions(filter, "?", metadata_condition)
    within = "session.deleted = 0 AND (? IS NULL OR session.id = ?)"
    if conditions:
        within += f" AND session.key IN (SELECT key FROM sessions WHERE {' AND '.join(conditions)})"
    chosen = _SearchScope(within, (session_id, session_id, *values))
    hits = list(_search_titles(db, query, chosen, limit))
    for hit in _search_parts(db, query, chosen):
        if len(hits) >= limit:
            break
        hits.append(hit)
    return hits[:limit]


class _SearchScope(NamedTuple):
    """The condition, with its values, of the sessions in which a search looks."""

    condition: str
    values: tuple[Any, ...]


def _search_titles(
    db: sqlite3.Connection, query: search_terms.TextQuery, scope: _SearchScope, limit: int
) -> Iterator[SearchHit]:
    rows = db.execute(
        f"""SELECT session.id, session.title FROM titles JOIN sessions AS session ON session.key = titles.rowid
        WHERE titles MATCH ? AND {scope.condition} ORDER BY titles.rowid DESC LIMIT ?""",
        (_match_expression(query), *scope.values, limit),
    )
    for id, title in rows:
        if query.phrases_match(title):
            yield SearchHit(session_id=id, title=title, kind="title", snippet=query.make_snippet(title))


def _search_parts(db: sqlite3.Connection, query: search_terms.TextQuery, scope: _SearchScope) -> Iterator[SearchHit]:
    rows = db.execute(
        f"""SELECT session.id, session.title, message.id, part.id, part.tool, part.body, part.blobs
        FROM words JOIN parts AS part ON part.key = words.rowid
        JOIN messages AS message ON message.key = part.message
        JOIN sessions AS session ON session.key = part.session
        WHERE words MATCH ? AND {scope.condition} ORDER BY words.rowid DESC LIMIT ?""",
        (_match_expression(query), *scope.values, MAX_CANDIDATES),
    )
    for id, title, message_id, part_id, tool, body, blobs in rows:
        text = part_text(db, body, blobs=blobs)
        if query.phrases_match(text):
            yield SearchHit(
                session_id=id,
                title=title,
                kind="tool" if tool else "text",
                snippet=query.make_snippet(text),
                message_id=message_id,
                part_id=part_id,
            )


def _match_expression(query: search_terms.TextQuery) -> str:
    """Returns an FTS5 expression with every word quoted, so that no word is parsed as an operator."""
    quoted = [f'"{word}"' for term in query.terms for word in term.words[:-1]]
    quoted += [f'"{term.words[-1]}"{"*" if term.prefix else ""}' for term in query.terms]
    return " AND ".join(quoted)


def _is_indexed(db: sqlite3.Connection, key: int) -> bool:
    return db.execute("SELECT 1 FROM words_docsize WHERE id = ?", (key,)).fetchone() is not None


DELETE_BATCH = 200
# Every process indexes its own sessions; the first run of a process also indexes what a crashed one left.
LOOK_BACK_MS = 60_000
# A running session changes often, so it is indexed when it has not changed for this time, which is less than
# LOOK_BACK_MS: a session that waits is not skipped later. Most calls of models and tools take less.
QUIET_MS = 20_000


class IdleMaintenance:
    """The maintenance step that the writer calls while idle."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._since = 0

    def __call__(self, db: sqlite3.Connection) -> float | None:
        """Returns the seconds until the next step, 0 if more work is due, and None if no work waits."""
        progress = self._index(db, self._clock() - QUIET_MS)
        if progress.has_more or delete_batch(db):
            return 0
        return QUIET_MS / 1000 if progress.waits else None

    def index_recent(self, db: sqlite3.Connection) -> bool:
        """Indexes a batch of what is stored, also of running sessions; returns True if more may remain."""
        return self._index(db, None).has_more

    def _index(self, db: sqlite3.Connection, until: int | None) -> IndexProgress:
        now = self._clock()
        progress = index_batch(db, min(self._since, now - LOOK_BACK_MS), until)
        if not progress.has_more:
            self._since = now - LOOK_BACK_MS
        return progress


def delete_batch(db: sqlite3.Connection) -> bool:
    row = db.execute(f"SELECT key FROM sessions WHERE {IS_DELETED} LIMIT 1").fetchone()
    if row is None:
        return False
    session = row[0]
    parts = db.execute(
        "SELECT key, blobs, body FROM parts WHERE session = ? LIMIT ?", (session, DELETE_BATCH)
    ).fetchall()
    for key, blobs, body in parts:
        unindex_part(db, key, part_text(db, body, blobs=blobs))
        if blobs:
            release_blobs(db, key)
        db.execute("DELETE FROM parts WHERE key = ?", (key,))
    if len(parts) < DELETE_BATCH:
        for table in ("messages", "inbox", "approvals"):
            db.execute(f"DELETE FROM {table} WHERE session = ?", (session,))
        db.execute("DELETE FROM sessions WHERE key = ?", (session,))
    return True
