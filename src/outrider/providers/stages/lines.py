"""Where a reader of Markdown stands: at the start of a line, inside a fence, inside inline code."""

import re

_FENCE = re.compile(r"[ \t>]*(?P<run>`{3,}|~{3,})(?P<rest>.*)", re.DOTALL)
_TICKS = re.compile(r"`+")


class Lines:
    """Follows a text that is added in pieces of any size."""

    __slots__ = ("_code", "_pieces", "_unread", "fence", "fresh", "last")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._unread: list[str] = []  # of the line: what `in_code` has not looked at
        self._code = ""  # the backticks that opened inline code, as far as it has looked
        self.fence = ""  # the marks that opened the fence we are in
        self.fresh = True  # nothing but blanks on this line so far
        self.last = ""  # the last character

    def add(self, text: str) -> None:
        if not text:
            return
        self.last = text[-1]
        if "\n" in text:
            text = self._end_lines(text)
        self._pieces.append(text)
        self._unread.append(text)
        if self.fresh and text and not text.isspace():
            self.fresh = False

    def in_code(self) -> bool:
        """Whether inline code is open: a run of backticks is closed by a run of the same length."""
        unread = "".join(self._unread)
        settled = unread.rstrip("`")
        self._code = _after_runs(self._code, settled)
        run = unread[len(settled) :]  # more backticks may follow
        self._unread = [run]
        return bool(_after_runs(self._code, run))

    def _end_lines(self, text: str) -> str:
        first, *others = text.split("\n")
        self._mark("".join(self._pieces) + first)
        for line in others[:-1]:
            self._mark(line)
        self._pieces.clear()
        self._unread.clear()
        self._code, self.fresh = "", True
        return others[-1]

    def _mark(self, line: str) -> None:
        """A whole line opens a fence, closes the one we are in, or does neither."""
        if "```" not in line and "~~~" not in line:
            return
        found = _FENCE.match(line)
        if found is None:
            return
        run, rest = found["run"], found["rest"]
        if not self.fence:
            self.fence = "" if run[0] == "`" and "`" in rest else run
        elif run.startswith(self.fence) and not rest.strip():
            self.fence = ""


def _after_runs(opened: str, text: str) -> str:
    """The backticks that are open after the text."""
    for run in _TICKS.findall(text):
        opened = "" if run == opened else opened or run
    return opened
