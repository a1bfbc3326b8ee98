"""Records file changes of tool calls and undoes or redoes them, without version control."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from outrider.errors import ConfigurationError
from outrider.sessions.failpoints import failpoint
from outrider.sessions.snapshots.changes import (
    DATABASE_NAME,
    ChangeLog,
    ChangeOrigin,
    ChangeSet,
    FileChange,
    PendingOperation,
    ScanCache,
    compare_with_workspace,
)
from outrider.sessions.snapshots.restore import (
    Direction,
    RestorePlanner,
    RestoreReport,
    RestoreStep,
    remove_staged_files,
    restore_files,
    restore_steps,
)
from outrider.sessions.snapshots.scanner import (
    ContentStore,
    FileState,
    SnapshotDatabase,
    SnapshotLimits,
    WorkspaceScanner,
    WorkspaceSnapshot,
    current_file_state,
)

SAVE_AFTER_FILES = 500  # new scan cache entries before the cache is written


class ChangeTracker:
    """Tracks the file changes of one workspace in the database in `folder`, a private folder outside the workspace.

    Raises ConfigurationError for a home directory or a file system root. If calls run concurrently, a change belongs
    to the call that ends first, and the snapshots of the others are rebased. Usable from any thread and process.
    """

    def __init__(self, folder: Path, workspace: Path, *, limits: SnapshotLimits = SnapshotLimits()) -> None:  # noqa: B008  a value
        self.workspace = resolve_workspace(workspace)
        if folder.resolve().is_relative_to(self.workspace):
            raise ConfigurationError(
                f"snapshots of {workspace} cannot be stored inside it ({folder}); choose another data directory"
            )
        self._limits = limits
        self._database = SnapshotDatabase(folder / DATABASE_NAME)
        self._objects = ContentStore(self._database)
        self._changes = ChangeLog(self._database)
        self._lock = threading.RLock()
        self._open: dict[str, PendingOperation] = {}
        self._scan_cache = ScanCache(self._database)
        self._scanner = WorkspaceScanner(self.workspace, self._objects, limits, self._scan_cache.scanned)

    def take_snapshot(
        self,
        paths: Iterable[str | Path] | None = None,
        origin: ChangeOrigin = ChangeOrigin(),  # noqa: B008  a value
        planned: Mapping[Path, str | None] | None = None,
    ) -> WorkspaceSnapshot:
        """Takes a snapshot of the workspace, or of `paths` for a tool that names the files it writes.

        `planned` maps files to the hashes that they will have. The snapshot is persistent until `record_changes` or
        `discard_snapshot`. A full disk raises StorageFullError before the tool starts.
        """
        inside = None if paths is None else [self.relative_path(path) for path in paths]
        hashes = None if planned is None else {self.relative_path(path): name for path, name in planned.items()}
        with self._lock:
            self._scan_cache.drop_if_void()
            snapshot = self._scanner.scan_all() if inside is None else self._scanner.scan_paths(inside)
            self._scan_cache.save_if_grown(SAVE_AFTER_FILES)
            self._open[snapshot.id] = self._changes.begin_operation(snapshot, origin, hashes)
        failpoint("FP-before-effect")
        return snapshot

    def record_changes(
        self, before: WorkspaceSnapshot, *, doubtful: bool = False, continues: bool = False
    ) -> ChangeSet | None:
        """Records what changed since the snapshot. Returns None if nothing has changed, or if the operation has ended.

        `doubtful` marks changes that another process may have made; `continues` leaves the operation open for more.
        """
        failpoint("FP-before-patch")
        with self._lock:
            operation = self._open.get(before.id)
            if operation is None:
                return None
            files, unknown = compare_with_workspace(before, self._scanner, self._objects)
            changed = ChangeSet(
                workspace=str(self.workspace),
                files=tuple(files),
                origin=operation.origin,
                uncovered=unknown,
                doubtful=tuple(file.path for file in files if doubtful and not _matches_plan(file, operation)),
            )
            with self._database.transaction():
                if files:
                    self._changes.add_change(changed)
                if not continues:
                    self._changes.end_operation(before.id)
            if not continues:
                del self._open[before.id]
            failpoint("FP-after-patch")
            self._rebase_open(changed)
            self._enforce_quota()
        return changed if files else None

    def discard_snapshot(self, before: WorkspaceSnapshot) -> None:
        """Ends the operation of a snapshot without recording changes."""
        with self._lock:
            if self._open.pop(before.id, None) is not None:
                self._changes.end_operation(before.id)

    def interrupted_operations(self, session_id: str) -> list[PendingOperation]:
        """Returns the operations of a session that a killed process left pending."""
        operations = self._changes.pending_operations()
        of_session = (operation for operation in operations if session_id in operation.origin.session_ids)
        return [operation for operation in of_session if operation.snapshot.id not in self._open]

    def recover_interrupted(self, session_id: str) -> list[ChangeSet]:
        """Ends interrupted operations and returns their changes, all marked as doubtful."""
        changes: list[ChangeSet] = []
        with self._lock:
            for operation in self.interrupted_operations(session_id):
                for later in self._changes.changes_since(operation.mark):
                    _rebase_snapshot(operation.snapshot, later.files)
                remove_staged_files(self.workspace, operation.snapshot.paths or (), operation.snapshot.id)
                self._open[operation.snapshot.id] = operation
                if operation.origin.kind != "call":
                    self.discard_snapshot(operation.snapshot)
                elif changed := self.record_changes(operation.snapshot, doubtful=True):
                    changes.append(changed)
        return changes

    def get_change(self, change_id: str) -> ChangeSet:
        return self._changes.get_change(change_id)

    def session_changes(self, session_id: str) -> list[ChangeSet]:
        """Returns the changes of a session and of its child sessions, oldest first."""
        return self._changes.session_changes(session_id)

    def preview_restore(
        self, change_ids: Sequence[str], direction: Direction = "undo", *, doubtful: bool = False
    ) -> RestoreReport:
        """Returns what `apply_restore` would do, with diffs, without changing files."""
        with self._lock:
            return self._plan_restore(change_ids, direction, doubtful=doubtful)[1]

    def apply_restore(
        self,
        change_ids: Sequence[str],
        direction: Direction = "undo",
        *,
        doubtful: bool = False,
        origin: ChangeOrigin = ChangeOrigin(),  # noqa: B008  a value
    ) -> tuple[RestoreReport, ChangeSet]:
        """Undoes or redoes complete changes, from the oldest to the newest; doubtful files only on request.

        Files that have changed since then are reported as conflicts and not changed. All contents are staged before the
        first file changes, so a full disk changes none. A killed restore can be repeated.
        """
        with self._lock:
            steps, report = self._plan_restore(change_ids, direction, doubtful=doubtful)
            touched = set(report.changed)
            planned_steps = [step for step in steps if step.path in touched]
            change_set = self._restore(
                planned_steps, msgspec.structs.replace(origin, kind=direction, earlier=tuple(change_ids))
            )
        return report, change_set

    def undo_part(
        self, path: str, expected: FileState | None, target: FileState | None, origin: ChangeOrigin
    ) -> ChangeSet | None:
        """Undoes a part of the changes of a file: replaces its `expected` state with the state `target`, whose content
        is stored. Returns None if the file has another state now. The result is an undo without `earlier` changes."""
        with self._lock:
            step = RestoreStep(path, expected, target)
            planner = RestorePlanner(self.workspace, self._objects, self._limits.written_bytes, [step], set())
            if not planner.make_report().changed:
                return None
            return self._restore([step], msgspec.structs.replace(origin, kind="undo"))

    def read_content(self, state: FileState) -> bytes:
        """Returns a stored content. Raises StoreError if it is no longer stored."""
        with self._lock:
            return self._objects.get_content(state.hash)

    def store_content(self, content: bytes, mode: int) -> FileState:
        with self._lock:
            return FileState(self._objects.put_content(content), mode)

    def read_state(self, path: str) -> FileState | None:
        """Stores the current content of a file and returns its state; None if there is no file. Raises ValueError for
        a file that cannot be restored: a special file, or one that is too large."""
        with self._lock:
            return current_file_state(f"{self.workspace}/{path}", self._objects, self._limits.written_bytes)

    def close(self) -> None:
        with self._lock:
            self._scan_cache.save_if_grown(1)
            self._database.close()

    def relative_path(self, path: str | Path) -> str:
        """Returns the path relative to the workspace. Raises ConfigurationError for a path outside it."""
        absolute = self.workspace / path
        try:
            return (absolute.parent.resolve() / absolute.name).relative_to(self.workspace).as_posix()
        except ValueError:
            raise ConfigurationError(f"{path} is not inside {self.workspace}") from None

    def _plan_restore(
        self, change_ids: Sequence[str], direction: Direction, *, doubtful: bool
    ) -> tuple[list[RestoreStep], RestoreReport]:
        changes = [self.get_change(change_id) for change_id in change_ids]
        steps = restore_steps(changes, direction)
        uncertain = set[str]() if doubtful else {path for changed in changes for path in changed.doubtful}
        inspector = RestorePlanner(self.workspace, self._objects, self._limits.written_bytes, steps, uncertain)
        return steps, inspector.make_report()

    def _restore(self, steps: Sequence[RestoreStep], origin: ChangeOrigin) -> ChangeSet:
        files = tuple(FileChange(step.path, step.expected, step.wanted) for step in steps)
        change_set = ChangeSet(workspace=str(self.workspace), files=files, origin=origin)
        operation = WorkspaceSnapshot({}, paths=tuple(step.path for step in steps if step.wanted is not None))
        self._changes.begin_operation(operation, change_set.origin, None)
        try:
            restore_files(self.workspace, steps, self._objects, operation.id)
            self._record_restore(change_set)
            failpoint("FP-after-undo")
        finally:
            self._changes.end_operation(operation.id)
        self._rebase_open(change_set)
        return change_set

    def _record_restore(self, change_set: ChangeSet) -> None:
        is_undone = change_set.origin.kind == "undo"
        with self._database.transaction():
            for change_id in change_set.origin.earlier:
                self._changes.replace_change(msgspec.structs.replace(self.get_change(change_id), undone=is_undone))
            self._changes.add_change(change_set)

    def _rebase_open(self, changed: ChangeSet) -> None:
        for operation in self._open.values():
            _rebase_snapshot(operation.snapshot, changed.files)

    def _enforce_quota(self) -> None:
        """Deletes unused contents, then the oldest changes, until the database is within its quota."""
        if self._database.used_bytes() <= self._limits.quota_bytes:
            return
        oldest = [change_set.id for change_set in self._changes.changes_since()]
        while self._database.used_bytes() > self._limits.quota_bytes and oldest:
            self._scan_cache.invalidate_cache()
            rebased = {image.hash for operation in self._open.values() for image in operation.snapshot.images.values()}
            self._objects.delete_all_except(self._changes.needed_contents() | rebased)
            if self._database.used_bytes() > self._limits.quota_bytes and len(oldest) > 1:
                self._changes.delete_changes([oldest[0]])
            oldest.pop(0)


def resolve_workspace(workspace: Path) -> Path:
    """Returns the real path of the workspace. Raises ConfigurationError if it contains a home directory."""
    root, home = workspace.resolve(), Path.home().resolve()
    if root == Path(root.anchor) or home.is_relative_to(root):
        raise ConfigurationError(f"{workspace} holds a whole home directory or file system; it is not tracked")
    return root


def _rebase_snapshot(snapshot: WorkspaceSnapshot, files: Iterable[FileChange]) -> None:
    """Applies changes of another call to a snapshot, so that they are not recorded twice."""
    for file in files:
        if snapshot.paths is not None and file.path not in snapshot.paths:
            continue
        if file.after is None:
            snapshot.images.pop(file.path, None)
        else:
            snapshot.images[file.path] = file.after


def _matches_plan(file: FileChange, operation: PendingOperation) -> bool:
    return operation.planned is not None and operation.planned.get(file.path, "") == (
        file.after.hash if file.after else None
    )
