"""Forgets the changes of sessions that are gone; others may use the same place meanwhile."""

from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from outrider.sessions.snapshots.changes import Changes
from outrider.sessions.snapshots.database import Database
from outrider.sessions.snapshots.memory import Memory
from outrider.sessions.snapshots.objects import Objects

FILE = "snapshots.db"


def sessions_in(folder: Path) -> set[str]:
    """Whose changes are kept there."""
    with closing(Database(folder / FILE)) as database:
        begun = {session for one in Changes(database).under_way() for session in one.origin.sessions}
        return begun | {row[0] for row in database.read("SELECT DISTINCT session FROM belongs")}


def forget_sessions(folder: Path, gone: Collection[str]) -> None:
    """What others have changed as well stays theirs; contents that nobody needs any more go too."""
    with closing(Database(folder / FILE)) as database:
        changes = Changes(database)
        with database.writing() as db:
            db.executemany("DELETE FROM belongs WHERE session = ?", [(session,) for session in gone])
            db.execute("DELETE FROM changes WHERE number NOT IN (SELECT number FROM belongs)")
        for begun in changes.under_way():
            if set(begun.origin.sessions) <= set(gone):
                changes.end(begun.snapshot.id)
        Memory(database).forget()
        Objects(database).keep_only(changes.needed())


def shed(folders: Path, most: int) -> None:
    """Of all workspaces together no more than `most` bytes are kept: those go that were not used for longest."""
    files = sorted(folders.glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime, reverse=True)
    kept = 0
    for file in files:
        kept += file.stat().st_size
        if kept > most and file != files[0]:
            forget_sessions(file.parent, sessions_in(file.parent))
