"""A Markdown table in columns that fit the screen, or row by row where they cannot."""

from itertools import zip_longest

from markdown_it.tree import SyntaxTreeNode
from rich.style import Style
from rich.text import Text

from outrider.tui.rendering.inline import inline
from outrider.tui.rendering.lines import line, wrapped
from outrider.tui.rendering.palette import Palette

NARROWEST = 4
READABLE = 8  # columns of the screen for each of the table, on the average
_GAP = 2


def table(node: SyntaxTreeNode, width: int, palette: Palette) -> list[Text]:
    """Cells that are too long for their column go on below. On a narrow screen a wide table is told row by row."""
    rows = [_cells(row, palette, head=part.type == "thead") for part in node.children for row in part.children]
    if not rows:
        return []
    if len(rows[0]) * READABLE > width and len(rows[0]) > 2:
        return _row_by_row(rows, width, palette)
    widths = _widths(rows, width)
    lines: list[Text] = []
    for number, row in enumerate(rows):
        lines += _row(row, widths)
        if number == 0:
            rule = (" " * _GAP).join("─" * found for found in widths)
            lines.append(line(rule, palette.style("faint")))
    return lines


def _row_by_row(rows: list[list[Text]], width: int, palette: Palette) -> list[Text]:
    heads, *others = rows
    label = min(max((head.cell_len for head in heads), default=0) + _GAP, width // 2)
    lines: list[Text] = []
    for row in others:
        lines += [line("─" * width, palette.style("faint"))]
        for head, cell in zip(heads, row, strict=False):
            lines += _row([head, cell], [label - _GAP, width - label])
    return lines or _row(heads, [width // len(heads)] * len(heads))


def _cells(row: SyntaxTreeNode, palette: Palette, *, head: bool) -> list[Text]:
    style = palette.style("text") + Style(bold=head)
    return [inline(cell, palette, style) for cell in row.children]


def _widths(rows: list[list[Text]], width: int) -> list[int]:
    """What each column wants, as long as there is room; then the widest give way first."""
    wanted = [max(cell.cell_len for cell in column) for column in zip_longest(*rows, fillvalue=Text())]
    room = max(width - _GAP * (len(wanted) - 1), NARROWEST * len(wanted))
    while sum(wanted) > room:
        widest = max(range(len(wanted)), key=wanted.__getitem__)
        if wanted[widest] <= NARROWEST:
            break
        others = sum(wanted) - wanted[widest]
        second = max((found for number, found in enumerate(wanted) if number != widest), default=0)
        wanted[widest] = max(min(room - others, wanted[widest] - 1), min(second, wanted[widest] - 1), NARROWEST)
    return wanted


def _row(cells: list[Text], widths: list[int]) -> list[Text]:
    columns = [wrapped(cell, width) for cell, width in zip(cells, widths, strict=False)]
    return [_line(pieces, widths) for pieces in zip_longest(*columns, fillvalue=Text())]


def _line(pieces: tuple[Text, ...], widths: list[int]) -> Text:
    whole = line()
    for number, (piece, width) in enumerate(zip(pieces, widths, strict=False)):
        last = number == len(pieces) - 1
        whole.append_text(piece)
        whole.append("" if last else " " * (width - piece.cell_len + _GAP))
    return whole
