"""Tables and small plots of plain characters, cut to the width of the terminal."""

import unicodedata
from collections.abc import Sequence
from decimal import Decimal

NARROW = 72
_GAP = 2
_SMALLEST = 6
_MARKS = " ▏▎▍▌▋▊▉█"


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    right: Sequence[int] = (),
    narrow: Sequence[int] = (),
) -> list[str]:
    """Columns as wide as they need to be. Where the terminal is narrow only those count that `narrow` names, the widest
    give way, and then the last."""
    kept = narrow if narrow and width < NARROW else range(len(heads))
    cells = [[row[at] for at in kept] for row in (heads, *rows)]
    widths = fitted([max(map(columns, column)) for column in zip(*cells, strict=True)], width)
    aligned = [at for at, column in enumerate(kept) if column in right]
    return [_line(row[: len(widths)], widths, aligned) for row in cells]


def fitted(widths: list[int], room: int) -> list[int]:
    widths = list(widths)
    excess = sum(widths) + _GAP * (len(widths) - 1) - room
    while excess > 0 and max(widths) > _SMALLEST:
        at = widths.index(max(widths))
        widths[at] -= 1
        excess -= 1
    while excess > 0 and len(widths) > 1:
        excess -= widths.pop() + _GAP
    return widths


def cut(text: str, width: int) -> str:
    """The beginning of a text on one line, in so many columns."""
    text = " ".join(text.split())
    if columns(text) <= width:
        return text
    kept, used = "", 0
    for char in text:
        used += _columns(char)
        if used > width - 1:
            break
        kept += char
    return f"{kept}…"


def columns(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_columns, text))


def bar(part: float, whole: float, width: int) -> str:
    """A bar in eighths of a character; something is never drawn as nothing."""
    if whole <= 0 or part <= 0:
        return ""
    eighths = max(1, round(part / whole * width * 8))
    return "█" * (eighths // 8) + _MARKS[eighths % 8].strip()


def tokens_text(count: int) -> str:
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if count >= size:
            return f"{count / (1000 if letter == 'k' else size):.1f}{letter}"
    return f"{count:,}"


def counted(number: int, name: str) -> str:
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"


def cost_text(cost: Decimal | None) -> str:
    if cost is None:
        return "unknown"
    if cost and cost < Decimal("0.0001"):
        return "<$0.0001"
    return f"${cost:.4f}" if cost < 10 else f"${cost:,.2f}"


def ago(then: int, now: int) -> str:
    seconds = max(0, now - then) // 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "just now"


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    shown = [
        _padded(cut(cell, width), width, right=at in right)
        for at, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return (" " * _GAP).join(shown).rstrip()


def _padded(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - columns(text))
    return space + text if right else text + space


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
