"""Full-text search. Words enter the index a little later than rows enter the tables, and always before a search."""

import sqlite3
from collections.abc import Callable, Iterator

from outrider.sessions.records import SearchHit
from outrider.sessions.rows import search_terms as words
from outrider.sessions.rows.codec import PartRow, read_part
from outrider.sessions.sqlite.reads import whole
from outrider.sessions.sqlite.writes import drop_blobs

STEP = 200
CANDIDATES = 2000


def index_some(db: sqlite3.Connection, since: int) -> bool:
    """Index a few parts of sessions that were active since; says whether there may be more."""
    row = db.execute(
        "SELECT key, seq, indexed FROM sessions WHERE deleted = 0 AND active >= ? AND indexed < seq LIMIT 1", (since,)
    ).fetchone()
    if row is None:
        return False
    session, seq, indexed = row
    parts = db.execute(
        "SELECT key, seq, draft, blobs, body FROM parts WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?",
        (session, indexed, STEP),
    ).fetchall()
    for key, _, draft, blobs, body in parts:
        text = "" if draft else text_of(db, body, blobs=blobs)
        if text and not _is_indexed(db, key):
            db.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (key, words.spaced(text)))
    reached = parts[-1][1] if len(parts) == STEP else seq
    db.execute("UPDATE sessions SET indexed = ? WHERE key = ?", (reached, session))
    return True


def unindex(db: sqlite3.Connection, key: int, text: str) -> None:
    if text and _is_indexed(db, key):
        db.execute("INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)", (key, words.spaced(text)))


def text_of(db: sqlite3.Connection, body: bytes, *, blobs: int) -> str:
    part, _ = read_part("", PartRow("", "", whole(db, body) if blobs else body))
    return words.searchable(part) if part is not None else ""


def search(db: sqlite3.Connection, query: words.Query, session_id: str | None, limit: int) -> list[SearchHit]:
    if not query.terms:
        return []
    hits = list(_titles(db, query, session_id, limit))
    for hit in _parts(db, query, session_id):
        if len(hits) >= limit:
            break
        hits.append(hit)
    return hits[:limit]


def _titles(db: sqlite3.Connection, query: words.Query, session_id: str | None, limit: int) -> Iterator[SearchHit]:
    rows = db.execute(
        """SELECT session.id, session.title FROM titles JOIN sessions AS session ON session.key = titles.rowid
        WHERE titles MATCH ? AND session.deleted = 0 AND (? IS NULL OR session.id = ?)
        ORDER BY titles.rowid DESC LIMIT ?""",
        (_expression(query), session_id, session_id, limit),
    )
    for id, title in rows:
        if query.phrases_match(title):
            yield SearchHit(session_id=id, title=title, kind="title", snippet=query.snippet(title))


def _parts(db: sqlite3.Connection, query: words.Query, session_id: str | None) -> Iterator[SearchHit]:
    rows = db.execute(
        """SELECT session.id, session.title, message.id, part.id, part.tool, part.body, part.blobs
        FROM words JOIN parts AS part ON part.key = words.rowid
        JOIN messages AS message ON message.key = part.message
        JOIN sessions AS session ON session.key = part.session
        WHERE words MATCH ? AND session.deleted = 0 AND (? IS NULL OR session.id = ?)
        ORDER BY words.rowid DESC LIMIT ?""",
        (_expression(query), session_id, session_id, CANDIDATES),
    )
    for id, title, message_id, part_id, tool, body, blobs in rows:
        text = text_of(db, body, blobs=blobs)
        if query.phrases_match(text):
            yield SearchHit(
                session_id=id,
                title=title,
                kind="tool" if tool else "text",
                snippet=query.snippet(text),
                message_id=message_id,
                part_id=part_id,
            )


def _expression(query: words.Query) -> str:
    """Every word in quotes, so that nothing in a query is taken for syntax."""
    quoted = [f'"{word}"' for term in query.terms for word in term.words[:-1]]
    quoted += [f'"{term.words[-1]}"{"*" if term.prefix else ""}' for term in query.terms]
    return " AND ".join(quoted)


def _is_indexed(db: sqlite3.Connection, key: int) -> bool:
    return db.execute("SELECT 1 FROM words_docsize WHERE id = ?", (key,)).fetchone() is not None


STEP_CHORES = 200
# Other processes index their own sessions; looking back further than this finds what a crash left.
LOOK_BACK_MS = 60_000


class IdleMaintenance:
    """Called by the writer while it is idle; says whether there is more to do."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._since = 0

    def __call__(self, db: sqlite3.Connection) -> bool:
        return self.index(db) or sweep_some(db)

    def index(self, db: sqlite3.Connection) -> bool:
        now = self._clock()
        if index_some(db, min(self._since, now - LOOK_BACK_MS)):
            return True
        self._since = now - LOOK_BACK_MS
        return False


def sweep_some(db: sqlite3.Connection) -> bool:
    row = db.execute("SELECT key FROM sessions WHERE deleted = 1 LIMIT 1").fetchone()
    if row is None:
        return False
    session = row[0]
    parts = db.execute(
        "SELECT key, blobs, body FROM parts WHERE session = ? LIMIT ?", (session, STEP_CHORES)
    ).fetchall()
    for key, blobs, body in parts:
        unindex(db, key, text_of(db, body, blobs=blobs))
        if blobs:
            drop_blobs(db, key)
        db.execute("DELETE FROM parts WHERE key = ?", (key,))
    if len(parts) < STEP_CHORES:
        for table in ("messages", "inbox", "approvals"):
            db.execute(f"DELETE FROM {table} WHERE session = ?", (session,))
        db.execute("DELETE FROM sessions WHERE key = ?", (session,))
    return True
