"""Line endings: text is compared with plain line feeds, and what is written takes the ending of its neighbours."""

import re
from bisect import bisect_left

_BREAK = re.compile(r"\r\n|\n|\r")


class PlainText:
    """A text with every line ending as a line feed, that knows where each place lies in the original."""

    def __init__(self, original: str) -> None:
        self.original = original
        self.carriage_returns = "\r" in original and "\n" not in original
        self._pairs: list[int] = []
        if self.carriage_returns:
            self.text = original.replace("\r", "\n")
        elif "\r\n" in original:
            self.text = original.replace("\r\n", "\n")
            found = (match.start() for match in re.finditer("\r\n", original))
            self._pairs = [place - number for number, place in enumerate(found)]
        else:
            self.text = original

    def place(self, index: int) -> int:
        """Where a place of the plain text lies in the original."""
        return index + bisect_left(self._pairs, index)

    def endings_in(self, start: int, end: int) -> set[str]:
        """The kinds of line endings inside a piece of the original."""
        return set(_BREAK.findall(self.original, start, end)) if self._pairs else {"\n"}

    def ending_near(self, start: int, end: int) -> str:
        """The line ending inside a piece of the original, else the next one, else the one before."""
        if not self._pairs:
            return "\r" if self.carriage_returns else "\n"
        inside = _BREAK.findall(self.original, start, end)
        if inside:
            return inside[-1]
        following = _BREAK.search(self.original, end)
        if following:
            return following.group()
        return "\r\n" if self.original.rfind("\r\n", 0, start) + 1 == self.original.rfind("\n", 0, start) else "\n"


def with_ending(text: str, ending: str) -> str:
    return text if ending == "\n" else text.replace("\r\n", "\n").replace("\n", ending)


def split_lines(text: str) -> list[str]:
    """Lines with their endings; a lone carriage return ends a line only in a text without line feeds."""
    mark = "\r" if "\r" in text and "\n" not in text else "\n"
    pieces = text.split(mark)
    last = pieces.pop()
    return [piece + mark for piece in pieces] + ([last] if last else [])


def without_ending(line: str) -> str:
    if line.endswith("\r\n"):
        return line[:-2]
    return line[:-1] if line.endswith(("\n", "\r")) else line


def ending_of(line: str) -> str:
    return line[len(without_ending(line)) :]
