"""A workspace as a place: where its project begins, and how its files are read without being led elsewhere."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from outrider.permissions.paths.opening import open_to_read


class Project(msgspec.Struct, frozen=True):
    """`root` is the top of the repository that `folder` lies in, or `folder` itself. Trust is given to the root."""

    root: Path
    folder: Path

    def folders(self) -> Iterator[Path]:
        """From the root down to the working directory."""
        yield self.root
        for depth in range(len(self.folder.relative_to(self.root).parts)):
            yield self.root.joinpath(*self.folder.relative_to(self.root).parts[: depth + 1])

    def read(self, path: Path, limit: int) -> bytes | None:
        """What a file of the project holds, up to `limit` bytes; None where there is none that may be read.

        Links that lead outside, secrets under another name, pipes and devices are none."""
        if not os.path.lexists(path):
            return None
        try:
            descriptor = open_to_read(str(path), root=str(self.root), cwd=str(self.root))
        except (OSError, ValueError):
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read(limit)

    def entries(self, folder: Path) -> list[Path]:
        """What lies in a folder of the project, in order; nothing where it leads outside."""
        try:
            if not folder.resolve(strict=True).is_relative_to(self.root):
                return []
            return sorted(folder.iterdir())
        except (OSError, ValueError, RuntimeError):
            return []


def find_project(folder: Path, home: Path) -> Project:
    """Looks at names only, runs nothing, and never goes up to the user's own folder or to somebody else's."""
    folder, home = folder.resolve(), home.resolve()
    owner = _owner(folder)
    for place in (folder, *folder.parents):
        if place != folder and (place == home or _owner(place) != owner):
            break
        if os.path.lexists(place / ".git"):
            return Project(place, folder)
    return Project(folder, folder)


def _owner(folder: Path) -> int | None:
    try:
        return folder.stat().st_uid
    except OSError:
        return None
