"""A piece of a text as a model reads it: numbered lines, long ones cut."""

from collections.abc import Iterable

from outrider.tools.text.encoding import shown
from outrider.tools.text.endings import split_lines, without_ending

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
