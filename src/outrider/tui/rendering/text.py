"""Styled text lines: wrapping, truncation, indentation, and conversion to strips."""

from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

# Rich needs a console to wrap text and resolve styles; nothing is printed on it.
CONSOLE = Console(file=StringIO(), force_terminal=True, color_system="truecolor", width=200)


# Marks of code lines for copying, carried by styles: columns of the margin, and whether it continues the line above.
MARGIN_KEY, CONTINUED_KEY = "margin", "continued"


def mark_code_line(line: Text, margin: int, *, continued: bool) -> Text:
    """Marks a line of code, so that a copy of it has neither the margin nor the breaks of wrapped lines."""
    line.stylize(Style(meta={MARGIN_KEY: margin, CONTINUED_KEY: continued}))
    return line


def row_margin(strip: Strip) -> int:
    """Returns the number of columns before the content of a line."""
    meta = _line_meta(strip)
    if MARGIN_KEY not in meta:
        return 0
    text = strip.text
    return min(len(text) - len(text.lstrip()), meta[MARGIN_KEY] + _outer_margin(strip))


def is_continuation(strip: Strip) -> bool:
    """Returns whether a line of code continues the line above."""
    return bool(_line_meta(strip).get(CONTINUED_KEY))


def _line_meta(strip: Strip) -> dict[str, Any]:
    for segment in strip:
        if segment.style and MARGIN_KEY in segment.style.meta:
            return segment.style.meta
    return {}


def _outer_margin(strip: Strip) -> int:
    """Returns the columns before the marked segments: indentation by lists, quotes and the transcript."""
    width = 0
    for segment in strip:
        if segment.style and MARGIN_KEY in segment.style.meta:
            break
        width += segment.cell_length
    return width


def text_line(text: str = "", style: Style | str = "") -> Text:
    """Returns a Text that does not wrap and has no line end."""
    return Text(text, style, no_wrap=True, end="")


def wrap_text(text: Text, width: int) -> list[Text]:
    """Wraps at word boundaries; a word longer than a line is broken."""
    if text.cell_len <= width and "\n" not in text.plain:
        return [text]
    return list(text.wrap(CONSOLE, max(width, 1), overflow="fold", no_wrap=False))


def truncate_line(text: Text, width: int) -> Text:
    """Returns the line cut to `width` columns, with an ellipsis."""
    if text.cell_len > width:
        text = text.copy()
        text.truncate(max(width, 1), overflow="ellipsis")
    return text


def indent_lines(lines: Iterable[Text], first: Text, other: Text | None = None) -> list[Text]:
    """Prefixes the first line with `first` and the others with `other` (default: spaces of the same width)."""
    other = text_line(" " * first.cell_len) if other is None else other
    return [Text.assemble(first if number == 0 else other, line, end="") for number, line in enumerate(lines)]


def justify_ends(left: Text, right: Text, width: int) -> Text:
    """Returns one line with a left and a right text; the left one is truncated if needed."""
    room = width - right.cell_len - 1
    if room < min(left.cell_len, 12):
        return truncate_line(left, width)
    left = truncate_line(left, room)
    return Text.assemble(left, " " * (width - left.cell_len - right.cell_len), right, end="")


def side_by_side(items: Iterable[Text], width: int, gap: int = 3) -> list[Text]:
    """Arranges the texts in rows, as many per row as fit, without breaking any."""
    lines: list[Text] = []
    for item in items:
        if lines and lines[-1].cell_len + gap + item.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], " " * gap, item, end="")
        else:
            lines.append(item)
    return lines


def pad_line(text: Text, width: int, style: Style) -> Text:
    """Pads a line to `width` and applies a background style."""
    padding = max(width - text.cell_len, 0)
    padded = Text.assemble(text, " " * padding, end="")
    padded.stylize_before(style)
    return padded


def render_strip(text: Text) -> Strip:
    return Strip(list(text.render(CONSOLE)), text.cell_len)


def render_strips(lines: Iterable[Text]) -> list[Strip]:
    return [render_strip(line) for line in lines]


def last_lines(lines: Sequence[str], max_lines: int) -> tuple[int, Sequence[str]]:
    """Returns the number of hidden lines and the last lines."""
    hidden = max(len(lines) - max_lines, 0)
    return hidden, lines[hidden:]
