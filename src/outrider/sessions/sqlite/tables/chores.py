"""What can wait until nobody waits: indexing words, and sweeping up what was deleted, a few rows at a time."""

import sqlite3
from collections.abc import Callable

from outrider.sessions.sqlite.tables.finding import index_some, text_of, unindex
from outrider.sessions.sqlite.tables.writes import drop_blobs

STEP = 200
# Other processes index their own sessions; looking back further than this finds what a crash left.
LOOK_BACK_MS = 60_000


class Chores:
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
    parts = db.execute("SELECT key, blobs, body FROM parts WHERE session = ? LIMIT ?", (session, STEP)).fetchall()
    for key, blobs, body in parts:
        unindex(db, key, text_of(db, body, blobs=blobs))
        if blobs:
            drop_blobs(db, key)
        db.execute("DELETE FROM parts WHERE key = ?", (key,))
    if len(parts) < STEP:
        for table in ("messages", "inbox", "approvals"):
            db.execute(f"DELETE FROM {table} WHERE session = ?", (session,))
        db.execute("DELETE FROM sessions WHERE key = ?", (session,))
    return True
