"""What undoing or redoing changes would do to each file: planned, shown, and never at somebody else's cost."""

import difflib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from outrider.sessions.snapshots.changes import ChangeSet
from outrider.sessions.snapshots.images import Image, current_image
from outrider.sessions.snapshots.objects import Objects
from outrider.sessions.snapshots.restore import Step

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

    def _diff(self, path: str, old: Image | None, new: Image | None) -> str:
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
