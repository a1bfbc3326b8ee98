"""Whether a link below a folder leads out of the workspace, for programs that open whatever was found there."""

import os
from collections.abc import Iterator
from itertools import islice

MOST = 10_000  # entries that are looked at


def link_out(folder: str, root: str) -> str | None:
    """Why opening what is found below the folder may read something outside; None: no link leads out."""
    seen = 0
    for entry in islice(_entries(folder), MOST):
        seen += 1
        if entry.is_symlink() and not _is_below(os.path.realpath(entry.path), root):
            return f"{entry.name} is a link that leads out of the workspace"
    return None if seen < MOST else "there are too many files to look at for links; with -type f none is opened"


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Everything below the folder; what cannot be read, nobody else can open either."""
    waiting = [folder]
    while waiting:
        try:
            found = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        waiting += (entry.path for entry in found if entry.is_dir(follow_symlinks=False))
        yield from found


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
