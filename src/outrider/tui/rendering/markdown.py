"""Markdown as lines, block by block, and a flow that only works on what is new."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename  # pyright: ignore[reportUnknownVariableType]
from pygments.token import Token
from pygments.util import ClassNotFound
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from outrider.tui.rendering.text import clean, cut, indented, line, padded, strips_of, wrapped
from outrider.tui.theme import Palette


def inline(node: SyntaxTreeNode, palette: Palette, style: Style | None = None) -> Text:
    """The text of a block; links name their address, since where a link leads must be seen and not guessed."""
    text = Text(end="")
    for child in node.children:
        if child.type == "inline":
            text.append_text(inline(child, palette, style))
        else:
            _write(child, text, palette, style or palette.style("text"))
    return text


def _write(node: SyntaxTreeNode, text: Text, palette: Palette, style: Style) -> None:
    match node.type:
        case "text" | "html_inline" | "text_special":
            text.append(node.content, style)
        case "code_inline":
            text.append(node.content, palette.style("accent"))
        case "softbreak":
            text.append(" ")
        case "hardbreak":
            text.append("\n")
        case "strong":
            _write_all(node, text, palette, style + Style(bold=True))
        case "em":
            _write_all(node, text, palette, style + Style(italic=True))
        case "s":
            _write_all(node, text, palette, style + Style(strike=True))
        case "link":
            _write_link(node, text, palette)
        case "image":
            text.append(f"[image: {node.content or node.attrs.get('src', '')}]", palette.style("link"))
        case _:
            _write_all(node, text, palette, style)


def _write_all(node: SyntaxTreeNode, text: Text, palette: Palette, style: Style) -> None:
    for child in node.children:
        _write(child, text, palette, style)


def _write_link(node: SyntaxTreeNode, text: Text, palette: Palette) -> None:
    start = len(text)
    _write_all(node, text, palette, palette.style("link", underline=True))
    address = str(node.attrs.get("href", ""))
    if address and text.plain[start:] != address:
        text.append(f" ({address})", palette.style("quiet"))


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


LONGEST = 40_000  # characters; more than this is shown plain, since colours would hold up the screen

_COLOURS: dict[Any, tuple[str, dict[str, bool]]] = {
    Token.Comment: ("quiet", {"italic": True}),
    Token.Keyword: ("keyword", {}),
    Token.Operator.Word: ("keyword", {}),
    Token.Name.Function: ("name", {}),
    Token.Name.Class: ("name", {}),
    Token.Name.Decorator: ("name", {}),
    Token.Name.Builtin: ("name", {}),
    Token.Name.Tag: ("keyword", {}),
    Token.Name.Attribute: ("name", {}),
    Token.Literal.String: ("string", {}),
    Token.Literal.Number: ("number", {}),
    Token.Generic.Inserted: ("good", {}),
    Token.Generic.Deleted: ("bad", {}),
    Token.Generic.Heading: ("quiet", {}),
    Token.Generic.Subheading: ("quiet", {}),
    Token.Generic.Prompt: ("quiet", {}),
}


def coloured(code: str, language: str, palette: Palette) -> list[Text]:
    """The lines of a piece of code; an unknown language stays plain."""
    lexer = lexer_for(language) if len(code) <= LONGEST else None
    if lexer is None:
        return [Text(found, palette.style("text"), end="") for found in code.split("\n")]
    whole = Text(end="")
    for token, text in lexer.get_tokens(code):
        whole.append(text, _style(token, palette))
    lines = list(whole.split("\n", allow_blank=True))
    return lines[: code.count("\n") + 1]  # lexers add a last newline


@lru_cache(maxsize=64)
def lexer_for(language: str) -> Lexer | None:
    """By the name of a language, else by a file's name."""
    if not language:
        return None
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        pass
    try:
        return get_lexer_for_filename(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@lru_cache(maxsize=512)
def _style(token: Any, palette: Palette) -> Style:
    while token is not None:
        if token in _COLOURS:
            colour, more = _COLOURS[token]
            return palette.style(colour, **more)
        token = token.parent
    return palette.style("text")


_parser = MarkdownIt("commonmark", {"html": False}).enable("table").enable("strikethrough")
_DEEPEST = 12
_OPEN_ROWS = 40  # of a long block of code that is still written are made anew with every piece


def markdown(text: str, width: int, palette: Palette) -> list[Text]:
    return _blocks(_parse(clean(text)), width, palette)


class Flow:
    """A text that grows. What stands before the last block is rendered once and then kept."""

    def __init__(self, width: int, palette: Palette, margin: int = 0) -> None:
        self._width = max(width - margin, 8)
        self._margin = line(" " * margin)
        self._palette = palette
        self._text = ""
        self._settled = 0
        self._fence = ""  # the opening line of a code block of which a part has settled
        self._strips: list[Strip] = []

    def lines(self, text: str) -> list[Strip]:
        if not text.startswith(self._text):
            self._settled, self._fence, self._strips = 0, "", []
        self._text = text
        rows = self._rows()
        blocks = _parse("\n".join(rows)).children
        still_open = _still_open(blocks, len(rows))
        if len(blocks) > still_open and (start := _first_row(blocks[-still_open])):
            self._keep(_blocks_of(blocks[:-still_open], self._width, self._palette), start - bool(self._fence))
            self._fence, blocks, rows = "", blocks[-still_open:], rows[start:]
        if len(blocks) == 1 and blocks[0].type == "fence" and len(rows) > 2 * _OPEN_ROWS:
            blocks = self._settle_code(blocks[-1], rows)
        return self._strips + strips_of(self._spaced(_blocks_of(blocks, self._width, self._palette)))

    def _rows(self) -> list[str]:
        """What has not settled, line by line, so that a line of the clean text is a line of the text."""
        rows = [clean(found.rstrip("\r")) for found in self._text[self._settled :].split("\n")]
        return [self._fence, *rows] if self._fence else rows

    def _settle_code(self, block: SyntaxTreeNode, rows: list[str]) -> Sequence[SyntaxTreeNode]:
        """A very long block of code: its first lines are done with, although it goes on."""
        if any(found.strip().startswith(block.markup) for found in rows[1:]):
            return [block]  # it is closed, and will settle whole
        done = rows[1:-_OPEN_ROWS]
        self._keep(_code("\n".join(done), block.info, self._width, self._palette), len(done) + (not self._fence))
        self._fence = f"{block.markup}{block.info}"
        return _parse("\n".join(self._rows())).children

    def _keep(self, lines: list[Text], rows: int) -> None:
        """These lines stand for so many lines of the text."""
        self._strips += strips_of(self._spaced(lines))
        place = self._settled
        for _ in range(rows):
            place = self._text.index("\n", place) + 1
        self._settled = place

    def _spaced(self, lines: list[Text]) -> list[Text]:
        spaced = [line(), *lines] if self._strips and lines and not self._fence else lines
        return indented(spaced, self._margin) if self._margin else spaced


def _still_open(blocks: Sequence[SyntaxTreeNode], rows: int) -> int:
    """How many blocks at the end may yet become others. A line that is being written can still turn out to belong to
    the block before it: `1` looks like a paragraph until `1. next` goes on with a list."""
    return 2 if blocks and _first_row(blocks[-1]) == rows - 1 else 1


def _first_row(block: SyntaxTreeNode) -> int:
    return (block.map or (0, 0))[0]


def _parse(text: str) -> SyntaxTreeNode:
    return SyntaxTreeNode(_parser.parse(text))


def _blocks(tree: SyntaxTreeNode, width: int, palette: Palette) -> list[Text]:
    return _blocks_of(tree.children, width, palette)


def _blocks_of(nodes: Sequence[SyntaxTreeNode], width: int, palette: Palette, depth: int = 0) -> list[Text]:
    lines: list[Text] = []
    for node in nodes:
        found = _block(node, width, palette, depth)
        if lines and found:
            lines.append(line())
        lines += found
    return lines


def _block(node: SyntaxTreeNode, width: int, palette: Palette, depth: int) -> list[Text]:
    match node.type:
        case "heading":
            style = palette.style("accent", bold=True) if node.tag in {"h1", "h2"} else palette.style("text", bold=True)
            return wrapped(inline(node, palette, style), width)
        case "fence" | "code_block":
            return _code(node.content.rstrip("\n"), node.info.split(" ")[0], width, palette)
        case "bullet_list" | "ordered_list":
            return _list(node, width, palette, depth)
        case "blockquote":
            inside = _blocks_of(node.children, max(width - 2, 8), palette, depth + 1) if depth < _DEEPEST else []
            bar = line("▎ ", palette.style("faint"))
            return indented(inside, bar, bar)
        case "table":
            return table(node, width, palette)
        case "hr":
            return [line("─" * width, palette.style("faint"))]
        case "html_block":
            return wrapped(Text(node.content.rstrip(), palette.style("text"), end=""), width)
        case _:
            return wrapped(inline(node, palette), width)


def _code(code: str, language: str, width: int, palette: Palette) -> list[Text]:
    """On a ground of its own; what is longer than a line goes on below."""
    ground = Style(bgcolor=palette.surface)
    lines = [piece for found in coloured(code, language, palette) for piece in wrapped(found, max(width - 2, 8))]
    return [padded(Text.assemble(" ", cut(found, width - 1), end=""), width, ground) for found in lines]


def _list(node: SyntaxTreeNode, width: int, palette: Palette, depth: int) -> list[Text]:
    if depth > _DEEPEST:
        return []
    start = int(node.attrs.get("start", 1))
    tight = all(part.hidden for item in node.children for part in item.children if part.type == "paragraph")
    lines: list[Text] = []
    for number, item in enumerate(node.children):
        mark = f"{start + number}. " if node.type == "ordered_list" else "• "
        inside = _item(item, max(width - len(mark), 8), palette, depth)
        if lines and not tight:
            lines.append(line())
        lines += indented(inside or [line()], line(mark, palette.style("accent")))
    return lines


def _item(item: SyntaxTreeNode, width: int, palette: Palette, depth: int) -> list[Text]:
    lines: list[Text] = []
    for part in item.children:
        found = _block(part, width, palette, depth + 1)
        if lines and part.type not in {"bullet_list", "ordered_list", "paragraph"}:
            lines.append(line())
        lines += found
    return lines
