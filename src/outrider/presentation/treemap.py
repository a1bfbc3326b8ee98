"""A map of what fills a request: a rectangle for each source, whose area is its number of bytes."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Protocol

import msgspec

from outrider.presentation.formats import format_cost, format_tokens
from outrider.presentation.html_page import escape_text, render_page

_WIDTH, _HEIGHT = 100.0, 60.0  # the proportions for which the rectangles are laid out
_STYLE = """
body { padding: 16px; }
main { position: relative; height: 85vh; }
main div { position: absolute; overflow: hidden; padding: 3px; border: 1px solid var(--page); color: #fff; }
"""

Area = tuple[float, float, float, float]


class SizedSource(Protocol):
    """What one source contributes to a request."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def cost(self) -> Decimal | None: ...


class TreemapBox(msgspec.Struct, frozen=True):
    """A rectangle of the map.

    - `left`, `top`, `width`, `height`: its position and size in percent of the map.
    - `hue`: its colour in degrees; sources of one kind have the same hue.
    - `text`: what it represents.
    """

    left: float
    top: float
    width: float
    height: float
    hue: int
    text: str


def treemap_boxes(sources: Sequence[SizedSource]) -> tuple[TreemapBox, ...]:
    """Returns a rectangle for each source, the largest one first."""
    sized = sorted(sources, key=lambda source: -source.bytes)
    kinds = list(dict.fromkeys(source.kind for source in sized))
    areas = split_area([source.bytes for source in sized], (0.0, 0.0, _WIDTH, _HEIGHT))
    return tuple(
        TreemapBox(
            round(100 * x / _WIDTH, 3),
            round(100 * y / _HEIGHT, 3),
            round(100 * width / _WIDTH, 3),
            round(100 * height / _HEIGHT, 3),
            round(360 * kinds.index(source.kind) / len(kinds)),
            " · ".join(_source_facts(source)),
        )
        for source, (x, y, width, height) in zip(sized, areas, strict=True)
    )


def _source_facts(source: SizedSource) -> Iterator[str]:
    yield f"{source.kind}: {source.name}" if source.name else source.kind
    yield f"{format_tokens(source.tokens)} tokens"
    if source.cost is not None:
        yield format_cost(source.cost)


def split_area(sizes: Sequence[int], area: Area) -> list[Area]:
    """Splits a rectangle into one rectangle per size: halves the sum along the longer side, recursively."""
    x, y, width, height = area
    if len(sizes) < 2:
        return [area] * len(sizes)
    total, first_sum, count = sum(sizes) or 1, sizes[0], 1
    while count < len(sizes) - 1 and first_sum + sizes[count] / 2 < total / 2:
        first_sum += sizes[count]
        count += 1
    share = first_sum / total
    if width >= height:
        left, right = (x, y, width * share, height), (x + width * share, y, width * (1 - share), height)
    else:
        left, right = (x, y, width, height * share), (x, y + height * share, width, height * (1 - share))
    return [*split_area(sizes[:count], left), *split_area(sizes[count:], right)]


def treemap_page(title: str, sources: Sequence[SizedSource]) -> str:
    """Returns the map as an HTML page. Its style places the boxes, because the policy of the page forbids `style`
    attributes."""
    boxes = treemap_boxes(sources)
    rules = "\n".join(
        f"#b{number} {{ left: {box.left}%; top: {box.top}%; width: {box.width}%; height: {box.height}%;"
        f" background: hsl({box.hue} 45% 36%); }}"
        for number, box in enumerate(boxes)
    )
    texts = [escape_text(box.text) for box in boxes]
    drawn = "\n".join(f'<div id="b{number}" title="{text}">{text}</div>' for number, text in enumerate(texts))
    return render_page(title, f"{_STYLE}{rules}", f"<h1>{escape_text(title)}</h1>\n<main>\n{drawn}\n</main>")
