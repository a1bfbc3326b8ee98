"""Puts files back: everything is prepared first, and nothing outside the workspace is ever reached through a link."""

import contextlib
import difflib
import os
import stat
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from outrider.sessions import failpoints as faults
from outrider.sessions.snapshots.changes import ChangeSet
from outrider.sessions.snapshots.images import FileState, Objects, current_image

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Step(msgspec.Struct, frozen=True):
    """`expected` is what must be there now; None is no file."""

    path: str
    expected: FileState | None
    wanted: FileState | None


def restore(root: Path, steps: Sequence[Step], objects: Objects, name: str) -> None:
    """All new contents are written to the side, under names made from `name`; only then are files removed and put.

    Removing comes first, since a file may have taken a folder's place, or a folder a file's.
    """
    put = [step for step in steps if step.wanted is not None]
    try:
        prepared = [_prepare(root, step, objects, _aside(name, number)) for number, step in enumerate(put)]
    except BaseException:
        clear(root, [step.path for step in put], name)
        raise
    for step in steps:
        faults.failpoint("FP-mid-undo")
        if step.wanted is None:
            _remove(root, step.path)
    for number, (step, near) in enumerate(zip(put, prepared, strict=True)):
        faults.failpoint("FP-mid-undo")
        *folders, last = step.path.split("/")
        with _folder(root, near) as source, _folder(root, folders, make=True) as target:
            _remove_empty(root / step.path)
            os.replace(_aside(name, number), last, src_dir_fd=source, dst_dir_fd=target)


def clear(root: Path, paths: Sequence[str], name: str) -> None:
    """Remove what lies on the side for these paths, as a restoring that failed or was killed leaves it."""
    for number, path in enumerate(paths):
        folders = path.split("/")[:-1]
        for depth in range(len(folders) + 1):
            with contextlib.suppress(OSError), _folder(root, folders[:depth]) as folder:
                os.unlink(_aside(name, number), dir_fd=folder)


def _aside(name: str, number: int) -> str:
    return f".{name}-{number}.tmp"


def _prepare(root: Path, step: Step, objects: Objects, aside: str) -> list[str]:
    """Written into the deepest folder on the way that is there, from where it can be moved at once; says which."""
    image = step.wanted
    assert image is not None
    content = objects.get(image.hash)
    near = _nearest(root, step.path.split("/")[:-1])
    with _folder(root, near) as folder:
        if image.link:
            os.symlink(os.fsdecode(content), aside, dir_fd=folder)
            return near
        with os.fdopen(os.open(aside, _NEW, 0o600, dir_fd=folder), "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), stat.S_IMODE(image.mode))
    return near


def _nearest(root: Path, folders: list[str]) -> list[str]:
    for depth in range(len(folders), 0, -1):
        with contextlib.suppress(OSError), _folder(root, folders[:depth]):
            return folders[:depth]
    return []


def _remove(root: Path, path: str) -> None:
    """The file, and the folders that it leaves empty."""
    *folders, last = path.split("/")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _folder(root, folders) as folder:
        os.unlink(last, dir_fd=folder)
    for depth in range(len(folders), 0, -1):
        try:
            with _folder(root, folders[: depth - 1]) as above:
                os.rmdir(folders[depth - 1], dir_fd=above)
        except OSError:
            return


def _remove_empty(place: Path) -> None:
    """Folders without a file in them may stand where a file is to go back to; a link or a file stops it."""
    for folder, _, _ in os.walk(place, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106


@contextlib.contextmanager
def _folder(root: Path, folders: Sequence[str], *, make: bool = False) -> Generator[int]:
    """A descriptor of a folder below the root, reached step by step without following a link."""
    descriptor = os.open(root, _FOLDER)
    try:
        for name in folders:
            inner = _enter(descriptor, name, make=make)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _enter(folder: int, name: str, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
    return os.open(name, _FOLDER, dir_fd=folder)


Direction = Literal["undo", "redo"]
DIFF_BYTES = 200_000


class FileAction(msgspec.Struct, frozen=True):
    """What undoing or redoing does to one file. A conflict is a file that somebody else has changed since; of a
    doubtful one it is not certain that an agent changed it. Both are left alone."""

    path: str
    action: Literal["create", "change", "delete", "nothing", "conflict", "doubtful"]
    diff: str = ""


class Report(msgspec.Struct, frozen=True):
    actions: tuple[FileAction, ...]

    def having(self, *actions: str) -> tuple[str, ...]:
        return tuple(one.path for one in self.actions if one.action in actions)

    @property
    def changed(self) -> tuple[str, ...]:
        return self.having("create", "change", "delete")

    @property
    def conflicts(self) -> tuple[str, ...]:
        return self.having("conflict")

    @property
    def doubtful(self) -> tuple[str, ...]:
        return self.having("doubtful")


def steps_of(changes: Sequence[ChangeSet], direction: Direction) -> list[Step]:
    """One step for each file, over all changes: from what the last of them left to what the first found."""
    steps: dict[str, Step] = {}
    for changed in reversed(changes) if direction == "undo" else changes:
        for file in changed.files:
            left, found = (file.after, file.before) if direction == "undo" else (file.before, file.after)
            first = steps.get(file.path)
            steps[file.path] = Step(file.path, first.expected if first else left, found)
    return [steps[path] for path in sorted(steps)]


class Inspector:
    """Looks at the files that a plan is about, as they are now."""

    def __init__(self, root: Path, objects: Objects, largest: int, steps: Sequence[Step], doubtful: set[str]) -> None:
        self._root = str(root)
        self._objects = objects
        self._largest = largest
        self._steps = steps
        self._doubtful = doubtful
        self._removed = {step.path for step in steps if step.wanted is None}

    def report(self) -> Report:
        return Report(tuple(self._action(step) for step in self._steps))

    def _action(self, step: Step) -> FileAction:
        try:
            if self._blocked(step):
                return FileAction(step.path, "conflict")
            now = current_image(f"{self._root}/{step.path}", self._objects, self._largest)
        except (OSError, ValueError):
            return FileAction(step.path, "conflict")
        if now == step.wanted:
            return FileAction(step.path, "nothing")
        diff = self._diff(step.path, now, step.wanted)
        if now != step.expected:
            return FileAction(step.path, "conflict", diff)
        if step.path in self._doubtful:
            return FileAction(step.path, "doubtful", diff)
        return FileAction(step.path, "delete" if step.wanted is None else "create" if now is None else "change", diff)

    def _blocked(self, step: Step) -> bool:
        """Something that is not part of the plan stands in the way: a link or a file above, or a folder in its place
        that holds more than the plan removes."""
        parts = step.path.split("/")
        for depth in range(1, len(parts)):
            above = "/".join(parts[:depth])
            if not _is_folder(f"{self._root}/{above}") and above not in self._removed:
                return os.path.lexists(f"{self._root}/{above}")
        place = f"{self._root}/{step.path}"
        return step.wanted is not None and _is_folder(place) and not self._emptied(place)

    def _emptied(self, place: str) -> bool:
        """Links to folders count as files: they are not followed."""
        entries = (f"{folder}/{name}" for folder, folders, names in os.walk(place) for name in (*folders, *names))
        start = len(self._root) + 1
        return self._removed.issuperset(entry[start:] for entry in entries if not _is_folder(entry))

    def _diff(self, path: str, old: FileState | None, new: FileState | None) -> str:
        sides = [self._objects.get(image.hash) if image else b"" for image in (old, new)]
        if any(b"\0" in side or len(side) > DIFF_BYTES for side in sides):
            return ""
        left, right = (side.decode("utf-8", "replace").splitlines(keepends=True) for side in sides)
        return "".join(difflib.unified_diff(left, right, f"a/{path}", f"b/{path}"))


def _is_folder(place: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(place).st_mode)
    except OSError:
        return False
