"""Parses patches (`*** Begin Patch` format and unified diffs) and applies their hunks."""

import re
from collections.abc import Callable

import msgspec

from outrider.errors import ToolFailure
from outrider.tools.text.encoding import ending_of, split_lines, without_ending
from outrider.tools.text.replace import (
    HunkLine,
    HunkMatch,
    LineAction,
    PatchHunk,
    apply_hunk_lines,
    find_matches,
    join_lines,
)


class AddFile(msgspec.Struct, frozen=True):
    path: str
    text: str


class DeleteFile(msgspec.Struct, frozen=True):
    path: str


class UpdateFile(msgspec.Struct, frozen=True):
    """Changes a file. `move_to` is the new path, if any."""

    path: str
    hunks: tuple[PatchHunk, ...]
    move_to: str | None = None


FileOperation = AddFile | DeleteFile | UpdateFile


_ADD, _DELETE, _UPDATE, _MOVE = "*** Add File: ", "*** Delete File: ", "*** Update File: ", "*** Move to: "
_END_OF_FILE = "*** End of File"
_MOVES: dict[str, LineAction] = {" ": " ", "-": "-", "+": "+"}


def _parse_begin_patch(lines: list[str]) -> list[FileOperation]:
    """Parses the `*** Begin Patch` format. Raises ToolFailure if the end marker is missing, because the patch may be
    truncated."""
    marks = [line.strip() for line in lines]
    start = marks.index("*** Begin Patch") if "*** Begin Patch" in marks else -1
    if start < 0 or "*** End Patch" not in marks[start:]:
        raise ToolFailure("the patch is not whole: it begins with `*** Begin Patch` and ends with `*** End Patch`")
    return _BeginPatchParser(lines[start + 1 : marks.index("*** End Patch", start)], start + 2).parse()


class _BeginPatchParser:
    """Parser for the lines of a `*** Begin Patch` block; `first_line` is its line number, for error messages."""

    def __init__(self, lines: list[str], first_line: int) -> None:
        self._lines = lines
        self._first_line = first_line
        self._position = 0

    def parse(self) -> list[FileOperation]:
        operations: list[FileOperation] = []
        while self._position < len(self._lines):
            line = self._next_line()
            if line.startswith(_ADD):
                operations.append(self._parse_added_file(_header_path(line, _ADD)))
            elif line.startswith(_DELETE):
                operations.append(DeleteFile(_header_path(line, _DELETE)))
            elif line.startswith(_UPDATE):
                operations.append(self._parse_updated_file(_header_path(line, _UPDATE)))
            elif line.strip():
                raise self._unexpected_line(line, "`*** Add File: `, `*** Update File: ` or `*** Delete File: `")
        return operations

    def _parse_added_file(self, path: str) -> AddFile:
        text: list[str] = []
        while self._has_more_lines():
            line = self._next_line()
            if not line.startswith("+") and line.strip():
                raise self._unexpected_line(line, "a line of the new file, which begins with `+`")
            if line.startswith("+"):
                text.append(line[1:] + "\n")
        return AddFile(path, "".join(text))

    def _parse_updated_file(self, path: str) -> UpdateFile:
        move_to = None
        if self._has_more_lines(moving=True) and self._lines[self._position].startswith(_MOVE):
            move_to = _header_path(self._next_line(), _MOVE)
        hunks: list[PatchHunk] = []
        while self._has_more_lines():
            if not self._lines[self._position].strip() and not hunks:
                self._next_line()
                continue
            hunks.append(self._parse_hunk())
        if not hunks and move_to is None:
            raise ToolFailure(f"the patch does not say what to change in {path}")
        return UpdateFile(path, tuple(hunks), move_to)

    def _parse_hunk(self) -> PatchHunk:
        anchors: list[str] = []
        while self._has_more_lines() and self._lines[self._position].startswith("@@"):
            anchor = self._next_line()[2:].strip().removesuffix("@@").strip()
            anchors += [anchor] if anchor else []
        steps: list[HunkLine] = []
        at_end = False
        while not at_end and self._has_more_lines() and not self._lines[self._position].startswith("@@"):
            line = self._next_line()
            at_end = line.startswith(_END_OF_FILE)
            if not at_end:
                steps.append(self._parse_line(line))
        while steps and steps[-1] == HunkLine(" ", "") and not self._has_more_lines():
            steps.pop()  # blank lines between two files of the patch
        if not steps:
            raise ToolFailure(f"line {self._first_line + self._position} of the patch: a hunk without lines")
        return PatchHunk(tuple(steps), tuple(anchors), at_end=at_end)

    def _parse_line(self, line: str) -> HunkLine:
        if not line:
            return HunkLine(" ", "")  # an empty context line that lost its leading space
        if line[0] not in _MOVES:
            raise self._unexpected_line(line, "a line that begins with a blank, `-` or `+`")
        return HunkLine(_MOVES[line[0]], line[1:])

    def _has_more_lines(self, *, moving: bool = False) -> bool:
        if self._position >= len(self._lines):
            return False
        line = self._lines[self._position]
        return not line.startswith("*** ") or line.startswith(_END_OF_FILE) or (moving and line.startswith(_MOVE))

    def _next_line(self) -> str:
        self._position += 1
        return self._lines[self._position - 1]

    def _unexpected_line(self, line: str, expected: str) -> ToolFailure:
        number = self._first_line + self._position - 1
        return ToolFailure(f"line {number} of the patch: expected {expected}, got {line[:100]!r}. Nothing was written")


def _header_path(line: str, mark: str) -> str:
    return line[len(mark) :].strip()


_HUNK_HEADER = re.compile(r"^@@+ -(?P<at>\d+)(?:,(?P<old>\d+))? \+\d+(?:,(?P<new>\d+))? @@+")
_DEV_NULL = "/dev/null"
_MOVES_UNIFIED_DIFF: dict[str, LineAction] = {" ": " ", "-": "-", "+": "+"}
_QUOTED_CHARACTER = re.compile(rb"\\(?:([0-7]{3})|(.))")
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}


def _parse_unified(lines: list[str]) -> list[FileOperation]:
    return _UnifiedDiffParser(lines).parse()


class _DiffSection:
    """One file of a unified diff during parsing."""

    def __init__(self) -> None:
        self.old: str | None = None
        self.new: str | None = None
        self.renamed_from: str | None = None
        self.renamed_to: str | None = None
        self.hunks: list[PatchHunk] = []

    def to_operation(self) -> FileOperation | None:
        old, new = self.renamed_from or self.old, self.renamed_to or self.new
        if old is None or new is None:
            return None
        if old == _DEV_NULL:
            steps = [step for hunk in self.hunks for step in hunk.steps]
            return AddFile(new, "".join(step.text + ("" if step.no_newline else "\n") for step in steps))
        if new == _DEV_NULL:
            return DeleteFile(old)
        if not self.hunks and old == new:
            return None
        return UpdateFile(old, tuple(self.hunks), new if new != old else None)


class _UnifiedDiffParser:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._position = 0
        self._operations: list[FileOperation] = []
        self._section = _DiffSection()

    def parse(self) -> list[FileOperation]:
        while self._position < len(self._lines):
            line = self._lines[self._position]
            if line.startswith("diff --git "):
                self._finish_section()
            elif self._names_follow():
                self._parse_file_names()
            elif line.startswith("@@"):
                self._section.hunks.append(self._parse_hunk())
                continue
            else:
                self._parse_git_header(line)
            self._position += 1
        self._finish_section()
        return self._operations

    def _finish_section(self) -> None:
        operation = self._section.to_operation()
        if operation is not None:
            self._operations.append(operation)
        self._section = _DiffSection()

    def _names_follow(self) -> bool:
        following = self._lines[self._position + 1] if self._position + 1 < len(self._lines) else ""
        return self._lines[self._position].startswith("--- ") and following.startswith("+++ ")

    def _parse_file_names(self) -> None:
        if self._section.hunks or self._section.old is not None:
            self._finish_section()
        old, new = _parse_path(self._lines[self._position][4:]), _parse_path(self._lines[self._position + 1][4:])
        if (old.startswith("a/") or old == _DEV_NULL) and (new.startswith("b/") or new == _DEV_NULL):
            old, new = old.removeprefix("a/"), new.removeprefix("b/")
        self._section.old, self._section.new = old, new
        self._position += 1

    def _parse_git_header(self, line: str) -> None:
        """Parses git's extended headers. Other text before the first file is ignored."""
        if line.startswith(("GIT binary patch", "Binary files ")):
            raise ToolFailure("a binary patch cannot be applied. Nothing was written")
        if line.startswith("rename from "):
            self._section.renamed_from = _parse_path(line[12:])
        elif line.startswith("rename to "):
            self._section.renamed_to = _parse_path(line[10:])
        elif self._section.hunks and line.strip() and line[0] not in "di\\":
            raise ToolFailure(f"line {self._position + 1} of the patch: not a line of a diff: {line[:100]!r}")

    def _parse_hunk(self) -> PatchHunk:
        header = _HUNK_HEADER.match(self._lines[self._position])
        if self._section.old is None:
            raise ToolFailure(f"line {self._position + 1} of the patch: a hunk before `--- file` and `+++ file`")
        old_left = int(header["old"] or 1) if header else 0
        new_left = int(header["new"] or 1) if header else 0
        self._position += 1
        steps: list[HunkLine] = []
        while self._position < len(self._lines) and self._hunk_continues(old_left > 0 or new_left > 0):
            line = self._lines[self._position]
            self._position += 1
            if line.startswith("\\"):
                steps[-1:] = [HunkLine(step.action, step.text, no_newline=True) for step in steps[-1:]]
                continue
            step = HunkLine(_MOVES_UNIFIED_DIFF[line[:1] or " "], line[1:])
            old_left -= step.action != "+"
            new_left -= step.action != "-"
            steps.append(step)
        while steps and steps[-1] == HunkLine(" ", "") and old_left < 0:
            steps.pop()  # blank lines after the hunk
            old_left += 1
        return PatchHunk(tuple(steps), stated_line=int(header["at"]) if header else None)

    def _hunk_continues(self, lines_left: bool) -> bool:  # noqa: FBT001
        line = self._lines[self._position]
        if line[:1] not in {"", " ", "-", "+", "\\"}:
            return False
        return lines_left or not self._names_follow()


def _parse_path(text: str) -> str:
    """Returns the path without a trailing timestamp. Unquotes git's quoted paths."""
    text = text.split("\t", maxsplit=1)[0].strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        return _QUOTED_CHARACTER.sub(_unescape, text[1:-1].encode()).decode("utf-8", "surrogateescape")
    return text


def _unescape(match: "re.Match[bytes]") -> bytes:
    octal, char = match.groups()
    return bytes([int(octal, 8) & 0xFF]) if octal else _ESCAPES.get(char, char)


_FENCE = re.compile(r"\A\s*```[^\n]*\n(?P<inner>.*?)\n```\s*\Z", re.DOTALL)
_HEREDOC = re.compile(r"\A[^\n]*<<-?\s*['\"]?(?P<mark>\w+)['\"]?[^\n]*\n(?P<inner>.*?)\n(?P=mark)\s*\Z", re.DOTALL)


def parse_operations(text: str) -> list[FileOperation]:
    """Returns the operations of a patch in either format. Raises ToolFailure if it is invalid or incomplete: nothing is
    applied then. To show a patch, also one that is still being written, use `preview_patch` of
    `presentation/diffs.py`."""
    text = text.replace("\r\n", "\n")
    for wrapping in (_FENCE, _HEREDOC):
        if wrapped := wrapping.match(text):
            text = wrapped["inner"]
    reader: Callable[[list[str]], list[FileOperation]] = (
        _parse_begin_patch if "*** Begin Patch" in text else _parse_unified
    )
    operations = reader(text.split("\n"))
    if not operations:
        raise ToolFailure("the patch changes nothing: it holds no `*** Update File:` (or Add, Delete) and no diff")
    return operations


def apply_hunks(text: str, hunks: tuple[PatchHunk, ...], *, tolerant: bool) -> str:
    """Applies hunks in file order. Raises ToolFailure unless each hunk matches at exactly one position."""
    lines = split_lines(text)
    shift = cursor = 0
    for number, hunk in enumerate(hunks, 1):
        match = _locate_hunk(lines, hunk, cursor, shift, tolerant=tolerant, number=number)
        size = len(hunk.old_lines)
        ending = _line_ending_near(lines, match.index, size)
        middle = apply_hunk_lines(lines, hunk.steps, match, ending)
        if middle is None:
            raise _mismatch_failure(hunk, number)
        preceding, following = lines[: match.index], lines[match.index + size :]
        if not following and middle:
            middle[-1] = _fix_last_line(lines, middle[-1], hunk, ending)
        lines = join_lines(preceding, middle, following, ending)
        cursor = match.index + len(middle)
        shift += len(middle) - size
    return "".join(lines)


def _locate_hunk(
    lines: list[str], hunk: PatchHunk, cursor: int, shift: int, *, tolerant: bool, number: int
) -> HunkMatch:
    start = _after_anchors(lines, hunk, cursor, number)
    if not hunk.old_lines:
        index = start if hunk.anchors else len(lines)
        stated = hunk.stated_line + shift if hunk.stated_line is not None else index
        return HunkMatch(max(cursor, min(stated, len(lines))), "exact", lambda line: line)
    matches = find_matches(lines, hunk.old_lines, start=cursor, tolerant=tolerant)
    if hunk.at_end:
        matches = [match for match in matches if match.index + len(hunk.old_lines) == len(lines)]
    stated = [
        match for match in matches if hunk.stated_line is not None and match.index == hunk.stated_line - 1 + shift
    ]
    if hunk.anchors and len(matches) > 1:
        matches = [match for match in matches if match.index >= start][:1]
    matches = stated or matches
    if not matches:
        raise _mismatch_failure(hunk, number)
    if len(matches) > 1:
        line_numbers = ", ".join(str(match.index + 1) for match in matches[:10])
        raise ToolFailure(
            f"hunk {number} fits at lines {line_numbers}; add lines of context, or `@@` with a line before it. "
            "Nothing was written"
        )
    return matches[0]


def _after_anchors(lines: list[str], hunk: PatchHunk, cursor: int, number: int) -> int:
    """Returns the index after the anchors. Each must match once, in order; otherwise raises ToolFailure."""
    index = cursor
    for anchor in hunk.anchors:
        matches = [position for position in range(index, len(lines)) if lines[position].strip() == anchor.strip()]
        matches = matches or [position for position in range(index, len(lines)) if anchor.strip() in lines[position]]
        if not matches:
            raise ToolFailure(f"hunk {number}: the line `@@ {anchor[:200]}` is not in the rest of the file")
        if len(matches) > 1 and len(find_matches(lines, hunk.old_lines, start=cursor)) != 1:
            line_numbers = ", ".join(str(position + 1) for position in matches[:10])
            raise ToolFailure(
                f"hunk {number}: the line `@@ {anchor[:200]}` is there several times (lines {line_numbers})"
            )
        index = matches[0] + 1
    return index


def _line_ending_near(lines: list[str], index: int, size: int) -> str:
    """Returns the line ending of the replaced lines, else of adjacent lines."""
    near = [
        *reversed(lines[index : index + size]),
        *lines[index + size : index + size + 1],
        *lines[max(index - 1, 0) :],
    ]
    return next((ending for ending in map(ending_of, near) if ending), "\n")


def _fix_last_line(lines: list[str], line: str, hunk: PatchHunk, ending: str) -> str:
    """Preserves the missing or present line ending at the end of the file, unless the patch changes it."""
    old = [step for step in hunk.steps if step.action != "+"]
    new = [step for step in hunk.steps if step.action != "-"]
    if any(step.no_newline for step in [*old, *new]):
        return without_ending(line) + ("" if new[-1].no_newline else ending)
    was_bare = bool(lines) and not ending_of(lines[-1])
    return without_ending(line) + ("" if was_bare else ending)


def _mismatch_failure(hunk: PatchHunk, number: int) -> ToolFailure:
    old_text = "\n".join(hunk.old_lines[:12])
    return ToolFailure(f"hunk {number} does not fit; these lines are not in the file. Nothing was written:\n{old_text}")
