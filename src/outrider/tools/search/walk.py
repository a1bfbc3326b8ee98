"""The files below a folder that are not ignored, without following a link."""

import os
import stat
from collections.abc import Iterator

from outrider.tools.files.folders import FILE
from outrider.tools.search.ignore import NAMES, REPOSITORIES, Ignore, ignored, read_ignore

_LARGEST_IGNORE = 1024 * 1024


def walk(folder: int, layers: tuple[Ignore, ...] = ()) -> Iterator[str]:
    """Relative paths of regular files. `layers` are ignore files that hold above the folder."""
    known: dict[str, tuple[Ignore, ...]] = {".": layers}
    for root, folders, names, descriptor in os.fwalk(".", dir_fd=folder):
        base = "" if root == "." else f"{root[2:]}/"
        inherited = known.pop(root, ())
        here = inherited + tuple(found for name in NAMES if name in names and (found := _read(descriptor, name, base)))
        folders[:] = sorted(
            name for name in folders if name not in REPOSITORIES and not ignored(base + name, here, folder=True)
        )
        for name in folders:
            known[f"{root}/{name}"] = here
        for name in sorted(names):
            if not ignored(base + name, here, folder=False) and _is_file(descriptor, name):
                yield base + name


def _is_file(folder: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _read(folder: int, name: str, base: str) -> Ignore | None:
    try:
        descriptor = os.open(name, FILE, dir_fd=folder)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return read_ignore(base, file.read(_LARGEST_IGNORE).decode("utf-8", "replace"))
