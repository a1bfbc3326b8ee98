"""Reasoning that a model writes into its plain text, between tags, becomes reasoning parts while it streams.

An opening tag counts at the start of the text or of a line, outside fences: a model that explains HTML, shows
an example or names a tag in a sentence loses nothing. Inside reasoning the closing tag of the same name counts
anywhere, except between backticks. Tags of the same name may nest; an opening tag written twice in a row counts once.

A closing tag without an opening one comes from servers that strip the opening tag: at the start of a line it says
that all text before it was reasoning, so that part begins anew. Blank lines around reasoning are dropped.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import TypeGuard

from outrider.providers.stream_filters.base import End, Piece, Reclassify, SplitStage
from outrider.types.request import Request

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


NAMES = ("think", "thinking", "reason", "reasoning", "thought")
_TAGS = tuple(f"<{slash}{name}>" for name in NAMES for slash in ("", "/"))


@cache
def _tag() -> re.Pattern[str]:
    """With the first text, and not before a request has left."""
    return re.compile(rf"<(?P<close>/?)(?P<name>{'|'.join(NAMES)})>|(?P<cut><(?:/?[a-z]*)?)\Z", re.IGNORECASE)


def think_tags(request: Request) -> SplitStage:
    """The stage, whatever was asked."""
    return SplitStage(ThinkTags)


class ThinkTags:
    """A scanner; where it stands is the method that reads on from there."""

    def __init__(self) -> None:
        self._read: Callable[[], bool] = self._edge
        self._held = ""  # undecided: at most one tag and the blanks before it
        self._out: list[Piece | End | Reclassify] = []
        self._lines = Lines()
        self._shown: list[str] | None = []  # text that a closing tag could still turn into reasoning
        self._after = False  # whether the edge is the end of reasoning, not the start of the text
        self._name, self._depth, self._thought, self._blanks = "", 0, False, ""

    def feed(self, text: str) -> list[Piece | End | Reclassify]:
        self._held += text
        while self._held and self._read():
            pass
        return self._given()

    def close(self) -> list[Piece | End | Reclassify]:
        """A cut tag at the very end is text, or the last words of the reasoning."""
        if self._read == self._reasoning:
            self._think(len(self._held))
        elif self._read == self._edge and self._after and not self._held.strip():
            self._held = ""
        else:
            self._leave_edge()
            self._show(len(self._held))
        return self._given()

    def _given(self) -> list[Piece | End | Reclassify]:
        out, self._out = self._out, []
        return out

    def _edge(self) -> bool:
        """The start of the text, or the end of reasoning; blanks go with the tag that follows them."""
        start = len(self._held) - len(self._held.lstrip())
        if start == len(self._held):
            return False
        found = _tag().match(self._held, start)
        if not _possible(found):
            self._leave_edge()
            return True
        if found["cut"]:
            return False
        self._held = self._held[found.end() :]
        self._after = True
        if not found["close"]:
            self._open(found["name"])
        return True

    def _leave_edge(self) -> None:
        """After reasoning, blank lines are dropped; the indentation of the first line is not."""
        if self._read == self._edge and self._after:
            text = self._held.lstrip()
            blanks = self._held[: len(self._held) - len(text)]
            self._held = blanks.rpartition("\n")[2] + text if "\n" in blanks else text
        self._read = self._text

    def _text(self) -> bool:
        found = _tag().search(self._held) if "<" in self._held else None  # most text holds none
        if not _possible(found):
            self._show(len(self._held))
            return True
        self._show(found.start())
        if self._lines.fence or not self._lines.fresh:
            self._show(len(found[0]))
        elif found["cut"]:
            return False
        elif not found["close"]:
            self._drop(found)
            self._open(found["name"])
        elif self._shown:
            self._drop(found)
            self._out.append(Reclassify("".join(self._shown).strip()))
            self._end()
        else:
            self._show(len(found[0]))
        return True

    def _reasoning(self) -> bool:
        found = _tag().search(self._held)
        if not _possible(found):
            self._think(len(self._held))
            return True
        self._think(found.start())
        if found["cut"] or self._is_cut_off(found):
            return False
        if found["name"].lower() != self._name or self._is_quoted(found):
            self._think(len(found[0]))
        elif found["close"]:
            self._end_or_rise(found)
        else:
            self._nest(found)
        return True

    def _nest(self, tag: re.Match[str]) -> None:
        if not self._thought:
            self._drop(tag)  # written twice
            return
        self._depth += self._lines.fresh
        self._think(len(tag[0]))

    def _end_or_rise(self, tag: re.Match[str]) -> None:
        if self._depth:
            self._depth -= 1
            self._think(len(tag[0]))
            return
        self._drop(tag)
        self._out.append(End())
        self._end()

    def _is_quoted(self, tag: re.Match[str]) -> bool:
        return self._lines.last == "`" and self._held.startswith("`", len(tag[0]))

    def _is_cut_off(self, tag: re.Match[str]) -> bool:
        """Whether the character that decides has not arrived."""
        return self._lines.last == "`" and len(self._held) == len(tag[0])

    def _open(self, name: str) -> None:
        self._read, self._lines, self._shown = self._reasoning, Lines(), None
        self._name, self._depth, self._thought, self._blanks = name.lower(), 0, False, ""

    def _end(self) -> None:
        self._read, self._lines, self._shown, self._after = self._edge, Lines(), None, True

    def _drop(self, tag: re.Match[str]) -> None:
        self._held = self._held[len(tag[0]) :]

    def _show(self, size: int) -> None:
        text, self._held = self._held[:size], self._held[size:]
        if text:
            self._lines.add(text)
            self._out.append(Piece("text", text))
            if self._shown is not None:
                self._shown.append(text)

    def _think(self, size: int) -> None:
        """Blanks wait for what follows them, so that reasoning neither begins nor ends with any."""
        text, self._held = self._held[:size], self._held[size:]
        self._lines.add(text)
        text = self._blanks + text if self._thought else text.lstrip()
        kept = text.rstrip()
        self._blanks = text[len(kept) :]
        if kept:
            self._thought = True
            self._out.append(Piece("reasoning", kept))


def _possible(found: re.Match[str] | None) -> TypeGuard[re.Match[str]]:
    """A tag, or the beginning of one."""
    return found is not None and (not found["cut"] or any(tag.startswith(found["cut"].lower()) for tag in _TAGS))
