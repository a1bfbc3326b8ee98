"""Reads unified diffs, plain and git's."""

import re

from outrider.errors import ToolFailure
from outrider.tools.patches.wish import AddFile, DeleteFile, UpdateFile, Wish
from outrider.tools.text.hunk import Hunk, Move, Step

_HEADER = re.compile(r"^@@+ -(?P<at>\d+)(?:,(?P<old>\d+))? \+\d+(?:,(?P<new>\d+))? @@+")
_NOTHING = "/dev/null"
_MOVES: dict[str, Move] = {" ": " ", "-": "-", "+": "+"}
_QUOTED = re.compile(rb"\\(?:([0-7]{3})|(.))")
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}


def read_unified_diff(lines: list[str]) -> list[Wish]:
    return _Reader(lines).read()


class _Section:
    """One file of the diff while it is read."""

    def __init__(self) -> None:
        self.old: str | None = None
        self.new: str | None = None
        self.renamed_from: str | None = None
        self.renamed_to: str | None = None
        self.hunks: list[Hunk] = []

    def wish(self) -> Wish | None:
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


class _Reader:
    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0
        self._wishes: list[Wish] = []
        self._section = _Section()

    def read(self) -> list[Wish]:
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
            step = Step(_MOVES[line[:1] or " "], line[1:])
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
