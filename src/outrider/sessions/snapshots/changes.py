"""What was done to files, in its order, and what is under way: kept so that it survives the end of the program."""

from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from outrider.errors import StoreError
from outrider.permissions.paths.gitignore import IGNORE_FILES, is_ignored
from outrider.sessions.snapshots.database import Database
from outrider.sessions.snapshots.images import FileState, Objects, Seen, Snapshot, WorkspaceScanner
from outrider.types.ids import new_id, now_ms


class Caller(msgspec.Struct, frozen=True):
    """A call of another agent, in whose course something was changed."""

    session_id: str
    call_id: str


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Who changed something: a call, with the calls that led to it (the nearest first), or an undo or redo of earlier
    changes."""

    session_id: str = ""
    call_id: str = ""
    part_id: str = ""
    callers: tuple[Caller, ...] = ()
    kind: Literal["call", "undo", "redo"] = "call"
    earlier: tuple[str, ...] = ()

    @property
    def sessions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.session_id, *(caller.session_id for caller in self.callers))))


class FileChange(msgspec.Struct, frozen=True):
    """None is a file that is not there."""

    path: str
    before: FileState | None
    after: FileState | None


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """What one call changed. `uncovered` files were too many or too large to be kept: they cannot be undone. Of the
    `doubtful` ones it is not certain that this call changed them: somebody else had the time to."""

    id: str = msgspec.field(default_factory=new_id)
    workspace: str
    files: tuple[FileChange, ...]
    created: int = msgspec.field(default_factory=now_ms)
    origin: Origin = Origin()
    uncovered: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    undone: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.files)


class UnderWay(msgspec.Struct, frozen=True):
    """Something that began and has not ended: the files as they were, and (where it is known) the hashes they shall
    have. `mark` is the number of the last change before it."""

    snapshot: Snapshot
    origin: Origin
    planned: dict[str, str | None] | None = None
    mark: int = 0


class Changes:
    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, snapshot: Snapshot, origin: Origin, planned: dict[str, str | None] | None) -> UnderWay:
        with self._database.writing() as db:
            mark = db.execute("SELECT coalesce(max(number), 0) FROM changes").fetchone()[0]
            begun = UnderWay(snapshot, origin, planned, mark)
            db.execute("INSERT INTO under_way VALUES (?, ?, ?)", (snapshot.id, mark, msgspec.msgpack.encode(begun)))
        return begun

    def end(self, begun_id: str) -> None:
        with self._database.writing() as db:
            db.execute("DELETE FROM under_way WHERE id = ?", (begun_id,))

    def under_way(self) -> list[UnderWay]:
        rows = self._database.read("SELECT body FROM under_way ORDER BY mark, id")
        return [msgspec.msgpack.decode(row[0], type=UnderWay) for row in rows]

    def add(self, changed: ChangeSet) -> None:
        with self._database.writing() as db:
            row = (changed.id, msgspec.json.encode(changed))
            number = db.execute("INSERT INTO changes (id, body) VALUES (?, ?)", row).lastrowid
            db.executemany("INSERT INTO belongs VALUES (?, ?)", [(name, number) for name in changed.origin.sessions])

    def replace(self, changed: ChangeSet) -> None:
        with self._database.writing() as db:
            db.execute("UPDATE changes SET body = ? WHERE id = ?", (msgspec.json.encode(changed), changed.id))

    def get(self, change_id: str) -> ChangeSet:
        rows = self._database.read("SELECT body FROM changes WHERE id = ?", (change_id,))
        if not rows:
            raise StoreError(f"the change {change_id} is not kept (any more)")
        return _read(rows)[0]

    def of_session(self, session_id: str) -> list[ChangeSet]:
        """What the session, and the agents that it called, have changed, in its order."""
        return _read(
            self._database.read(
                "SELECT body FROM belongs JOIN changes USING (number) WHERE session = ? ORDER BY number", (session_id,)
            )
        )

    def since(self, mark: int = 0) -> list[ChangeSet]:
        return _read(self._database.read("SELECT body FROM changes WHERE number > ? ORDER BY number", (mark,)))

    def needed(self) -> set[str]:
        """The contents without which something could not be undone or redone."""
        begun = {image.hash for one in self.under_way() for image in one.snapshot.images.values()}
        sides = (image for one in self.since() for file in one.files for image in (file.before, file.after))
        return begun | {image.hash for image in sides if image is not None}

    def forget(self, change_ids: Iterable[str]) -> None:
        with self._database.writing() as db:
            for change_id in change_ids:
                db.execute(
                    "DELETE FROM belongs WHERE number IN (SELECT number FROM changes WHERE id = ?)", (change_id,)
                )
                db.execute("DELETE FROM changes WHERE id = ?", (change_id,))


def _read(rows: Sequence[tuple[bytes]]) -> list[ChangeSet]:
    return [msgspec.json.decode(row[0], type=ChangeSet) for row in rows]


def compare(before: Snapshot, camera: WorkspaceScanner, objects: Objects) -> tuple[list[FileChange], tuple[str, ...]]:
    """The files that differ from what they were, and those of which it cannot be told."""
    now = camera.take() if before.paths is None else camera.take_paths(before.paths)
    # What the second look did not come to may be there still: past a bound, or ignored since.
    missed = [path for path in before.images if path not in now.images]
    again = camera.take_paths(missed) if missed and before.paths is None else Snapshot({})
    images = now.images | again.images
    unknown = {*before.uncovered, *now.uncovered, *again.uncovered}
    changed = [path for path in {*before.images, *images} - unknown if before.images.get(path) != images.get(path)]
    if before.paths is None:
        unknown |= _there_before([path for path in changed if path not in before.images], before, now, objects)
    files = [FileChange(path, before.images.get(path), images.get(path)) for path in sorted({*changed} - unknown)]
    cut = before.cut or now.cut
    return files, (*sorted(unknown), *([f"{cut}, and everything after it"] if cut else []))


def _there_before(new: Iterable[str], before: Snapshot, now: Snapshot, objects: Objects) -> set[str]:
    """Of files that seem new: those that the first look may have passed over. Undoing would delete them."""
    if before.cut:
        return set(new)
    if before.ignoring == now.ignoring:
        return set()

    @cache
    def lines_of(folder: str) -> list[str]:
        images = [before.ignoring[folder + name] for name in IGNORE_FILES if folder + name in before.ignoring]
        return [line for image in images for line in objects.get(image.hash).decode("utf-8", "replace").splitlines()]

    try:
        return {path for path in new if is_ignored(path, lines_of)}
    except StoreError:
        return set(new)


class ScanCache:
    """What is known of files that were read, also by earlier programs; void once contents were given up by anybody."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.seen: dict[str, Seen] = {}
        self._written = 0
        self._void = self._read("void")
        if known := self._read("seen"):
            self.seen.update(msgspec.msgpack.decode(known, type=dict[str, Seen]))
            self._written = len(self.seen)

    def check(self) -> None:
        if (void := self._read("void")) != self._void:
            self._void = void
            self.seen.clear()
            self._written = 0

    def keep(self, least: int) -> None:
        """Write it down once so much is new."""
        if len(self.seen) - self._written >= least:
            self._write("seen", msgspec.msgpack.encode(self.seen))
            self._written = len(self.seen)

    def forget(self) -> None:
        self._void = str(int(self._void or b"0") + 1).encode()
        self._write("void", self._void)
        self._write("seen", msgspec.msgpack.encode({}))
        self.seen.clear()
        self._written = 0

    def _read(self, name: str) -> bytes:
        rows = self._database.read("SELECT value FROM state WHERE name = ?", (name,))
        return rows[0][0] if rows else b""

    def _write(self, name: str, value: bytes) -> None:
        with self._database.writing() as db:
            db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))


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
        ScanCache(database).forget()
        Objects(database).keep_only(changes.needed())


def shed(folders: Path, most: int) -> None:
    """Of all workspaces together no more than `most` bytes are kept: those go that were not used for longest."""
    files = sorted(folders.glob(f"*/{FILE}"), key=lambda file: file.stat().st_mtime, reverse=True)
    kept = 0
    for file in files:
        kept += file.stat().st_size
        if kept > most and file != files[0]:
            forget_sessions(file.parent, sessions_in(file.parent))
