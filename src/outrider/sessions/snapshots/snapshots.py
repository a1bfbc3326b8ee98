"""What tools changed in the workspace, kept so that it can be undone and redone; it needs no version control."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from outrider.errors import ConfigurationError
from outrider.sessions import failpoints as faults
from outrider.sessions.snapshots.changes import (
    FILE,
    Changes,
    ChangeSet,
    FileChange,
    Origin,
    ScanCache,
    UnderWay,
    compare,
)
from outrider.sessions.snapshots.database import Database
from outrider.sessions.snapshots.images import Limits, Objects, Snapshot, WorkspaceScanner
from outrider.sessions.snapshots.restore import Direction, Inspector, Report, Step, clear, restore, steps_of

UNSAVED = 500  # files that are read before what is known of them is written down


class Snapshots:
    """`folder` is private and outside the workspace. A home directory or a file system's root is refused.

    A change belongs to the call that ends first: what is recorded for one is taken from the others that run beside it.
    May be used from any thread, and by several processes at once.
    """

    def __init__(self, folder: Path, workspace: Path, *, limits: Limits = Limits()) -> None:  # noqa: B008  a value
        self.workspace = trackable(workspace)
        if folder.resolve().is_relative_to(self.workspace):
            raise ConfigurationError(f"snapshots of {workspace} cannot be kept inside it ({folder})")
        self._limits = limits
        self._database = Database(folder / FILE)
        self._objects = Objects(self._database)
        self._changes = Changes(self._database)
        self._lock = threading.RLock()
        self._open: dict[str, UnderWay] = {}
        self._memory = ScanCache(self._database)
        self._camera = WorkspaceScanner(self.workspace, self._objects, limits, self._memory.seen)

    def before(
        self,
        paths: Iterable[str | Path] | None = None,
        origin: Origin = Origin(),  # noqa: B008  a value
        planned: Mapping[Path, str | None] | None = None,
    ) -> Snapshot:
        """The workspace before a command, or (for a tool that knows what it writes) some files of it; `planned` are
        the hashes that they shall have. It survives the end of the program until `after` or `drop`.

        A full disk raises StorageFullError: the tool has not begun, and can be refused or run without an undo.
        """
        inside = None if paths is None else [self.inside(path) for path in paths]
        hashes = None if planned is None else {self.inside(path): name for path, name in planned.items()}
        with self._lock:
            self._memory.check()
            taken = self._camera.take() if inside is None else self._camera.take_paths(inside)
            self._memory.keep(UNSAVED)
            self._open[taken.id] = self._changes.begin(taken, origin, hashes)
        faults.failpoint("FP-before-effect")
        return taken

    def after(self, before: Snapshot, *, doubtful: bool = False, goes_on: bool = False) -> ChangeSet | None:
        """What has changed since; None if nothing has, or if it has ended already. `doubtful` says that somebody else
        had the time to change files, too; `goes_on` that more may follow."""
        faults.failpoint("FP-before-patch")
        with self._lock:
            begun = self._open.get(before.id)
            if begun is None:
                return None
            files, unknown = compare(before, self._camera, self._objects)
            changed = ChangeSet(
                workspace=str(self.workspace),
                files=tuple(files),
                origin=begun.origin,
                uncovered=unknown,
                doubtful=tuple(file.path for file in files if doubtful and not _as_planned(file, begun)),
            )
            with self._database.writing():
                if files:
                    self._changes.add(changed)
                if not goes_on:
                    self._changes.end(before.id)
            if not goes_on:
                del self._open[before.id]
            faults.failpoint("FP-after-patch")
            self._rebase(changed)
            self._keep_within_quota()
        return changed if files else None

    def drop(self, before: Snapshot) -> None:
        """Nothing was done, or nobody wants to know."""
        with self._lock:
            if self._open.pop(before.id, None) is not None:
                self._changes.end(before.id)

    def interrupted(self, session_id: str) -> list[UnderWay]:
        """What the session was doing when its program was killed."""
        begun = self._changes.under_way()
        return [one for one in begun if session_id in one.origin.sessions and one.snapshot.id not in self._open]

    def recover(self, session_id: str) -> list[ChangeSet]:
        """Of what was interrupted: what has changed since, by it or by others."""
        found: list[ChangeSet] = []
        with self._lock:
            for begun in self.interrupted(session_id):
                for later in self._changes.since(begun.mark):
                    _rebase(begun.snapshot, later.files)
                clear(self.workspace, begun.snapshot.paths or (), begun.snapshot.id)
                self._open[begun.snapshot.id] = begun
                if begun.origin.kind != "call":
                    self.drop(begun.snapshot)
                elif changed := self.after(begun.snapshot, doubtful=True):
                    found.append(changed)
        return found

    def get(self, change_id: str) -> ChangeSet:
        return self._changes.get(change_id)

    def of_session(self, session_id: str) -> list[ChangeSet]:
        """What the session, and the agents that it called, have done, the oldest first."""
        return self._changes.of_session(session_id)

    def preview(self, change_ids: Sequence[str], direction: Direction = "undo", *, doubtful: bool = False) -> Report:
        """What `apply` would do, with differences to look at; nothing is touched."""
        with self._lock:
            return self._planned(change_ids, direction, doubtful=doubtful)[1]

    def apply(
        self,
        change_ids: Sequence[str],
        direction: Direction = "undo",
        *,
        doubtful: bool = False,
        origin: Origin = Origin(),  # noqa: B008  a value
    ) -> tuple[Report, ChangeSet]:
        """Undo or redo whole changes, given from the oldest to the newest; doubtful files only if that is said.

        Files that somebody else changed since are left alone and reported. Everything is prepared before the first
        file changes, so that a full disk changes none. Killed half way, it can be done again.
        """
        with self._lock:
            steps, report = self._planned(change_ids, direction, doubtful=doubtful)
            touched = set(report.changed)
            todo = [step for step in steps if step.path in touched]
            asides = [step.path for step in todo if step.wanted is not None]
            done = ChangeSet(
                workspace=str(self.workspace),
                files=tuple(FileChange(step.path, step.expected, step.wanted) for step in todo),
                origin=msgspec.structs.replace(origin, kind=direction, earlier=tuple(change_ids)),
            )
            begun = Snapshot({}, paths=tuple(asides))
            self._changes.begin(begun, done.origin, None)
            try:
                restore(self.workspace, todo, self._objects, begun.id)
                self._settle(done, direction)
                faults.failpoint("FP-after-undo")
            finally:
                self._changes.end(begun.id)
            self._rebase(done)
        return report, done

    def close(self) -> None:
        with self._lock:
            self._memory.keep(1)
            self._database.close()

    def inside(self, path: str | Path) -> str:
        """The path below the workspace. Raises ConfigurationError for one that is not."""
        place = self.workspace / path
        try:
            return (place.parent.resolve() / place.name).relative_to(self.workspace).as_posix()
        except ValueError:
            raise ConfigurationError(f"{path} is not inside {self.workspace}") from None

    def _planned(self, change_ids: Sequence[str], direction: Direction, *, doubtful: bool) -> tuple[list[Step], Report]:
        changes = [self.get(change_id) for change_id in change_ids]
        steps = steps_of(changes, direction)
        unsure = set[str]() if doubtful else {path for changed in changes for path in changed.doubtful}
        inspector = Inspector(self.workspace, self._objects, self._limits.written_bytes, steps, unsure)
        return steps, inspector.report()

    def _settle(self, done: ChangeSet, direction: Direction) -> None:
        with self._database.writing():
            for change_id in done.origin.earlier:
                self._changes.replace(msgspec.structs.replace(self.get(change_id), undone=direction == "undo"))
            self._changes.add(done)

    def _rebase(self, changed: ChangeSet) -> None:
        for begun in self._open.values():
            _rebase(begun.snapshot, changed.files)

    def _keep_within_quota(self) -> None:
        """Forget contents that no change needs, then the oldest changes, until the rest fits."""
        if self._database.size() <= self._limits.quota_bytes:
            return
        oldest = [one.id for one in self._changes.since()]
        while self._database.size() > self._limits.quota_bytes and oldest:
            self._memory.forget()
            rebased = {image.hash for one in self._open.values() for image in one.snapshot.images.values()}
            self._objects.keep_only(self._changes.needed() | rebased)
            if self._database.size() > self._limits.quota_bytes and len(oldest) > 1:
                self._changes.forget([oldest[0]])
            oldest.pop(0)


def trackable(workspace: Path) -> Path:
    """The workspace's real path. Raises ConfigurationError for a place that is too large to be one."""
    root, home = workspace.resolve(), Path.home().resolve()
    if root == Path(root.anchor) or home.is_relative_to(root):
        raise ConfigurationError(f"{workspace} holds a whole home directory or file system; it is not tracked")
    return root


def _rebase(snapshot: Snapshot, files: Iterable[FileChange]) -> None:
    """What is recorded elsewhere counts as having been there before."""
    for file in files:
        if snapshot.paths is not None and file.path not in snapshot.paths:
            continue
        if file.after is None:
            snapshot.images.pop(file.path, None)
        else:
            snapshot.images[file.path] = file.after


def _as_planned(file: FileChange, begun: UnderWay) -> bool:
    return begun.planned is not None and begun.planned.get(file.path, "") == (file.after.hash if file.after else None)
