"""What a patch asks for, file by file, in whichever form it was written."""

import re
from collections.abc import Callable

import msgspec

from outrider.errors import ToolFailure
from outrider.tools.text.encoding import ending_of, split_lines, without_ending
from outrider.tools.text.replace import Hunk, Match, Move, Step, apply_steps, close_ends, find_matches


class AddFile(msgspec.Struct, frozen=True):
    path: str
    text: str


class DeleteFile(msgspec.Struct, frozen=True):
    path: str


class UpdateFile(msgspec.Struct, frozen=True):
    """`move_to` is where the file goes, with or without changes."""

    path: str
    hunks: tuple[Hunk, ...]
    move_to: str | None = None


FileOperation = AddFile | DeleteFile | UpdateFile


_ADD, _DELETE, _UPDATE, _MOVE = "*** Add File: ", "*** Delete File: ", "*** Update File: ", "*** Move to: "
_END_OF_FILE = "*** End of File"
_MOVES: dict[str, Move] = {" ": " ", "-": "-", "+": "+"}


def read_begin_patch(lines: list[str]) -> list[FileOperation]:
    """A patch without its end is the beginning of one, and nothing of it is taken."""
    marks = [line.strip() for line in lines]
    start = marks.index("*** Begin Patch") if "*** Begin Patch" in marks else -1
    if start < 0 or "*** End Patch" not in marks[start:]:
        raise ToolFailure("the patch is not whole: it begins with `*** Begin Patch` and ends with `*** End Patch`")
    return _Reader(lines[start + 1 : marks.index("*** End Patch", start)], start + 2).read()


class _Reader:
    """Goes through the lines once; `_number` is where the present line stands in what the model wrote."""

    def __init__(self, lines: list[str], first: int) -> None:
        self._lines = lines
        self._first = first
        self._at = 0

    def read(self) -> list[FileOperation]:
        wishes: list[FileOperation] = []
        while self._at < len(self._lines):
            line = self._take()
            if line.startswith(_ADD):
                wishes.append(self._added(_path(line, _ADD)))
            elif line.startswith(_DELETE):
                wishes.append(DeleteFile(_path(line, _DELETE)))
            elif line.startswith(_UPDATE):
                wishes.append(self._updated(_path(line, _UPDATE)))
            elif line.strip():
                raise self._unexpected(line, "`*** Add File: `, `*** Update File: ` or `*** Delete File: `")
        return wishes

    def _added(self, path: str) -> AddFile:
        text: list[str] = []
        while self._more_of_file():
            line = self._take()
            if not line.startswith("+") and line.strip():
                raise self._unexpected(line, "a line of the new file, which begins with `+`")
            if line.startswith("+"):
                text.append(line[1:] + "\n")
        return AddFile(path, "".join(text))

    def _updated(self, path: str) -> UpdateFile:
        move_to = None
        if self._more_of_file(moving=True) and self._lines[self._at].startswith(_MOVE):
            move_to = _path(self._take(), _MOVE)
        hunks: list[Hunk] = []
        while self._more_of_file():
            if not self._lines[self._at].strip() and not hunks:
                self._take()
                continue
            hunks.append(self._hunk())
        if not hunks and move_to is None:
            raise ToolFailure(f"the patch does not say what to change in {path}")
        return UpdateFile(path, tuple(hunks), move_to)

    def _hunk(self) -> Hunk:
        anchors: list[str] = []
        while self._more_of_file() and self._lines[self._at].startswith("@@"):
            anchor = self._take()[2:].strip().removesuffix("@@").strip()
            anchors += [anchor] if anchor else []
        steps: list[Step] = []
        at_end = False
        while not at_end and self._more_of_file() and not self._lines[self._at].startswith("@@"):
            line = self._take()
            at_end = line.startswith(_END_OF_FILE)
            if not at_end:
                steps.append(self._step(line))
        while steps and steps[-1] == Step(" ", "") and not self._more_of_file():
            steps.pop()  # blank lines between two files of the patch
        if not steps:
            raise ToolFailure(f"line {self._first + self._at} of the patch: a hunk without lines")
        return Hunk(tuple(steps), tuple(anchors), at_end=at_end)

    def _step(self, line: str) -> Step:
        if not line:
            return Step(" ", "")  # an empty line of context, whose blank was lost
        if line[0] not in _MOVES:
            raise self._unexpected(line, "a line that begins with a blank, `-` or `+`")
        return Step(_MOVES[line[0]], line[1:])

    def _more_of_file(self, *, moving: bool = False) -> bool:
        if self._at >= len(self._lines):
            return False
        line = self._lines[self._at]
        return not line.startswith("*** ") or line.startswith(_END_OF_FILE) or (moving and line.startswith(_MOVE))

    def _take(self) -> str:
        self._at += 1
        return self._lines[self._at - 1]

    def _unexpected(self, line: str, wanted: str) -> ToolFailure:
        number = self._first + self._at - 1
        return ToolFailure(f"line {number} of the patch: expected {wanted}, got {line[:100]!r}. Nothing was written")


def _path(line: str, mark: str) -> str:
    return line[len(mark) :].strip()


_HEADER = re.compile(r"^@@+ -(?P<at>\d+)(?:,(?P<old>\d+))? \+\d+(?:,(?P<new>\d+))? @@+")
_NOTHING = "/dev/null"
_MOVES_UNIFIED_DIFF: dict[str, Move] = {" ": " ", "-": "-", "+": "+"}
_QUOTED = re.compile(rb"\\(?:([0-7]{3})|(.))")
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}


def read_unified_diff(lines: list[str]) -> list[FileOperation]:
    return _ReaderOfUnifiedDiff(lines).read()


class _Section:
    """One file of the diff while it is read."""

    def __init__(self) -> None:
        self.old: str | None = None
        self.new: str | None = None
        self.renamed_from: str | None = None
        self.renamed_to: str | None = None
        self.hunks: list[Hunk] = []

    def wish(self) -> FileOperation | None:
        old, new = self.renamed_from or self.old, self.renamed_to or self.new
        if old is None or new is None:
            return None
        if old == _NOTHING:
            steps = [step for hunk in self.hunks for step in hunk.steps]
            return AddFile(new, "".join(step.text + ("" if step.bare else "\n") for step in steps))
        if new == _NOTHING:
            return DeleteFile(old)
        if not self.hunks and old == new:
            return None
        return UpdateFile(old, tuple(self.hunks), new if new != old else None)


class _ReaderOfUnifiedDiff:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0
        self._wishes: list[FileOperation] = []
        self._section = _Section()

    def read(self) -> list[FileOperation]:
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.startswith("diff --git "):
                self._finish()
            elif self._names_follow():
                self._names()
            elif line.startswith("@@"):
                self._section.hunks.append(self._hunk())
                continue
            else:
                self._extra(line)
            self._at += 1
        self._finish()
        return self._wishes

    def _finish(self) -> None:
        wish = self._section.wish()
        if wish is not None:
            self._wishes.append(wish)
        self._section = _Section()

    def _names_follow(self) -> bool:
        following = self._lines[self._at + 1] if self._at + 1 < len(self._lines) else ""
        return self._lines[self._at].startswith("--- ") and following.startswith("+++ ")

    def _names(self) -> None:
        if self._section.hunks or self._section.old is not None:
            self._finish()
        old, new = _name(self._lines[self._at][4:]), _name(self._lines[self._at + 1][4:])
        if (old.startswith("a/") or old == _NOTHING) and (new.startswith("b/") or new == _NOTHING):
            old, new = old.removeprefix("a/"), new.removeprefix("b/")
        self._section.old, self._section.new = old, new
        self._at += 1

    def _extra(self, line: str) -> None:
        """Git's own headers; anything else before the first file is talk."""
        if line.startswith(("GIT binary patch", "Binary files ")):
            raise ToolFailure("a binary patch cannot be applied. Nothing was written")
        if line.startswith("rename from "):
            self._section.renamed_from = _name(line[12:])
        elif line.startswith("rename to "):
            self._section.renamed_to = _name(line[10:])
        elif self._section.hunks and line.strip() and line[0] not in "di\\":
            raise ToolFailure(f"line {self._at + 1} of the patch: not a line of a diff: {line[:100]!r}")

    def _hunk(self) -> Hunk:
        header = _HEADER.match(self._lines[self._at])
        if self._section.old is None:
            raise ToolFailure(f"line {self._at + 1} of the patch: a hunk before `--- file` and `+++ file`")
        old_left = int(header["old"] or 1) if header else 0
        new_left = int(header["new"] or 1) if header else 0
        self._at += 1
        steps: list[Step] = []
        while self._at < len(self._lines) and self._goes_on(old_left > 0 or new_left > 0):
            line = self._lines[self._at]
            self._at += 1
            if line.startswith("\\"):
                steps[-1:] = [Step(step.move, step.text, bare=True) for step in steps[-1:]]
                continue
            step = Step(_MOVES_UNIFIED_DIFF[line[:1] or " "], line[1:])
            old_left -= step.move != "+"
            new_left -= step.move != "-"
            steps.append(step)
        while steps and steps[-1] == Step(" ", "") and old_left < 0:
            steps.pop()  # blank lines after the hunk
            old_left += 1
        return Hunk(tuple(steps), at=int(header["at"]) if header else None)

    def _goes_on(self, lines_left: bool) -> bool:  # noqa: FBT001
        line = self._lines[self._at]
        if line[:1] not in {"", " ", "-", "+", "\\"}:
            return False
        return lines_left or not self._names_follow()


def _name(text: str) -> str:
    """A path without the time that some programs write after it; git quotes unusual ones."""
    text = text.split("\t", maxsplit=1)[0].strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        return _QUOTED.sub(_unquoted, text[1:-1].encode()).decode("utf-8", "surrogateescape")
    return text


def _unquoted(match: "re.Match[bytes]") -> bytes:
    octal, char = match.groups()
    return bytes([int(octal, 8) & 0xFF]) if octal else _ESCAPES.get(char, char)


_FENCE = re.compile(r"\A\s*```[^\n]*\n(?P<inner>.*?)\n```\s*\Z", re.DOTALL)
_HEREDOC = re.compile(r"\A[^\n]*<<-?\s*['\"]?(?P<mark>\w+)['\"]?[^\n]*\n(?P<inner>.*?)\n(?P=mark)\s*\Z", re.DOTALL)


def read_patch(text: str) -> list[FileOperation]:
    """Raises ToolFailure for what is no patch, or not a whole one: nothing of it is applied then."""
    text = text.replace("\r\n", "\n")
    for wrapping in (_FENCE, _HEREDOC):
        if wrapped := wrapping.match(text):
            text = wrapped["inner"]
    reader: Callable[[list[str]], list[FileOperation]] = (
        read_begin_patch if "*** Begin Patch" in text else read_unified_diff
    )
    wishes = reader(text.split("\n"))
    if not wishes:
        raise ToolFailure("the patch changes nothing: it holds no `*** Update File:` (or Add, Delete) and no diff")
    return wishes


def apply_hunks(text: str, hunks: tuple[Hunk, ...], *, tolerant: bool) -> str:
    """Hunks stand in the order of the file. Raises ToolFailure unless each place is beyond doubt."""
    lines = split_lines(text)
    shift = cursor = 0
    for number, hunk in enumerate(hunks, 1):
        match = _placed(lines, hunk, cursor, shift, tolerant=tolerant, number=number)
        size = len(hunk.old)
        ending = _ending(lines, match.place, size)
        middle = apply_steps(lines, hunk.steps, match, ending)
        if middle is None:
            raise _unfit(hunk, number)
        before, after = lines[: match.place], lines[match.place + size :]
        if not after and middle:
            middle[-1] = _last(lines, middle[-1], hunk, ending)
        lines = close_ends(before, middle, after, ending)
        cursor = match.place + len(middle)
        shift += len(middle) - size
    return "".join(lines)


def _placed(lines: list[str], hunk: Hunk, cursor: int, shift: int, *, tolerant: bool, number: int) -> Match:
    start = _after_anchors(lines, hunk, cursor, number)
    if not hunk.old:
        place = start if hunk.anchors else len(lines)
        stated = hunk.at + shift if hunk.at is not None else place
        return Match(max(cursor, min(stated, len(lines))), "exact", lambda line: line)
    matches = find_matches(lines, hunk.old, start=cursor, tolerant=tolerant)
    if hunk.at_end:
        matches = [match for match in matches if match.place + len(hunk.old) == len(lines)]
    stated = [match for match in matches if hunk.at is not None and match.place == hunk.at - 1 + shift]
    if hunk.anchors and len(matches) > 1:
        matches = [match for match in matches if match.place >= start][:1]
    matches = stated or matches
    if not matches:
        raise _unfit(hunk, number)
    if len(matches) > 1:
        where = ", ".join(str(match.place + 1) for match in matches[:10])
        raise ToolFailure(
            f"hunk {number} fits at lines {where}; add lines of context, or `@@` with a line before it. "
            "Nothing was written"
        )
    return matches[0]


def _after_anchors(lines: list[str], hunk: Hunk, cursor: int, number: int) -> int:
    """The line after the anchors, which must each be found once, one after the other."""
    place = cursor
    for anchor in hunk.anchors:
        found = [at for at in range(place, len(lines)) if lines[at].strip() == anchor.strip()]
        found = found or [at for at in range(place, len(lines)) if anchor.strip() in lines[at]]
        if not found:
            raise ToolFailure(f"hunk {number}: the line `@@ {anchor[:200]}` is not in the rest of the file")
        if len(found) > 1 and len(find_matches(lines, hunk.old, start=cursor)) != 1:
            where = ", ".join(str(at + 1) for at in found[:10])
            raise ToolFailure(f"hunk {number}: the line `@@ {anchor[:200]}` is there several times (lines {where})")
        place = found[0] + 1
    return place


def _ending(lines: list[str], place: int, size: int) -> str:
    """Of the lines that are replaced, else of their neighbours."""
    near = [
        *reversed(lines[place : place + size]),
        *lines[place + size : place + size + 1],
        *lines[max(place - 1, 0) :],
    ]
    return next((ending for ending in map(ending_of, near) if ending), "\n")


def _last(lines: list[str], line: str, hunk: Hunk, ending: str) -> str:
    """The end of the file stays with or without a line ending, unless the patch says otherwise."""
    old = [step for step in hunk.steps if step.move != "+"]
    new = [step for step in hunk.steps if step.move != "-"]
    if any(step.bare for step in [*old, *new]):
        return without_ending(line) + ("" if new[-1].bare else ending)
    was_bare = bool(lines) and not ending_of(lines[-1])
    return without_ending(line) + ("" if was_bare else ending)


def _unfit(hunk: Hunk, number: int) -> ToolFailure:
    wanted = "\n".join(hunk.old[:12])
    return ToolFailure(f"hunk {number} does not fit; these lines are not in the file. Nothing was written:\n{wanted}")
