"""What lies below a folder and misleads programs that open whatever was found there: links that lead out of the
workspace, names that are taken apart."""

import os
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from itertools import islice

_TAKEN_APART = frozenset(" \t\n\v\f\r'\"\\")
MOST = 10_000  # entries that are looked at


def link_out(folder: str, root: str, names: Collection[str] = ()) -> str | None:
    """Why opening what is found below the folder may read something outside; None: no link leads out. Where patterns
    for names are given, what matches none of them is not opened."""
    seen = 0
    for entry in islice(_entries(folder), MOST):
        seen += 1
        if entry.is_symlink() and _is_meant(entry.name, names) and not _is_below(os.path.realpath(entry.path), root):
            return f"{entry.name} is a link that leads out of the workspace"
    return None if seen < MOST else "there are too many files to look at for links; with -type f none is opened"


def unruly_name(start: str, folder: str) -> str | None:
    """Why names below the folder, written as text, may be taken for others; None: each stays one word and no option."""
    seen = 0
    for name in (start, *(entry.name for entry in islice(_entries(folder), MOST))):
        seen += 1
        if name.startswith("-") or not _TAKEN_APART.isdisjoint(name):
            return f"{name!r} is a name that is taken apart"
    return None if seen < MOST else "there are too many files to look at for unusual names"


def _is_meant(name: str, patterns: Collection[str]) -> bool:
    """Patterns with brackets or backslashes are read in several ways, and so take in every name."""
    return not patterns or any(
        set(pattern) & set("[\\") or fnmatchcase(name.casefold(), pattern.casefold()) for pattern in patterns
    )


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
