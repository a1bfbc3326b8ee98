"""Unified diffs with a bounded size, and numbered views of a text."""

from collections.abc import Iterable
from difflib import unified_diff

import msgspec

from outrider.tools.text.encoding import displayable_text, split_lines, without_ending

_MAX_COMPARED_LINES = 2_000
_CONTEXT = 3


class TextDiff(msgspec.Struct, frozen=True):
    text: str
    added: int
    removed: int


def diff_texts(name: str, before: str | None, after: str | None) -> TextDiff:
    """Returns a unified diff. Only the lines between the common prefix and suffix are compared, so a small edit of a
    long file is cheap."""
    old, new = split_lines(before or ""), split_lines(after or "")
    head = _common_length(old, new)
    tail = _common_length(old[head:][::-1], new[head:][::-1])
    start = max(0, head - _CONTEXT)
    old_piece = old[start : len(old) - max(0, tail - _CONTEXT)]
    new_piece = new[start : len(new) - max(0, tail - _CONTEXT)]
    if len(old_piece) + len(new_piece) > _MAX_COMPARED_LINES:
        removed, added = len(old) - head - tail, len(new) - head - tail
        return TextDiff(f"(too large to show: {removed} lines removed, {added} added)", added, removed)
    lines = list(
        unified_diff(
            [_display_line(line) for line in old_piece], [_display_line(line) for line in new_piece], lineterm=""
        )
    )
    body = [_shift_header(line, start) if line.startswith("@@") else line for line in lines[2:]]
    added, removed = (sum(line.startswith(sign) for line in body) for sign in "+-")
    names = (name if before is not None else "/dev/null", name if after is not None else "/dev/null")
    return TextDiff("\n".join([f"--- {names[0]}", f"+++ {names[1]}", *body]), added, removed)


def _common_length(old: list[str], new: list[str]) -> int:
    pairs = enumerate(zip(old, new, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(old), len(new)))


def _display_line(line: str) -> str:
    return displayable_text(without_ending(line))


def _shift_header(header: str, by: int) -> str:
    """Shifts the line numbers of a hunk header to those of the whole file."""

    def shifted(span: str) -> str:
        first, comma, count = span[1:].partition(",")
        return f"{span[0]}{int(first) + by}{comma}{count}"

    _, old, new, _ = header.split(" ", 3)
    return f"@@ {shifted(old)} {shifted(new)} @@"


MAX_LINE_LENGTH = 2_000
_VIEW_LINES = 120


def number_lines(lines: Iterable[str], first: int) -> str:
    return "\n".join(f"{number:6}\t{shorten_line(line)}" for number, line in enumerate(lines, first))


def shorten_line(line: str, limit: int = MAX_LINE_LENGTH) -> str:
    text = displayable_text(without_ending(line))
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text) - limit:,} more characters in this line]"


def current_view(text: str, near: str = "") -> str:
    """Returns the numbered lines of a file; for a long one the lines around `near`, or the first ones."""
    lines = split_lines(text)
    if len(lines) <= _VIEW_LINES:
        return number_lines((shorten_line(line, 500) for line in lines), 1) if lines else "(the file is empty)"
    start = max(0, min(_find_similar_line(lines, near) - _VIEW_LINES // 2, len(lines) - _VIEW_LINES))
    piece = number_lines((shorten_line(line, 500) for line in lines[start : start + _VIEW_LINES]), start + 1)
    return f"{piece}\n(lines {start + 1}-{start + _VIEW_LINES} of {len(lines)})"


def _find_similar_line(lines: list[str], near: str) -> int:
    wanted = max((line.strip() for line in near.split("\n")), key=len, default="")
    return next((index for index, line in enumerate(lines) if wanted and wanted in line), 0)
