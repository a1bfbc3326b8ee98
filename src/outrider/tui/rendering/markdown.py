"""Markdown as lines, block by block, and a flow that only works on what is new."""

from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from outrider.tui.rendering.code import coloured
from outrider.tui.rendering.inline import inline
from outrider.tui.rendering.lines import clean, cut, indented, line, padded, strips_of, wrapped
from outrider.tui.rendering.palette import Palette
from outrider.tui.rendering.tables import table

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
