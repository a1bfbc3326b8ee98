"""The files below a folder that are not ignored, without following a link."""

import os
import stat
from collections.abc import Iterator

from outrider.permissions.paths.ignore import IGNORE_FILES, REPOSITORIES, Rules, parse
from outrider.tools.files.folders import FILE

_NAMES = (*IGNORE_FILES, ".rgignore")
_LARGEST_IGNORE = 1024 * 1024


def walk(folder: int) -> Iterator[str]:
    """Relative paths of regular files."""
    known: dict[str, Rules | None] = {".": None}
    for root, folders, names, descriptor in os.fwalk(".", dir_fd=folder):
        base = "" if root == "." else f"{root[2:]}/"
        here = _rules(descriptor, base, names, known.pop(root, None))
        folders[:] = sorted(
            name for name in folders if name not in REPOSITORIES and not _ignored(here, base + name, is_folder=True)
        )
        for name in folders:
            known[f"{root}/{name}"] = here
        for name in sorted(names):
            if not _ignored(here, base + name, is_folder=False) and _is_file(descriptor, name):
                yield base + name


def _ignored(rules: Rules | None, path: str, *, is_folder: bool) -> bool:
    return rules is not None and rules.ignores(path, is_folder=is_folder)


def _rules(folder: int, base: str, names: list[str], above: Rules | None) -> Rules | None:
    lines = [line for name in _NAMES if name in names for line in _lines(folder, name)]
    return Rules(base, parse(lines), above) if lines else above


def _is_file(folder: int, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _lines(folder: int, name: str) -> list[str]:
    try:
        descriptor = os.open(name, FILE, dir_fd=folder)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return []
        return file.read(_LARGEST_IGNORE).decode("utf-8", "replace").splitlines()
