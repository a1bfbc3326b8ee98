"""What a tool changed in the workspace, kept so that it can be undone and redone; it needs no version control."""

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal
from weakref import WeakValueDictionary

import msgspec

from outrider.errors import ConfigurationError, StoreError
from outrider.sessions.snapshots.images import Camera, Image, Limits, Snapshot, current_image
from outrider.sessions.snapshots.objects import Objects
from outrider.sessions.snapshots.restore import Step, restore
from outrider.sessions.sqlite.failures import explain
from outrider.sessions.sqlite.files import create_private, private_directory
from outrider.types.ids import new_id, now_ms

Direction = Literal["undo", "redo"]
DIFF_BYTES = 200_000


class FileChange(msgspec.Struct, frozen=True):
    """None is a file that is not there."""

    path: str
    before: Image | None
    after: Image | None


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True):
    """What one call changed. `uncovered` files were too many or too large to be kept: they cannot be undone."""

    id: str = msgspec.field(default_factory=new_id)
    workspace: str
    files: tuple[FileChange, ...]
    created: int = msgspec.field(default_factory=now_ms)
    call_id: str = ""
    uncovered: tuple[str, ...] = ()
    undone: bool = False


class FileAction(msgspec.Struct, frozen=True):
    """What undoing or redoing does to one file. A conflict is a file that somebody else has changed since."""

    path: str
    action: Literal["create", "change", "delete", "nothing", "conflict"]
    diff: str = ""


class Report(msgspec.Struct, frozen=True):
    actions: tuple[FileAction, ...]

    @property
    def conflicts(self) -> tuple[str, ...]:
        return tuple(action.path for action in self.actions if action.action == "conflict")


class Snapshots:
    """`folder` is private and outside the workspace. A home directory or a file system's root is refused."""

    def __init__(self, folder: Path, workspace: Path, *, limits: Limits = Limits()) -> None:  # noqa: B008  a value
        self.workspace = trackable(workspace)
        if folder.resolve().is_relative_to(self.workspace):
            raise ConfigurationError(f"snapshots of {workspace} cannot be kept inside it ({folder})")
        self._limits = limits
        self._changes = folder / "changes"
        private_directory(self._changes)
        self._objects = Objects(folder / "objects.db")
        # Of calls that run now: what they may need later is kept whatever the quota says.
        self._open: WeakValueDictionary[int, Snapshot] = WeakValueDictionary()
        self._camera = Camera(self.workspace, self._objects, limits)

    def before(self, paths: Iterable[str | Path] | None = None) -> Snapshot:
        """The workspace before a command, or (for a tool that knows what it writes) some files of it.

        A full disk raises StorageFullError: the tool has not begun, and can be refused or run without an undo.
        """
        inside = None if paths is None else [self._inside(path) for path in paths]
        taken = self._camera.take() if inside is None else self._camera.take_paths(inside)
        self._open[id(taken)] = taken
        return taken

    def after(self, before: Snapshot, *, call_id: str = "") -> ChangeSet | None:
        """What has changed since; None if nothing has."""
        now = self._camera.take() if before.paths is None else self._camera.take_paths(before.paths)
        unknown = {path for path in (*before.uncovered, *now.uncovered)}
        files = [
            FileChange(path, before.images.get(path), now.images.get(path))
            for path in sorted({*before.images, *now.images} - unknown)
            if before.images.get(path) != now.images.get(path)
        ]
        if not files:
            return None
        changed = ChangeSet(
            workspace=str(self.workspace), files=tuple(files), call_id=call_id, uncovered=tuple(sorted(unknown))
        )
        self._write(changed)
        self._keep_within_quota()
        return changed

    def get(self, change_id: str) -> ChangeSet:
        try:
            return msgspec.json.decode(self._place(change_id).read_bytes(), type=ChangeSet)
        except (OSError, ValueError, msgspec.DecodeError) as error:
            raise StoreError(f"the change {change_id} is not kept (any more): {error}") from error

    def preview(self, change_ids: Sequence[str], direction: Direction = "undo") -> Report:
        """What `apply` would do, with differences to look at; nothing is touched."""
        return Report(tuple(self._action(step) for step in self._steps(change_ids, direction)))

    def apply(self, change_ids: Sequence[str], direction: Direction = "undo") -> Report:
        """Undo or redo whole changes, given from the oldest to the newest.

        Files that somebody else changed since are left alone and reported. Everything is prepared before the first
        file changes, so that a full disk changes none.
        """
        steps = self._steps(change_ids, direction)
        report = Report(tuple(self._action(step) for step in steps))
        todo = [
            step for step, act in zip(steps, report.actions, strict=True) if act.action not in ("nothing", "conflict")
        ]
        restore(self.workspace, todo, self._objects)
        for change_id in change_ids:
            self._write(msgspec.structs.replace(self.get(change_id), undone=direction == "undo"))
        return report

    def _steps(self, change_ids: Sequence[str], direction: Direction) -> list[Step]:
        """One step for each file, over all changes: from what the last of them left to what the first found."""
        steps: dict[str, Step] = {}
        for change_id in reversed(change_ids) if direction == "undo" else change_ids:
            for file in self.get(change_id).files:
                left, found = (file.after, file.before) if direction == "undo" else (file.before, file.after)
                first = steps.get(file.path)
                steps[file.path] = Step(file.path, first.expected if first else left, found)
        return [steps[path] for path in sorted(steps)]

    def _action(self, step: Step) -> FileAction:
        try:
            now = current_image(self.workspace / step.path, self._objects, self._limits.file_bytes)
        except (OSError, ValueError):
            return FileAction(step.path, "conflict")
        if now == step.wanted:
            return FileAction(step.path, "nothing")
        if now != step.expected:
            return FileAction(step.path, "conflict", self._diff(step.path, now, step.wanted))
        action = "delete" if step.wanted is None else "create" if now is None else "change"
        return FileAction(step.path, action, self._diff(step.path, now, step.wanted))

    def _diff(self, path: str, old: Image | None, new: Image | None) -> str:
        sides = [self._objects.get(image.hash) if image else b"" for image in (old, new)]
        if any(b"\0" in side or len(side) > DIFF_BYTES for side in sides):
            return ""
        left, right = (side.decode("utf-8", "replace").splitlines(keepends=True) for side in sides)
        return "".join(difflib.unified_diff(left, right, f"a/{path}", f"b/{path}"))

    def _inside(self, path: str | Path) -> str:
        place = self.workspace / path
        try:
            return (place.parent.resolve() / place.name).relative_to(self.workspace).as_posix()
        except ValueError:
            raise ConfigurationError(f"{path} is not inside {self.workspace}") from None

    def _place(self, change_id: str) -> Path:
        return self._changes / f"{change_id}.json"

    def _write(self, changed: ChangeSet) -> None:
        place = self._place(changed.id)
        aside = place.with_suffix(f".{new_id()}.tmp")
        try:
            create_private(aside)
            aside.write_bytes(msgspec.json.encode(changed))
            aside.replace(place)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise explain(error, place) from error

    def _keep_within_quota(self) -> None:
        """Forget contents that no change needs, then the oldest changes, until the rest fits."""
        kept = sorted(self._changes.glob("*.json"), key=lambda place: place.name)
        while self._objects.size() > self._limits.quota_bytes and kept:
            self._camera.forget()
            needed = {name for place in kept for name in _names(place)}
            needed |= {image.hash for taken in self._open.values() for image in taken.images.values()}
            self._objects.keep_only(needed)
            if self._objects.size() > self._limits.quota_bytes and len(kept) > 1:
                kept[0].unlink(missing_ok=True)
            kept.pop(0)

    def close(self) -> None:
        self._objects.close()


def trackable(workspace: Path) -> Path:
    """The workspace's real path. Raises ConfigurationError for a place that is too large to be one."""
    root, home = workspace.resolve(), Path.home().resolve()
    if root == Path(root.anchor) or home.is_relative_to(root):
        raise ConfigurationError(f"{workspace} holds a whole home directory or file system; it is not tracked")
    return root


def _names(place: Path) -> set[str]:
    try:
        changed = msgspec.json.decode(place.read_bytes(), type=ChangeSet)
    except (OSError, msgspec.DecodeError):
        return set()
    return {image.hash for file in changed.files for image in (file.before, file.after) if image}
