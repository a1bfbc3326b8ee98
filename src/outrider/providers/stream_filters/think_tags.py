"""A streaming scanner that turns reasoning between <think> tags in plain text into reasoning parts.

An opening tag is recognised at the start of the text or of a line, outside of code fences, so that HTML, examples and
tags inside a sentence remain text. Inside reasoning, the closing tag of the same name is recognised anywhere except
between backticks. Tags of the same name may nest; an opening tag that is repeated directly is ignored.

Some servers strip the opening tag. A closing tag at the start of a line without an opening one therefore means that all
text before it was reasoning, and the part restarts as reasoning. Blank lines around reasoning are dropped.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import TypeGuard

from outrider._lazy import lazy_pattern
from outrider.providers.stream_filters.stream_filter import PartBoundary, PartChunk, ReclassifyText, TextSplitFilter
from outrider.types.request import Request

_FENCE = lazy_pattern(r"[ \t>]*(?P<run>`{3,}|~{3,})(?P<rest>.*)", re.DOTALL)
_TICKS = lazy_pattern(r"`+")


class MarkdownTracker:
    """Tracks Markdown code fences and inline code in text that is added in chunks of any size."""

    __slots__ = ("_open_code", "_pieces", "_unread", "at_line_start", "fence", "last_character")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._unread: list[str] = []  # text of the line that `in_code` has not scanned
        self._open_code = ""  # the backticks that opened inline code, in the scanned text
        self.fence = ""  # the marks that opened the current fence
        self.at_line_start = True  # the line has only whitespace so far
        self.last_character = ""  # "" at the start of the text

    def add(self, text: str) -> None:
        if not text:
            return
        self.last_character = text[-1]
        if "\n" in text:
            text = self._end_lines(text)
        self._pieces.append(text)
        self._unread.append(text)
        if self.at_line_start and text and not text.isspace():
            self.at_line_start = False

    def in_code(self) -> bool:
        """Whether inline code is open; a run of backticks is closed by a run of the same length."""
        unread = "".join(self._unread)
        settled = unread.rstrip("`")
        self._open_code = _open_backticks(self._open_code, settled)
        run = unread[len(settled) :]  # more backticks may follow
        self._unread = [run]
        return bool(_open_backticks(self._open_code, run))

    def _end_lines(self, text: str) -> str:
        first, *others = text.split("\n")
        self._update_fence("".join(self._pieces) + first)
        for line in others[:-1]:
            self._update_fence(line)
        self._pieces.clear()
        self._unread.clear()
        self._open_code, self.at_line_start = "", True
        return others[-1]

    def _update_fence(self, line: str) -> None:
        """Updates the fence state for a complete line, which may open or close a fence."""
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


def _open_backticks(opened: str, text: str) -> str:
    """Returns the backticks that are open after the text; "" for none."""
    for run in _TICKS.findall(text):
        opened = "" if run == opened else opened or run
    return opened


TAG_NAMES = ("think", "thinking", "reason", "reasoning", "thought")
_TAGS = tuple(f"<{slash}{name}>" for name in TAG_NAMES for slash in ("", "/"))


@cache
def _tag_pattern() -> re.Pattern[str]:
    """Compiles the pattern on first use, after the request was sent, to keep start-up short."""
    return re.compile(rf"<(?P<close>/?)(?P<name>{'|'.join(TAG_NAMES)})>|(?P<cut><(?:/?[a-z]*)?)\Z", re.IGNORECASE)


def create_think_filter(request: Request) -> TextSplitFilter:
    """Returns the filter for one answer; it does not depend on the request."""
    return TextSplitFilter(ThinkTagScanner)


class ThinkTagScanner:
    """A scanner implemented as a state machine; `_reader` is the method for the current state."""

    def __init__(self) -> None:
        self._reader: Callable[[], bool] = self._read_edge
        self._held = ""  # unclassified text: at most one tag and the whitespace before it
        self._out: list[PartChunk | PartBoundary | ReclassifyText] = []
        self._lines = MarkdownTracker()
        self._shown: list[str] | None = []  # emitted text that a closing tag could reclassify as reasoning
        self._after_reasoning = False  # whether the reader is after reasoning, not at the start of the text
        self._name, self._depth, self._has_reasoning, self._blanks = "", 0, False, ""

    def feed(self, text: str) -> list[PartChunk | PartBoundary | ReclassifyText]:
        self._held += text
        while self._held and self._reader():
            pass
        return self._take_output()

    def close(self) -> list[PartChunk | PartBoundary | ReclassifyText]:
        """Emits an incomplete tag at the end as text or reasoning."""
        if self._reader == self._read_reasoning:
            self._emit_reasoning(len(self._held))
        elif self._reader == self._read_edge and self._after_reasoning and not self._held.strip():
            self._held = ""
        else:
            self._leave_edge()
            self._emit_text(len(self._held))
        return self._take_output()

    def _take_output(self) -> list[PartChunk | PartBoundary | ReclassifyText]:
        out, self._out = self._out, []
        return out

    def _read_edge(self) -> bool:
        """Reads at the start of the text or after reasoning; whitespace before a tag is dropped with it."""
        start = len(self._held) - len(self._held.lstrip())
        if start == len(self._held):
            return False
        found = _tag_pattern().match(self._held, start)
        if not _is_possible_tag(found):
            self._leave_edge()
            return True
        if found["cut"]:
            return False
        self._held = self._held[found.end() :]
        self._after_reasoning = True
        if not found["close"]:
            self._start_reasoning(found["name"])
        return True

    def _leave_edge(self) -> None:
        """Drops blank lines after reasoning, but not the indentation of the next line."""
        if self._reader == self._read_edge and self._after_reasoning:
            text = self._held.lstrip()
            blanks = self._held[: len(self._held) - len(text)]
            self._held = blanks.rpartition("\n")[2] + text if "\n" in blanks else text
        self._reader = self._read_text

    def _read_text(self) -> bool:
        found = _tag_pattern().search(self._held) if "<" in self._held else None  # fast path: most text has no tag
        if not _is_possible_tag(found):
            self._emit_text(len(self._held))
            return True
        self._emit_text(found.start())
        if self._lines.fence or not self._lines.at_line_start:
            self._emit_text(len(found[0]))
        elif found["cut"]:
            return False
        elif not found["close"]:
            self._drop_tag(found)
            self._start_reasoning(found["name"])
        elif self._shown:
            self._drop_tag(found)
            self._out.append(ReclassifyText("".join(self._shown).strip()))
            self._end_reasoning()
        else:
            self._emit_text(len(found[0]))
        return True

    def _read_reasoning(self) -> bool:
        found = _tag_pattern().search(self._held)
        if not _is_possible_tag(found):
            self._emit_reasoning(len(self._held))
            return True
        self._emit_reasoning(found.start())
        if found["cut"] or self._is_cut_off(found):
            return False
        if found["name"].lower() != self._name or self._is_quoted(found):
            self._emit_reasoning(len(found[0]))
        elif found["close"]:
            self._leave_nested(found)
        else:
            self._enter_nested(found)
        return True

    def _enter_nested(self, tag: re.Match[str]) -> None:
        if not self._has_reasoning:
            self._drop_tag(tag)  # a repeated opening tag
            return
        self._depth += self._lines.at_line_start
        self._emit_reasoning(len(tag[0]))

    def _leave_nested(self, tag: re.Match[str]) -> None:
        if self._depth:
            self._depth -= 1
            self._emit_reasoning(len(tag[0]))
            return
        self._drop_tag(tag)
        self._out.append(PartBoundary())
        self._end_reasoning()

    def _is_quoted(self, tag: re.Match[str]) -> bool:
        return self._lines.last_character == "`" and self._held.startswith("`", len(tag[0]))

    def _is_cut_off(self, tag: re.Match[str]) -> bool:
        """Whether the next character, which decides if the tag is quoted, has not arrived."""
        return self._lines.last_character == "`" and len(self._held) == len(tag[0])

    def _start_reasoning(self, name: str) -> None:
        self._reader, self._lines, self._shown = self._read_reasoning, MarkdownTracker(), None
        self._name, self._depth, self._has_reasoning, self._blanks = name.lower(), 0, False, ""

    def _end_reasoning(self) -> None:
        self._reader, self._lines, self._shown, self._after_reasoning = self._read_edge, MarkdownTracker(), None, True

    def _drop_tag(self, tag: re.Match[str]) -> None:
        self._held = self._held[len(tag[0]) :]

    def _emit_text(self, size: int) -> None:
        text, self._held = self._held[:size], self._held[size:]
        if text:
            self._lines.add(text)
            self._out.append(PartChunk("text", text))
            if self._shown is not None:
                self._shown.append(text)

    def _emit_reasoning(self, size: int) -> None:
        """Emits reasoning without leading whitespace; buffers trailing whitespace until more reasoning follows."""
        text, self._held = self._held[:size], self._held[size:]
        self._lines.add(text)
        text = self._blanks + text if self._has_reasoning else text.lstrip()
        stripped = text.rstrip()
        self._blanks = text[len(stripped) :]
        if stripped:
            self._has_reasoning = True
            self._out.append(PartChunk("reasoning", stripped))


def _is_possible_tag(found: re.Match[str] | None) -> TypeGuard[re.Match[str]]:
    """Whether a match is a tag, or an incomplete one at the end of the text."""
    return found is not None and (not found["cut"] or any(tag.startswith(found["cut"].lower()) for tag in _TAGS))
