"""The persistent log of file changes and of pending operations, and the comparison of a snapshot with the workspace."""

from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from outrider.errors import StoreError
from outrider.permissions.paths.gitignore import IGNORE_FILES, is_ignored
from outrider.sessions.snapshots.scanner import (
    ContentStore,
    FileState,
    ScannedFile,
    SnapshotDatabase,
    WorkspaceScanner,
    WorkspaceSnapshot,
)
from outrider.types.ids import new_id, now_ms


class ParentCall(msgspec.Struct, frozen=True):
    """A call of a parent agent during which a change happened."""

    session_id: str
    call_id: str


class ChangeOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of a change: a tool call with its parent calls, nearest first, or an undo or redo of `earlier`
    changes."""

    session_id: str = ""
    call_id: str = ""
    part_id: str = ""
    callers: tuple[ParentCall, ...] = ()
    kind: Literal["call", "undo", "redo"] = "call"
    earlier: tuple[str, ...] = ()

    @property
    def session_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.session_id, *(caller.session_id for caller in self.callers))))


class FileChange(msgspec.Struct, frozen=True):
    """The state of one file before and after a change; None means that the file does not exist."""

    path: str
    before: FileState | None
    after: FileState | None


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """The file changes of one call.

    `uncovered` files exceeded the limits and cannot be undone. `doubtful` files may have been changed by another
    process while the call ran.
    """

    id: str = msgspec.field(default_factory=new_id)
    workspace: str
    files: tuple[FileChange, ...]
    created: int = msgspec.field(default_factory=now_ms)
    origin: ChangeOrigin = ChangeOrigin()
    uncovered: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    undone: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.files)


class PendingOperation(msgspec.Struct, frozen=True):
    """An operation that has started and not ended: the files before it, and the hashes that they will have, if known.

    `mark` is the number of the last change before it."""

    snapshot: WorkspaceSnapshot
    origin: ChangeOrigin
    planned: dict[str, str | None] | None = None
    mark: int = 0


class ChangeLog:
    def __init__(self, database: SnapshotDatabase) -> None:
        self._database = database

    def begin_operation(
        self, snapshot: WorkspaceSnapshot, origin: ChangeOrigin, planned: dict[str, str | None] | None
    ) -> PendingOperation:
        with self._database.transaction() as db:
            mark = db.execute("SELECT coalesce(max(number), 0) FROM changes").fetchone()[0]
            operation = PendingOperation(snapshot, origin, planned, mark)
            db.execute("INSERT INTO under_way VALUES (?, ?, ?)", (snapshot.id, mark, msgspec.msgpack.encode(operation)))
        return operation

    def end_operation(self, operation_id: str) -> None:
        with self._database.transaction() as db:
            db.execute("DELETE FROM under_way WHERE id = ?", (operation_id,))

    def pending_operations(self) -> list[PendingOperation]:
        rows = self._database.fetch_all("SELECT body FROM under_way ORDER BY mark, id")
        return [msgspec.msgpack.decode(row[0], type=PendingOperation) for row in rows]

    def add_change(self, change: ChangeSet) -> None:
        with self._database.transaction() as db:
            row = (change.id, msgspec.json.encode(change))
            number = db.execute("INSERT INTO changes (id, body) VALUES (?, ?)", row).lastrowid
            db.executemany("INSERT INTO belongs VALUES (?, ?)", [(name, number) for name in change.origin.session_ids])

    def replace_change(self, change: ChangeSet) -> None:
        with self._database.transaction() as db:
            db.execute("UPDATE changes SET body = ? WHERE id = ?", (msgspec.json.encode(change), change.id))

    def get_change(self, change_id: str) -> ChangeSet:
        rows = self._database.fetch_all("SELECT body FROM changes WHERE id = ?", (change_id,))
        if not rows:
            raise StoreError(f"the change {change_id} is not stored (any more); it cannot be undone or redone")
        return _decode_changes(rows)[0]

    def session_changes(self, session_id: str) -> list[ChangeSet]:
        """Returns the changes of a session and of its child sessions, in order."""
        return _decode_changes(
            self._database.fetch_all(
                "SELECT body FROM belongs JOIN changes USING (number) WHERE session = ? ORDER BY number", (session_id,)
            )
        )

    def changes_since(self, mark: int = 0) -> list[ChangeSet]:
        return _decode_changes(
            self._database.fetch_all("SELECT body FROM changes WHERE number > ? ORDER BY number", (mark,))
        )

    def needed_contents(self) -> set[str]:
        """Returns the hashes of all contents that an undo, a redo or a pending operation needs."""
        images = (image for operation in self.pending_operations() for image in operation.snapshot.images.values())
        files = (file for change_set in self.changes_since() for file in change_set.files)
        sides = (image for file in files for image in (file.before, file.after))
        return {image.hash for image in images} | {image.hash for image in sides if image is not None}

    def delete_changes(self, change_ids: Iterable[str]) -> None:
        with self._database.transaction() as db:
            for change_id in change_ids:
                db.execute(
                    "DELETE FROM belongs WHERE number IN (SELECT number FROM changes WHERE id = ?)", (change_id,)
                )
                db.execute("DELETE FROM changes WHERE id = ?", (change_id,))


def _decode_changes(rows: Sequence[tuple[bytes]]) -> list[ChangeSet]:
    return [msgspec.json.decode(row[0], type=ChangeSet) for row in rows]


def compare_with_workspace(
    before: WorkspaceSnapshot, scanner: WorkspaceScanner, objects: ContentStore
) -> tuple[list[FileChange], tuple[str, ...]]:
    """Returns the files that differ from the snapshot, and the paths for which this is unknown."""
    now = scanner.scan_all() if before.paths is None else scanner.scan_paths(before.paths)
    # The second scan may have missed existing files: beyond a limit, or ignored by a new ignore file.
    missing = [path for path in before.images if path not in now.images]
    rescan = scanner.scan_paths(missing) if missing and before.paths is None else WorkspaceSnapshot({})
    images = now.images | rescan.images
    unknown = {*before.uncovered, *now.uncovered, *rescan.uncovered}
    change = [path for path in {*before.images, *images} - unknown if before.images.get(path) != images.get(path)]
    if before.paths is None:
        unknown |= _possibly_preexisting([path for path in change if path not in before.images], before, now, objects)
    files = [FileChange(path, before.images.get(path), images.get(path)) for path in sorted({*change} - unknown)]
    cut = before.cut or now.cut
    return files, (*sorted(unknown), *([f"{cut}, and everything after it"] if cut else []))


def _possibly_preexisting(
    new: Iterable[str], before: WorkspaceSnapshot, now: WorkspaceSnapshot, objects: ContentStore
) -> set[str]:
    """Returns the apparently new files that the first scan may have skipped: an undo would delete them."""
    if before.cut:
        return set(new)
    if before.ignoring == now.ignoring:
        return set()

    @cache
    def lines_of(folder: str) -> list[str]:
        images = [before.ignoring[folder + name] for name in IGNORE_FILES if folder + name in before.ignoring]
        return [
            line for image in images for line in objects.get_content(image.hash).decode("utf-8", "replace").splitlines()
        ]

    try:
        return {path for path in new if is_ignored(path, lines_of)}
    except StoreError:
        return set(new)


class ScanCache:
    """A persistent cache of scanned files. It is void after any process deleted contents from the database."""

    def __init__(self, database: SnapshotDatabase) -> None:
        self._database = database
        self.scanned: dict[str, ScannedFile] = {}
        self._written = 0
        self._void = self._read_state("void")
        if cached := self._read_state("seen"):
            self.scanned.update(msgspec.msgpack.decode(cached, type=dict[str, ScannedFile]))
            self._written = len(self.scanned)

    def drop_if_void(self) -> None:
        if (void := self._read_state("void")) != self._void:
            self._void = void
            self.scanned.clear()
            self._written = 0

    def save_if_grown(self, min_new: int) -> None:
        """Writes the cache to the database if it has at least `min_new` new entries."""
        if len(self.scanned) - self._written >= min_new:
            self._write_state("seen", msgspec.msgpack.encode(self.scanned))
            self._written = len(self.scanned)

    def invalidate_cache(self) -> None:
        self._void = str(int(self._void or b"0") + 1).encode()
        self._write_state("void", self._void)
        self._write_state("seen", msgspec.msgpack.encode({}))
        self.scanned.clear()
        self._written = 0

    def _read_state(self, name: str) -> bytes:
        rows = self._database.fetch_all("SELECT value FROM state WHERE name = ?", (name,))
        return rows[0][0] if rows else b""

    def _write_state(self, name: str, value: bytes) -> None:
        with self._database.transaction() as db:
            db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))


DATABASE_NAME = "snapshots.db"


def tracked_sessions(folder: Path) -> set[str]:
    """Returns the ids of the sessions with changes in this folder."""
    with closing(SnapshotDatabase(folder / DATABASE_NAME)) as database:
        operations = ChangeLog(database).pending_operations()
        session_ids = {session_id for operation in operations for session_id in operation.origin.session_ids}
        return session_ids | {row[0] for row in database.fetch_all("SELECT DISTINCT session FROM belongs")}


def forget_sessions(folder: Path, session_ids: Collection[str]) -> None:
    """Deletes the changes of these sessions and unused contents; changes of other sessions stay."""
    with closing(SnapshotDatabase(folder / DATABASE_NAME)) as database:
        changes = ChangeLog(database)
        with database.transaction() as db:
            db.executemany("DELETE FROM belongs WHERE session = ?", [(session,) for session in session_ids])
            db.execute("DELETE FROM changes WHERE number NOT IN (SELECT number FROM belongs)")
        for operation in changes.pending_operations():
            if set(operation.origin.session_ids) <= set(session_ids):
                changes.end_operation(operation.snapshot.id)
        ScanCache(database).invalidate_cache()
        ContentStore(database).delete_all_except(changes.needed_contents())


def enforce_total_quota(folders: Path, max_bytes: int) -> None:
    """Limits the total size of all workspaces to `max_bytes`: deletes the data of the least recently used ones."""
    files = sorted(folders.glob(f"*/{DATABASE_NAME}"), key=lambda file: file.stat().st_mtime, reverse=True)
    total = 0
    for file in files:
        total += file.stat().st_size
        if total > max_bytes and file != files[0]:
            forget_sessions(file.parent, tracked_sessions(file.parent))
