"""Differences that tools report, as the pieces of files before and after that editors show."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from outrider.acp.telling.texts import valid

_HUNK = re.compile(r"^@@ -\d+(?:,(?P<old>\d+))? \+(?P<line>\d+)(?:,(?P<new>\d+))? @@")
_NOWHERE = "/dev/null"


class Change(msgspec.Struct, frozen=True):
    """One place of a file: `before` is None in a file that is new."""

    path: str
    before: str | None
    after: str
    line: int | None = None


def changes_of(diff: str, folder: Path) -> list[Change]:
    """The hunks of a unified diff, whose names are relative to `folder`."""
    return list(_hunks(diff.split("\n"), folder))


def _hunks(lines: Sequence[str], folder: Path) -> Iterator[Change]:
    old = new = ""
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        if line.startswith("--- "):
            old = line[4:]
        elif line.startswith("+++ "):
            new = line[4:]
        elif (found := _HUNK.match(line)) is not None:
            before, after, position = _sides(lines, position, int(found["old"] or 1), int(found["new"] or 1))
            path = str(folder / (old if new == _NOWHERE else new))
            yield Change(path, None if old == _NOWHERE else before, after, max(int(found["line"]), 1))


def _sides(lines: Sequence[str], position: int, old: int, new: int) -> tuple[str, str, int]:
    """Both sides of a hunk. Its header says how many lines belong to it: one that is removed may look like a header."""
    before: list[str] = []
    after: list[str] = []
    while position < len(lines) and (len(before) < old or len(after) < new):
        sign, text = lines[position][:1], valid(lines[position][1:])
        if sign != "+":
            before.append(text)
        if sign != "-":
            after.append(text)
        position += 1
    return "\n".join(before), "\n".join(after), position
