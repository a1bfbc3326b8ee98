"""mkdocs hook: draws blocks of the language `diagram` as inline SVG, in the colors of the page and without a script.

Each line is a chain of boxes: `session -> turn -(model answers)-> step`. A box with the name of an earlier one is that
box. The text of a box may have lines, separated by `/`. The source is readable where nothing draws it.
"""

import re
from html import escape
from itertools import count
from typing import Any, NamedTuple

from mkdocs.config.defaults import MkDocsConfig

LETTER, LINE, PADDING = 7.4, 17, 12  # pixels
ROW_GAP, COLUMN_GAP = 26, 44
_ARROW = re.compile(r"\s+-(?:\((?P<label>[^)]*)\)-)?>\s+")


class Arrow(NamedTuple):
    """A connection of two boxes, named by their texts."""

    start: str
    end: str
    label: str


class Place(NamedTuple):
    """The cell of a box in the grid."""

    column: int
    row: int


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the language to the extension that reads code blocks."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [{"name": "diagram", "class": "diagram", "format": format_fence}]
    return config


def format_fence(source: str, *_: Any, **__: Any) -> str:
    """Returns the HTML of a code block."""
    return f'<div class="diagram">{draw_diagram(source)}</div>'


def draw_diagram(source: str) -> str:
    """Returns the SVG of a description."""
    places, arrows = read_chains(source)
    columns, rows = 1 + max(place.column for place in places.values()), 1 + max(place.row for place in places.values())
    widths = [
        max((_box_width(text) for text, at in places.items() if at.column == n), default=0) for n in range(columns)
    ]
    heights = [max((_box_height(text) for text, at in places.items() if at.row == n), default=0) for n in range(rows)]
    gaps = [_gap_after(n, places, arrows) for n in range(columns)]
    lefts = [10 + sum(widths[:n]) + sum(gaps[:n]) for n in range(columns)]
    tops = [10 + sum(heights[:n]) + ROW_GAP * n for n in range(rows)]
    boxes = {text: (lefts[at.column], tops[at.row], widths[at.column], heights[at.row]) for text, at in places.items()}
    returns = [arrow for arrow in arrows if places[arrow.end].column < places[arrow.start].column]
    width = lefts[-1] + widths[-1] + 10
    bottom = tops[-1] + heights[-1]
    height = bottom + 10 + 24 * len(returns)
    drawn = [_draw_box(text, *box) for text, box in boxes.items()]
    for arrow in arrows:
        level = bottom + 24 * (returns.index(arrow) + 1) if arrow in returns else 0
        drawn.append(_draw_arrow(boxes[arrow.start], boxes[arrow.end], arrow.label, level))
    label = escape(", ".join(f"{arrow.start} to {arrow.end}" for arrow in arrows), quote=True)
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" aria-label="{label}" '
        'style="max-width:100%;height:auto" font-family="system-ui, sans-serif" font-size="13" fill="none" '
        'stroke="currentColor"><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto-start-reverse">'
        f'<path d="M0 0L8 4L0 8z" fill="currentColor" stroke="none"/></marker></defs>{"".join(drawn)}</svg>'
    )


def read_chains(source: str) -> tuple[dict[str, Place], list[Arrow]]:
    """Returns the place of each box, and the arrows. A new box is right of the one before it, in the first free row."""
    places: dict[str, Place] = {}
    arrows: list[Arrow] = []
    for line in filter(None, map(str.strip, source.splitlines())):
        parts = _ARROW.split(line)
        texts, labels = parts[0::2], parts[1::2]
        for number, text in enumerate(texts):
            before = places[texts[number - 1]] if number else None
            if text not in places:
                wanted = Place(before.column + 1, before.row) if before else Place(0, 0)
                rows = (row for row in count(wanted.row) if Place(wanted.column, row) not in places.values())
                places[text] = Place(wanted.column, next(rows))
            if number:
                arrows.append(Arrow(texts[number - 1], text, labels[number - 1] or ""))
    return places, arrows


def _box_width(text: str) -> float:
    return max(len(line) for line in text.split("/")) * LETTER + 2 * PADDING


def _box_height(text: str) -> float:
    return len(text.split("/")) * LINE + PADDING


def _gap_after(column: int, places: dict[str, Place], arrows: list[Arrow]) -> float:
    labels = [
        arrow.label for arrow in arrows if places[arrow.end].column == column + 1 == places[arrow.start].column + 1
    ]
    return max([COLUMN_GAP, *(len(label) * 6.4 + 28 for label in labels if label)])


def _draw_box(text: str, left: float, top: float, width: float, height: float) -> str:
    lines = text.split("/")
    first = top + height / 2 - (len(lines) - 1) * LINE / 2 + 4.5
    label = "".join(
        f'<text x="{left + width / 2:.0f}" y="{first + LINE * number:.1f}" text-anchor="middle" fill="currentColor" '
        f'stroke="none">{escape(line.strip())}</text>'
        for number, line in enumerate(lines)
    )
    return f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height:.0f}" rx="6"/>{label}'


def _draw_arrow(start: tuple[float, ...], end: tuple[float, ...], label: str, level: float) -> str:
    """Draws an arrow to the right as an elbow, to the same column as a line, and back to the left below everything."""
    left, top, width, height = start
    end_left, end_top, end_width, end_height = end
    if level:
        x, end_x = left + width / 2, end_left + end_width / 2
        path = f"M{x:.0f} {top + height:.0f}V{level:.0f}H{end_x:.0f}V{end_top + end_height + 2:.0f}"
        at = ((x + end_x) / 2, level - 5)
    elif end_left > left:
        y, end_y, turn = top + height / 2, end_top + end_height / 2, left + width + 12
        path = f"M{left + width:.0f} {y:.0f}H{turn:.0f}V{end_y:.0f}H{end_left - 2:.0f}"
        at = ((turn + end_left) / 2, end_y - 5)
    else:
        x = left + width / 2
        edges = (top + height, end_top - 2) if end_top > top else (top, end_top + end_height + 2)
        path = f"M{x:.0f} {edges[0]:.0f}V{edges[1]:.0f}"
        at = (x + 8 + len(label) * 3, sum(edges) / 2 + 4)
    text = (
        f'<text x="{at[0]:.0f}" y="{at[1]:.0f}" text-anchor="middle" font-size="11" fill="currentColor" stroke="none">'
        f"{escape(label)}</text>"
    )
    return f'<path d="{path}" marker-end="url(#tip)" opacity="0.75"/>{text if label else ""}'
