"""The difference between two texts as people review it, bounded however large they are."""

from collections.abc import Iterable
from difflib import unified_diff

import msgspec

from outrider.tools.text.encoding import shown, split_lines, without_ending

_MOST_LINES = 2_000
_CONTEXT = 3


class Difference(msgspec.Struct, frozen=True):
    text: str
    added: int
    removed: int


def difference(name: str, before: str | None, after: str | None) -> Difference:
    """Only what lies between the common beginning and end is compared, so that a small edit of a long file is cheap."""
    old, new = split_lines(before or ""), split_lines(after or "")
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    start = max(0, head - _CONTEXT)
    old_piece = old[start : len(old) - max(0, tail - _CONTEXT)]
    new_piece = new[start : len(new) - max(0, tail - _CONTEXT)]
    if len(old_piece) + len(new_piece) > _MOST_LINES:
        removed, added = len(old) - head - tail, len(new) - head - tail
        return Difference(f"(too large to show: {removed} lines removed, {added} added)", added, removed)
    lines = list(unified_diff([_plain(line) for line in old_piece], [_plain(line) for line in new_piece], lineterm=""))
    body = [_moved(line, start) if line.startswith("@@") else line for line in lines[2:]]
    added, removed = (sum(line.startswith(sign) for line in body) for sign in "+-")
    names = (name if before is not None else "/dev/null", name if after is not None else "/dev/null")
    return Difference("\n".join([f"--- {names[0]}", f"+++ {names[1]}", *body]), added, removed)


def _common(old: list[str], new: list[str]) -> int:
    pairs = enumerate(zip(old, new, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(old), len(new)))


def _plain(line: str) -> str:
    return shown(without_ending(line))


def _moved(header: str, by: int) -> str:
    """A hunk's header with the line numbers of the whole file."""

    def shifted(span: str) -> str:
        first, comma, count = span[1:].partition(",")
        return f"{span[0]}{int(first) + by}{comma}{count}"

    _, old, new, _ = header.split(" ", 3)
    return f"@@ {shifted(old)} {shifted(new)} @@"


LONGEST_LINE = 2_000
_FRESH_LINES = 120


def numbered(lines: Iterable[str], first: int) -> str:
    return "\n".join(f"{number:6}\t{shortened(line)}" for number, line in enumerate(lines, first))


def shortened(line: str, limit: int = LONGEST_LINE) -> str:
    text = shown(without_ending(line))
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text) - limit:,} more characters in this line]"


def fresh_view(text: str, near: str = "") -> str:
    """What a file holds now; of a long one, the lines around `near`, or the first ones."""
    lines = split_lines(text)
    if len(lines) <= _FRESH_LINES:
        return numbered((shortened(line, 500) for line in lines), 1) if lines else "(the file is empty)"
    start = max(0, min(_line_like(lines, near) - _FRESH_LINES // 2, len(lines) - _FRESH_LINES))
    piece = numbered((shortened(line, 500) for line in lines[start : start + _FRESH_LINES]), start + 1)
    return f"{piece}\n(lines {start + 1}-{start + _FRESH_LINES} of {len(lines)})"


def _line_like(lines: list[str], near: str) -> int:
    wanted = max((line.strip() for line in near.split("\n")), key=len, default="")
    return next((place for place, line in enumerate(lines) if wanted and wanted in line), 0)
