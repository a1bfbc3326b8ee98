"""Plans and performs a restore of files. All contents are staged first, and no path is reached through a link."""

import contextlib
import difflib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from outrider._posix import O_CLOEXEC, O_NOFOLLOW, nearest_folder, open_folder
from outrider.sessions.failpoints import failpoint
from outrider.sessions.snapshots.changes import ChangeSet
from outrider.sessions.snapshots.scanner import ContentStore, FileState, current_file_state

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_NOFOLLOW | O_CLOEXEC


class RestoreStep(msgspec.Struct, frozen=True):
    """The restore of one file: its expected current state and the state to restore; None means no file."""

    path: str
    expected: FileState | None
    wanted: FileState | None


def restore_files(root: Path, steps: Sequence[RestoreStep], objects: ContentStore, name: str) -> None:
    """Stages all new contents under temporary names made from `name`, then removes and replaces files.

    Files are removed first, because a file may now have the path of a folder, or a folder the path of a file.
    """
    put = [step for step in steps if step.wanted is not None]
    try:
        prepared = [_stage_file(root, step, objects, _staged_name(name, number)) for number, step in enumerate(put)]
    except BaseException:
        remove_staged_files(root, [step.path for step in put], name)
        raise
    for step in steps:
        failpoint("FP-mid-undo")
        if step.wanted is None:
            _remove_file(root, step.path)
    for number, (step, nearest) in enumerate(zip(put, prepared, strict=True)):
        failpoint("FP-mid-undo")
        *folders, last = step.path.split("/")
        with open_folder(str(root), nearest) as source, open_folder(str(root), folders, []) as target:
            _remove_empty_folders(root / step.path)
            os.replace(_staged_name(name, number), last, src_dir_fd=source, dst_dir_fd=target)


def remove_staged_files(root: Path, paths: Sequence[str], name: str) -> None:
    """Removes staged files for these paths, which a failed or killed restore leaves."""
    for number, path in enumerate(paths):
        folders = path.split("/")[:-1]
        for depth in range(len(folders) + 1):
            with contextlib.suppress(OSError), open_folder(str(root), folders[:depth]) as folder:
                os.unlink(_staged_name(name, number), dir_fd=folder)


def _staged_name(name: str, number: int) -> str:
    return f".{name}-{number}.tmp"


def _stage_file(root: Path, step: RestoreStep, objects: ContentStore, staged_name: str) -> list[str]:
    """Writes a content into the deepest existing folder of its path, so that a rename can move it. Returns the names
    of this folder and its parents."""
    image = step.wanted
    assert image is not None
    content = objects.get_content(image.hash)
    nearest = nearest_folder(str(root), step.path.split("/")[:-1])
    with open_folder(str(root), nearest) as folder:
        if image.link:
            os.symlink(os.fsdecode(content), staged_name, dir_fd=folder)
            return nearest
        with os.fdopen(os.open(staged_name, _NEW, 0o600, dir_fd=folder), "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), stat.S_IMODE(image.mode))
    return nearest


def _remove_file(root: Path, path: str) -> None:
    """Removes a file and the folders that become empty."""
    *folders, last = path.split("/")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), open_folder(str(root), folders) as folder:
        os.unlink(last, dir_fd=folder)
    for depth in range(len(folders), 0, -1):
        try:
            with open_folder(str(root), folders[: depth - 1]) as above:
                os.rmdir(folders[depth - 1], dir_fd=above)
        except OSError:
            return


def _remove_empty_folders(path: Path) -> None:
    """Removes empty folders at the path of a file to restore; a link or a file inside stops it."""
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106


Direction = Literal["undo", "redo"]
DIFF_BYTES = 200_000


class FileAction(msgspec.Struct, frozen=True):
    """What an undo or redo does to one file.

    A `conflict` was changed by another process since; for a `doubtful` file it is uncertain whether an agent changed
    it. Neither is touched."""

    path: str
    action: Literal["create", "change", "delete", "nothing", "conflict", "doubtful"]
    diff: str = ""


class RestoreReport(msgspec.Struct, frozen=True):
    actions: tuple[FileAction, ...]

    def paths_with(self, *actions: str) -> tuple[str, ...]:
        return tuple(action.path for action in self.actions if action.action in actions)

    @property
    def changed(self) -> tuple[str, ...]:
        return self.paths_with("create", "change", "delete")

    @property
    def conflicts(self) -> tuple[str, ...]:
        return self.paths_with("conflict")

    @property
    def doubtful(self) -> tuple[str, ...]:
        return self.paths_with("doubtful")


def restore_steps(changes: Sequence[ChangeSet], direction: Direction) -> list[RestoreStep]:
    """Combines changes into one step per file: from the state after the last change to the state before the first."""
    steps: dict[str, RestoreStep] = {}
    for changed in reversed(changes) if direction == "undo" else changes:
        for file in changed.files:
            before, after = (file.after, file.before) if direction == "undo" else (file.before, file.after)
            first = steps.get(file.path)
            steps[file.path] = RestoreStep(file.path, first.expected if first else before, after)
    return [steps[path] for path in sorted(steps)]


class RestorePlanner:
    """Compares restore steps with the current files and decides the action for each."""

    def __init__(
        self, root: Path, objects: ContentStore, largest: int, steps: Sequence[RestoreStep], doubtful: set[str]
    ) -> None:
        self._root = str(root)
        self._objects = objects
        self._largest = largest
        self._steps = steps
        self._doubtful = doubtful
        self._removed = {step.path for step in steps if step.wanted is None}

    def make_report(self) -> RestoreReport:
        return RestoreReport(tuple(self._plan_action(step) for step in self._steps))

    def _plan_action(self, step: RestoreStep) -> FileAction:
        try:
            if self._is_blocked(step):
                return FileAction(step.path, "conflict")
            now = current_file_state(f"{self._root}/{step.path}", self._objects, self._largest)
        except (OSError, ValueError):
            return FileAction(step.path, "conflict")
        if now == step.wanted:
            return FileAction(step.path, "nothing")
        diff = self._make_diff(step.path, now, step.wanted)
        if now != step.expected:
            return FileAction(step.path, "conflict", diff)
        if step.path in self._doubtful:
            return FileAction(step.path, "doubtful", diff)
        return FileAction(step.path, "delete" if step.wanted is None else "create" if now is None else "change", diff)

    def _is_blocked(self, step: RestoreStep) -> bool:
        """Returns whether a path outside the plan blocks the file: a link or file as its parent, or a folder at its
        path that contains more than the plan removes."""
        parts = step.path.split("/")
        for depth in range(1, len(parts)):
            above = "/".join(parts[:depth])
            if not _is_folder(f"{self._root}/{above}") and above not in self._removed:
                return os.path.lexists(f"{self._root}/{above}")
        path = f"{self._root}/{step.path}"
        return step.wanted is not None and _is_folder(path) and not self._will_be_empty(path)

    def _will_be_empty(self, path: str) -> bool:
        """Returns whether the plan removes all files of a folder. A link to a folder is treated as a file."""
        entries = (f"{folder}/{name}" for folder, folders, names in os.walk(path) for name in (*folders, *names))
        start = len(self._root) + 1
        return self._removed.issuperset(entry[start:] for entry in entries if not _is_folder(entry))

    def _make_diff(self, path: str, old: FileState | None, new: FileState | None) -> str:
        sides = [self._objects.get_content(image.hash) if image else b"" for image in (old, new)]
        if any(b"\0" in side or len(side) > DIFF_BYTES for side in sides):
            return ""
        old_lines, new_lines = (side.decode("utf-8", "replace").splitlines(keepends=True) for side in sides)
        return "".join(difflib.unified_diff(old_lines, new_lines, f"a/{path}", f"b/{path}"))


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
