"""Changes of files as values: read from unified diffs, from patches that a model wrote, and from a call's arguments."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from outrider._lazy import lazy_pattern
from outrider.presentation.formats import format_count

LineKind = Literal["added", "removed", "context"]
RowKind = LineKind | Literal["file", "place"]

_HUNK = lazy_pattern(
    r"@@ -(?P<old>\d+)(?:,(?P<old_count>\d+))? \+(?P<new>\d+)(?:,(?P<new_count>\d+))? @@ ?(?P<heading>.*)"
)
_NO_FILE = "/dev/null"
_PATCH_BEGIN = "*** Begin Patch"
_GIT_HEADERS = ("diff --git ", "index ", "new file mode ", "deleted file mode ", "old mode ", "new mode ")
_NO_NEWLINE = "\\"  # "\ No newline at end of file"
_PATCH_FILE = lazy_pattern(r"^\*\*\* (?P<action>Update|Add|Delete) File: (?P<path>.+)", re.MULTILINE)
_PATCH_MOVE = lazy_pattern(r"\*\*\* Move to: (?P<path>.+)")
_KINDS: dict[str, LineKind] = {"+": "added", "-": "removed"}
_SIGNS: dict[LineKind, str] = {"added": "+", "removed": "-", "context": " "}


class DiffLine(msgspec.Struct, frozen=True):
    """One line of a hunk. `number` is its line number in the new file, or in the old file for a removed line; None if
    the position is not known yet."""

    kind: LineKind
    text: str
    number: int | None = None

    @property
    def sign(self) -> str:
        return _SIGNS[self.kind]


class DiffHunk(msgspec.Struct, frozen=True):
    """Adjacent lines of one file with their context."""

    lines: tuple[DiffLine, ...]
    old_start: int | None = None
    new_start: int | None = None
    heading: str = ""

    @property
    def old_text(self) -> str:
        return "\n".join(line.text for line in self.lines if line.kind != "added")

    @property
    def new_text(self) -> str:
        return "\n".join(line.text for line in self.lines if line.kind != "removed")


class FileDiff(msgspec.Struct, frozen=True):
    """What happens to one file. `old_path` is None for a file that is created, `new_path` for one that is deleted."""

    old_path: str | None
    new_path: str | None
    hunks: tuple[DiffHunk, ...] = ()

    @property
    def path(self) -> str:
        return self.new_path or self.old_path or ""

    @property
    def added(self) -> int:
        return sum(line.kind == "added" for hunk in self.hunks for line in hunk.lines)

    @property
    def removed(self) -> int:
        return sum(line.kind == "removed" for hunk in self.hunks for line in hunk.lines)


class DiffRow(msgspec.Struct, frozen=True):
    """One row of a diff as front ends show it: a file's name, the position of a hunk, or a line with its sign."""

    kind: RowKind
    text: str


_REST_LEFT_OUT = DiffRow("place", "… the rest is left out here …")


def diff_rows(files: Iterable[FileDiff], limit: int | None = None) -> Iterator[DiffRow]:
    """Yields the rows of a diff, as far as `limit` characters go."""
    used = 0
    for row in (row for file in files for row in _file_rows(file)):
        used += len(row.text)
        if limit is not None and used > limit:
            yield _REST_LEFT_OUT
            return
        yield row


def _file_rows(file: FileDiff) -> Iterator[DiffRow]:
    match file.old_path, file.new_path:
        case None, _:
            yield DiffRow("file", f"{file.path} (new file)")
        case _, None:
            yield DiffRow("file", f"{file.path} (deleted)")
        case old, new:
            yield DiffRow("file", new if old == new else f"{old} → {new}")
    for hunk in file.hunks:
        if position := _hunk_position(hunk):
            yield DiffRow("place", position)
        for line in hunk.lines:
            yield DiffRow(line.kind, f"{line.sign}{line.text}")


def _hunk_position(hunk: DiffHunk) -> str:
    if hunk.old_start is None or hunk.new_start is None:
        return f"@@ {hunk.heading}" if hunk.heading else ""
    return f"@@ -{hunk.old_start} +{hunk.new_start} @@ {hunk.heading}".rstrip()


def parse_unified_diff(text: str) -> list[FileDiff]:
    """Returns the files of a unified diff. Lines outside of hunks that are not a file header are ignored.

    The counts in a hunk's header decide where the hunk ends: a removed line that starts with `--` looks like a header.
    """
    return list(_read_files(text.split("\n"), []))


def text_rows(text: str) -> Iterator[DiffRow]:
    """Yields every line of a text that contains a diff. A line outside of the hunks is context or names a file. In an
    excerpt without hunk headers, the sign decides which kind a line has."""
    rows = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    kinds: dict[str, LineKind] = {} if any(_HUNK.match(row) for row in rows) else _KINDS
    position = 0
    while position < len(rows):
        row = rows[position]
        position += 1
        if (header := _HUNK.match(row)) is not None:
            yield DiffRow("place", row)
            _, end = _read_hunk(rows, position, header)
            while position < end and not _ends_hunk(rows[position]):
                yield DiffRow(_KINDS.get(rows[position][:1], "context"), rows[position])
                position += 1
        elif row.startswith("--- ") and position < len(rows) and rows[position].startswith("+++ "):
            yield DiffRow("file", row)
            yield DiffRow("file", rows[position])
            position += 1
        else:
            yield DiffRow("file" if row.startswith(_GIT_HEADERS) else kinds.get(row[:1], "context"), row)


def _ends_hunk(row: str) -> bool:
    """Returns whether the row starts something new, although the hunk before it has fewer rows than its header says:
    text was left out."""
    return row.startswith("diff --git ") or _HUNK.match(row) is not None


def replacement_diff(path: str, old: str, new: str, *, creates: bool = False) -> FileDiff:
    """Returns the diff of replacing `old` with `new` at a position that is not known yet."""
    lines = [DiffLine("removed", line) for line in _split_lines(old)]
    lines += [DiffLine("added", line) for line in _split_lines(new)]
    return FileDiff(None if creates else path, path, (DiffHunk(tuple(lines)),))


def preview_patch(text: str) -> list[FileDiff]:
    """Returns what a patch shows: `*** Update File:` sections, or a unified diff. It does not raise, because the model
    may still be writing the patch; what is applied comes from `parse_operations` in `tools/text/patch.py`."""
    if _is_unified(text):
        return list(_read_files(text.split("\n"), [], from_patch=True))
    files: list[FileDiff] = []
    action, path, target = "", "", ""
    rows: list[str] = []

    def end_section() -> None:
        if path:
            old = None if action == "Add" else path
            new = None if action == "Delete" else target or path
            files.append(FileDiff(old, new, tuple(_patch_hunks(rows))))

    for row in text.split("\n"):
        if header := _PATCH_FILE.match(row):
            end_section()
            action, path, target, rows = header["action"], header["path"].strip(), "", []
        elif move := _PATCH_MOVE.match(row):
            target = move["path"].strip()
        elif not row.startswith("***"):
            rows.append(row)
    end_section()
    return files


def is_complete_patch(text: str) -> bool:
    """Returns whether `preview_patch` shows everything that `apply_patch` could apply.

    The tool is more tolerant than a reader of diffs: it applies lines beyond the counts of a hunk and hunks without
    line numbers. If this returns False, show the patch itself to the person who approves it.
    """
    rows = text.split("\n")
    if _is_unified(text):
        ignored: list[str] = []
        list(_read_files(rows, ignored))
        return all(not row.strip() or row.startswith((*_GIT_HEADERS, _NO_NEWLINE)) for row in ignored)
    changed = sum(file.added + file.removed for file in preview_patch(text))
    return changed == sum(row[:1] in _KINDS for row in rows)


def _is_unified(text: str) -> bool:
    return _PATCH_BEGIN not in text and (not _PATCH_FILE.search(text) or "\n+++ " in text)


def patch_rows(text: str) -> list[DiffLine]:
    """Returns every row of a patch as the model wrote it; a header is a context line.

    `preview_patch` leaves out rows that belong to no hunk. Where a person approves a patch, nothing may be left out.
    """
    headers = ("***", "@@", "diff ", "index ", "--- ", "+++ ")
    return [
        DiffLine("context", row.removeprefix(" "))
        if row.startswith(headers) or row[:1] not in _KINDS
        else DiffLine(_KINDS[row[0]], row[1:])
        for row in text.split("\n")
    ]


def _patch_hunks(rows: Sequence[str]) -> Iterator[DiffHunk]:
    lines: list[DiffLine] = []
    heading = ""
    for row in rows:
        if row.startswith("@@"):
            if lines:
                yield DiffHunk(tuple(lines), heading=heading)
            lines, heading = [], row.removeprefix("@@").strip().removesuffix("@@").strip()
        elif row:
            lines.append(DiffLine(_KINDS.get(row[0], "context"), row[1:]))
    if lines:
        yield DiffHunk(tuple(lines), heading=heading)


def _read_files(rows: Sequence[str], ignored: list[str], *, from_patch: bool = False) -> Iterator[FileDiff]:
    """Yields the files of a unified diff and appends the rows that belong to none to `ignored`."""
    old = new = ""
    hunks: list[DiffHunk] = []
    from_git = False
    position = 0
    while position < len(rows):
        row = rows[position]
        position += 1
        following = rows[position] if position < len(rows) else ""
        if row.startswith("--- ") and following.startswith("+++ "):
            if hunks:
                yield _file_diff(old, new, hunks, has_prefixes=from_git or (from_patch and _has_git_prefixes(old, new)))
            old, new, hunks = _header_name(row), _header_name(following), []
            position += 1
        elif (header := _HUNK.match(row)) is not None:
            hunk, position = _read_hunk(rows, position, header)
            hunks.append(hunk)
        else:
            from_git = from_git or row.startswith("diff --git ")
            ignored.append(row)
    if hunks:
        yield _file_diff(old, new, hunks, has_prefixes=from_git or (from_patch and _has_git_prefixes(old, new)))


def _has_git_prefixes(old: str, new: str) -> bool:
    """Returns whether both names have git's prefixes. `apply_patch` has the same rule, so that a person approves the
    path that is written."""
    return (old.startswith("a/") or old == _NO_FILE) and (new.startswith("b/") or new == _NO_FILE)


def _file_diff(old: str, new: str, hunks: Sequence[DiffHunk], *, has_prefixes: bool) -> FileDiff:
    """Returns the diff of a file. Git writes `a/` and `b/` before the names; in other diffs `a/` may be a real
    folder."""
    if has_prefixes or (old.startswith("a/") and new.startswith("b/")):
        old, new = old.removeprefix("a/"), new.removeprefix("b/")
    return FileDiff(None if old == _NO_FILE else old, None if new == _NO_FILE else new, tuple(hunks))


def _read_hunk(rows: Sequence[str], position: int, header: re.Match[str]) -> tuple[DiffHunk, int]:
    old, new = int(header["old"]), int(header["new"])
    old_left = 1 if header["old_count"] is None else int(header["old_count"])
    new_left = 1 if header["new_count"] is None else int(header["new_count"])
    lines: list[DiffLine] = []
    old_number, new_number = old, new
    while position < len(rows) and (old_left > 0 or new_left > 0):
        row = rows[position]
        position += 1
        if row.startswith(_NO_NEWLINE):
            continue
        kind = _KINDS.get(row[:1], "context")
        lines.append(DiffLine(kind, row[1:], old_number if kind == "removed" else new_number))
        if kind != "added":
            old_number, old_left = old_number + 1, old_left - 1
        if kind != "removed":
            new_number, new_left = new_number + 1, new_left - 1
    return DiffHunk(tuple(lines), old, new, header["heading"]), position


def _header_name(row: str) -> str:
    """Returns the name after `--- ` or `+++ `, without a timestamp."""
    return row[4:].partition("\t")[0]


def _split_lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def group_git_files(paths: Iterable[str]) -> list[str]:
    """Returns the paths with git's files as one entry for each repository, such as `.git (11 files)`: the names of
    objects and logs mean nothing to a reader."""
    groups: dict[str, int] = {}
    for path in paths:
        name = git_folder_of(path) or path
        groups[name] = groups.get(name, 0) + bool(git_folder_of(path))
    return [f"{name} ({format_count(count, 'file')})" if count else name for name, count in groups.items()]


def git_folder_of(path: str) -> str:
    """Returns the git folder that contains the file, or an empty string."""
    repository, separator, _ = f"/{path}".partition("/.git/")
    return f"{repository}/.git".removeprefix("/") if separator else ""
