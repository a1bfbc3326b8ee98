"""Reads the form `*** Begin Patch … *** End Patch`."""

from outrider.errors import ToolFailure
from outrider.tools.patches.wish import AddFile, DeleteFile, UpdateFile, Wish
from outrider.tools.text.hunk import Hunk, Move, Step

_ADD, _DELETE, _UPDATE, _MOVE = "*** Add File: ", "*** Delete File: ", "*** Update File: ", "*** Move to: "
_END_OF_FILE = "*** End of File"
_MOVES: dict[str, Move] = {" ": " ", "-": "-", "+": "+"}


def read_begin_patch(lines: list[str]) -> list[Wish]:
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

    def read(self) -> list[Wish]:
        wishes: list[Wish] = []
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
