"""Every file of a workspace that counts: those that no ignore file leaves out, and no link is followed."""

import os
from collections.abc import Iterator

from outrider.permissions.paths.ignore import IGNORE_FILES, REPOSITORIES, UNFINISHED, Rules, parse

# Made by programs from what is elsewhere, large, and often left to ignore files that are not written yet.
GENERATED = frozenset(
    {"node_modules", "__pycache__", ".venv", ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".gradle"}
)


def walk(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Paths below the root, each with its status; the same order every time."""
    waiting: list[tuple[str, Rules | None]] = [("", None)]
    while waiting:
        folder, above = waiting.pop()
        entries = _entries(f"{root}/{folder}")
        rules = _rules(root, folder, entries, above)
        inner: list[tuple[str, Rules | None]] = []
        for entry in entries:
            path = folder + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name in REPOSITORIES or (is_folder and entry.name in GENERATED):
                continue
            if rules is not None and rules.ignores(path, is_folder=is_folder):
                continue
            if is_folder:
                inner.append((f"{path}/", rules))
                continue
            if UNFINISHED.fullmatch(entry.name):
                continue
            try:
                yield path, entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
        waiting += reversed(inner)


def _entries(folder: str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []


def _rules(root: str, folder: str, entries: "list[os.DirEntry[str]]", above: Rules | None) -> Rules | None:
    names = [entry.name for entry in entries if entry.name in IGNORE_FILES and entry.is_file()]
    lines = [line for name in names for line in _lines(f"{root}/{folder}{name}")]
    return Rules(folder, parse(lines), above) if lines else above


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123  thousands of folders
            return file.read().splitlines()
    except OSError:
        return []
