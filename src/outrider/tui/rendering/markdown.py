"""Renders Markdown as styled lines, with tables and highlighted code; MarkdownStream renders growing text."""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rich.style import Style
from rich.text import Span, Text
from textual.strip import Strip

from outrider.presentation.formats import clean_text
from outrider.tui.rendering.text import (
    indent_lines,
    mark_code_line,
    pad_line,
    render_strips,
    text_line,
    truncate_line,
    wrap_text,
)
from outrider.tui.theme import Palette

# The parser and the lexers are loaded with the first text, after the first screen is shown.
if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from markdown_it.tree import SyntaxTreeNode
    from pygments.lexer import Lexer


def inline_text(node: "SyntaxTreeNode", palette: Palette, style: Style | None = None) -> Text:
    """Returns the inline text of a block. A link shows its address, so that the user can see the real target."""
    text = Text(end="")
    for child in node.children:
        if child.type == "inline":
            text.append_text(inline_text(child, palette, style))
        else:
            _append_node(child, text, palette, style or palette.style("text"))
    return text


def _append_node(node: "SyntaxTreeNode", text: Text, palette: Palette, style: Style) -> None:
    match node.type:
        case "text" | "html_inline" | "text_special":
            _append_text(node.content, text, style, palette)
        case "code_inline":
            text.append(node.content, palette.style("accent"))
        case "softbreak":
            text.append(" ")
        case "hardbreak":
            text.append("\n")
        case "strong":
            _append_children(node, text, palette, style + Style(bold=True))
        case "em":
            _append_children(node, text, palette, style + Style(italic=True))
        case "s":
            _append_children(node, text, palette, style + Style(strike=True))
        case "link":
            _append_link(node, text, palette)
        case "image":
            text.append(f"[image: {node.content or node.attrs.get('src', '')}]", palette.style("link"))
        case _:
            _append_children(node, text, palette, style)


def _append_children(node: "SyntaxTreeNode", text: Text, palette: Palette, style: Style) -> None:
    for child in node.children:
        _append_node(child, text, palette, style)


def _append_link(node: "SyntaxTreeNode", text: Text, palette: Palette) -> None:
    start = len(text)
    address = str(node.attrs.get("href", ""))
    _append_children(node, text, palette, palette.style("link", underline=True))
    if address and text.plain[start:] != address:
        text.append(f" ({address})", palette.style("quiet"))
    if _SAFE_ADDRESS.fullmatch(address):
        text.stylize(Style(link=address), start)


_SAFE_ADDRESS = re.compile(r"https?://[!-~]{1,2000}")
_BARE_ADDRESS = re.compile(r"https?://[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]}]")


def _append_text(content: str, text: Text, style: Style, palette: Palette) -> None:
    """Appends plain text; addresses in it become links of the terminal (OSC 8)."""
    start = len(text)
    text.append(content, style)
    for match in _BARE_ADDRESS.finditer(content) if "://" in content else ():
        address = match[0] if _SAFE_ADDRESS.fullmatch(match[0]) else ""
        link = palette.style("link", underline=True) + Style(link=address or None)
        text.stylize(link, start + match.start(), start + match.end())


MIN_COLUMN_WIDTH = 4
MIN_AVERAGE_WIDTH = 8  # average width per table column; below it the table is shown as records
_COLUMN_GAP = 2


def table_lines(node: "SyntaxTreeNode", width: int, palette: Palette) -> list[Text]:
    """Returns the lines of a table. Long cells wrap in their column; on a narrow screen each row becomes a list."""
    rows = [_row_cells(row, palette, head=part.type == "thead") for part in node.children for row in part.children]
    if not rows:
        return []
    if len(rows[0]) * MIN_AVERAGE_WIDTH > width and len(rows[0]) > 2:
        return _records_lines(rows, width, palette)
    widths = _column_widths(rows, width)
    aligns = [_cell_align(cell) for cell in node.children[0].children[0].children]
    lines: list[Text] = []
    for number, row in enumerate(rows):
        lines += _row_lines(row, widths, aligns)
        if number == 0:
            rule = (" " * _COLUMN_GAP).join("─" * column_width for column_width in widths)
            lines.append(text_line(rule, palette.style("faint")))
    return lines


def _records_lines(rows: list[list[Text]], width: int, palette: Palette) -> list[Text]:
    """Returns each table row as a list of `header value` lines."""
    heads, *body_rows = rows
    label = min(max((head.cell_len for head in heads), default=0) + _COLUMN_GAP, width // 2)
    lines: list[Text] = []
    for row in body_rows:
        lines += [text_line("─" * width, palette.style("faint"))]
        for head, cell in zip(heads, row, strict=False):
            lines += _row_lines([head, cell], [label - _COLUMN_GAP, width - label])
    return lines or _row_lines(heads, [width // len(heads)] * len(heads))


def _row_cells(row: "SyntaxTreeNode", palette: Palette, *, head: bool) -> list[Text]:
    style = palette.style("text") + Style(bold=head)
    return [inline_text(cell, palette, style) for cell in row.children]


def _column_widths(rows: list[list[Text]], width: int) -> list[int]:
    """Returns the column widths: the natural ones if they fit; otherwise the widest columns are narrowed first."""
    widths = [max(cell.cell_len for cell in column) for column in zip_longest(*rows, fillvalue=Text())]
    room = max(width - _COLUMN_GAP * (len(widths) - 1), MIN_COLUMN_WIDTH * len(widths))
    while sum(widths) > room:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= MIN_COLUMN_WIDTH:
            break
        other_columns = sum(widths) - widths[widest]
        second = max((column_width for number, column_width in enumerate(widths) if number != widest), default=0)
        narrower = widths[widest] - 1
        widths[widest] = max(min(room - other_columns, narrower), min(second, narrower), MIN_COLUMN_WIDTH)
    return widths


def _cell_align(cell: "SyntaxTreeNode") -> str:
    """Returns the alignment that the line below the table's head gives to a column."""
    return str(cell.attrs.get("style", "")).removeprefix("text-align:")


def _row_lines(cells: list[Text], widths: list[int], aligns: Sequence[str] = ()) -> list[Text]:
    columns = [wrap_text(cell, width) for cell, width in zip(cells, widths, strict=False)]
    return [_join_cells(line_cells, widths, aligns) for line_cells in zip_longest(*columns, fillvalue=Text())]


def _join_cells(cells: tuple[Text, ...], widths: list[int], aligns: Sequence[str]) -> Text:
    joined = text_line()
    for number, (cell, width) in enumerate(zip(cells, widths, strict=False)):
        is_last = number == len(cells) - 1
        cell.rstrip()
        room = max(width - cell.cell_len, 0)
        align = aligns[number] if number < len(aligns) else ""
        before = room if align == "right" else room // 2 if align == "center" else 0
        joined.append(" " * before)
        joined.append_text(cell)
        joined.append("" if is_last else " " * (room - before + _COLUMN_GAP))
    return joined


MAX_HIGHLIGHTED_CHARS = 40_000  # characters; longer code is shown without highlighting, which would block the screen


@lru_cache(maxsize=1)
def _token_colours() -> dict[Any, tuple[str, dict[str, bool]]]:
    from pygments.token import Token

    return {
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


def highlight_code(code: str, language: str, palette: Palette) -> list[Text]:
    """Returns highlighted lines of code; plain ones for an unknown language."""
    lexer = find_lexer(language) if len(code) <= MAX_HIGHLIGHTED_CHARS else None
    if lexer is None:
        return [Text(line, palette.style("text"), end="") for line in code.split("\n")]
    text = Text(end="")
    for token, content in lexer.get_tokens(code):
        text.append(content, _token_style(token, palette))
    lines = list(text.split("\n", allow_blank=True))
    return lines[: code.count("\n") + 1]  # lexers add a last newline


@lru_cache(maxsize=64)
def find_lexer(language: str) -> "Lexer | None":
    """Finds a Pygments lexer by language name, else by file name."""
    if not language:
        return None
    from pygments.lexers import get_lexer_by_name, get_lexer_for_filename  # pyright: ignore[reportUnknownVariableType]
    from pygments.util import ClassNotFound

    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        pass
    try:
        return get_lexer_for_filename(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@lru_cache(maxsize=512)
def _token_style(token: Any, palette: Palette) -> Style:
    """Returns the style of a token type, or of its closest parent type that has one."""
    while token is not None:
        if token in _token_colours():
            colour, attributes = _token_colours()[token]
            return palette.style(colour, **attributes)
        token = token.parent
    return palette.style("text")


_MAX_DEPTH = 12
_MIN_UNSETTLED_ROWS = 10  # last rows of a streaming code block that are rendered again with every chunk, at least
_UNSETTLED_ROWS = 40  # and at most twice as many


def markdown_lines(text: str, width: int, palette: Palette) -> list[Text]:
    """Returns the lines of a complete Markdown text."""
    return _block_lines(_parse_markdown(clean_text(text)).children, width, palette)


def code_blocks(text: str) -> list[str]:
    """Returns the contents of the code blocks of a Markdown text."""
    blocks = (node for node in _parse_markdown(text).walk() if node.type in ("fence", "code_block"))
    return [node.content.rstrip("\n") for node in blocks]


class MarkdownStream:
    """Renders a growing Markdown text. Blocks before the last one can no longer change ("settled"), so they are
    rendered once and cached."""

    def __init__(self, width: int, palette: Palette, margin: int = 0) -> None:
        self._width = max(width - margin, 8)
        self._margin = text_line(" " * margin)
        self._palette = palette
        self._text = ""
        self._settled = 0
        self._fence = ""  # opening line of a code block whose first rows have settled
        self._strips: list[Strip] = []
        self._code_strips: dict[tuple[str, tuple[Span, ...]], list[Strip]] = {}  # of the rows of an open code block

    def render(self, text: str) -> list[Strip]:
        """Returns the strips of the text; settled blocks come from the cache."""
        if not text.startswith(self._text):
            self._settled, self._fence, self._strips = 0, "", []
        self._text = text
        rows = self._pending_rows()
        blocks = _parse_markdown("\n".join(rows)).children
        still_open = _unsettled_blocks(blocks, len(rows))
        if len(blocks) > still_open and (start := _first_row(blocks[-still_open])):
            self._settle_rows(_block_lines(blocks[:-still_open], self._width, self._palette), start - bool(self._fence))
            self._fence, blocks, rows = "", blocks[-still_open:], rows[start:]
        if len(blocks) != 1 or blocks[0].type != "fence":
            return self._strips + render_strips(self._add_spacing(_block_lines(blocks, self._width, self._palette)))
        blocks = self._settle_code(blocks[0], rows)
        return self._strips + self._render_code(blocks[0])

    def _render_code(self, block: "SyntaxTreeNode") -> list[Strip]:
        """Returns the strips of the open code block at the end; rows that have not changed come from the cache."""
        code, language = block.content.rstrip("\n"), block.info.split(" ")[0]
        cached, self._code_strips = self._code_strips, {}
        strips: list[Strip] = []
        for row in highlight_code(code, language, self._palette):
            key = (row.plain, tuple(row.spans))
            if (row_strips := self._code_strips.get(key) or cached.get(key)) is None:
                row_strips = render_strips(indent_lines(_code_row_lines(row, self._width, self._palette), self._margin))
            self._code_strips[key] = row_strips
            strips += row_strips
        has_gap = bool(self._strips and not self._fence)
        return [*render_strips(indent_lines([text_line()], self._margin) if has_gap else []), *strips]

    def _pending_rows(self) -> list[str]:
        """Returns the rows that have not settled. Rows are cleaned one by one, so that row numbers match the text."""
        rows = [clean_text(row.rstrip("\r")) for row in self._text[self._settled :].split("\n")]
        return [self._fence, *rows] if self._fence else rows

    def _settle_code(self, block: "SyntaxTreeNode", rows: list[str]) -> Sequence["SyntaxTreeNode"]:
        """Settles the first rows of a code block that is still streaming; returns the remaining block."""
        if any(row.strip().startswith(block.markup) for row in rows[1:]):
            return [block]  # the block is closed and settles as a whole
        settled_rows = rows[1 : 1 + _settled_code_rows(rows[1:])]
        if not settled_rows:
            return [block]
        lines = _code_lines("\n".join(settled_rows), block.info, self._width, self._palette)
        self._settle_rows(lines, len(settled_rows) + (not self._fence))
        self._fence = f"{block.markup}{block.info}"
        return _parse_markdown("\n".join(self._pending_rows())).children

    def _settle_rows(self, lines: list[Text], rows: int) -> None:
        """Caches the rendered lines of the next `rows` rows of the text."""
        self._strips += render_strips(self._add_spacing(lines))
        position = self._settled
        for _ in range(rows):
            position = self._text.index("\n", position) + 1
        self._settled = position

    def _add_spacing(self, lines: list[Text]) -> list[Text]:
        spaced = [text_line(), *lines] if self._strips and lines and not self._fence else lines
        return indent_lines(spaced, self._margin) if self._margin else spaced


def _settled_code_rows(rows: Sequence[str]) -> int:
    """Returns how many rows of an open code block settle. A cut changes no highlighting if an empty row is before it, a
    row without indentation after it, and no string or comment is open. A very long block settles anywhere."""
    for end in range(len(rows) - _MIN_UNSETTLED_ROWS, 0, -1):
        if not rows[end - 1].strip() and rows[end][:1].strip() and _is_outside_strings("\n".join(rows[:end])):
            return end
    return len(rows) - _UNSETTLED_ROWS if len(rows) > 2 * _UNSETTLED_ROWS else 0


def _is_outside_strings(code: str) -> bool:
    quotes = ('"""', "'''", "`")
    return not any(code.count(quote) % 2 for quote in quotes) and code.count("/*") == code.count("*/")


def _unsettled_blocks(blocks: Sequence["SyntaxTreeNode"], rows: int) -> int:
    """Returns how many blocks at the end may still change. An unfinished row may turn out to belong to the block before
    it: `1` is a paragraph until `1. next` makes it a list item."""
    return 2 if blocks and _first_row(blocks[-1]) == rows - 1 else 1


def _first_row(block: "SyntaxTreeNode") -> int:
    return (block.map or (0, 0))[0]


_MAX_BRACKETS = 5_000  # each takes 10 µs; a text with more has no links, because it would block the screen


@lru_cache(maxsize=2)
def _parser(*, has_links: bool) -> "MarkdownIt":
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table").enable("strikethrough")
    return parser if has_links else parser.disable(["link", "image"])


def _parse_markdown(text: str) -> "SyntaxTreeNode":
    return _node_class()(_parser(has_links=text.count("[") <= _MAX_BRACKETS).parse(text))


@lru_cache(maxsize=1)
def _node_class() -> type["SyntaxTreeNode"]:
    from markdown_it.tree import SyntaxTreeNode

    class DownwardNode(SyntaxTreeNode):
        """A node without a link to its parent. With links in both directions, only a garbage collection would free the
        trees of a streaming text, and collections delay keys."""

        def _add_child(self, tokens: Sequence["Token"]) -> None:
            self.children.append(type(self)(tokens, create_root=False))

    return DownwardNode


def _block_lines(nodes: Sequence["SyntaxTreeNode"], width: int, palette: Palette, depth: int = 0) -> list[Text]:
    lines: list[Text] = []
    for node in nodes:
        block_lines = _render_block(node, width, palette, depth)
        if lines and block_lines:
            lines.append(text_line())
        lines += block_lines
    return lines


def _render_block(node: "SyntaxTreeNode", width: int, palette: Palette, depth: int) -> list[Text]:
    match node.type:
        case "heading":
            style = palette.style("accent", bold=True) if node.tag in {"h1", "h2"} else palette.style("text", bold=True)
            return wrap_text(inline_text(node, palette, style), width)
        case "fence" | "code_block":
            return _code_lines(node.content.rstrip("\n"), node.info.split(" ")[0], width, palette)
        case "bullet_list" | "ordered_list":
            return _list_lines(node, width, palette, depth)
        case "blockquote":
            inside = _block_lines(node.children, max(width - 2, 8), palette, depth + 1) if depth < _MAX_DEPTH else []
            bar = text_line("▎ ", palette.style("faint"))
            return indent_lines(inside, bar, bar)
        case "table":
            return table_lines(node, width, palette)
        case "hr":
            return [text_line("─" * width, palette.style("faint"))]
        case "html_block":
            return wrap_text(Text(node.content.rstrip(), palette.style("text"), end=""), width)
        case _:
            return wrap_text(inline_text(node, palette), width)


def _code_lines(code: str, language: str, width: int, palette: Palette) -> list[Text]:
    """Returns highlighted code lines on their own background; long lines wrap."""
    return [line for row in highlight_code(code, language, palette) for line in _code_row_lines(row, width, palette)]


def _code_row_lines(row: Text, width: int, palette: Palette) -> list[Text]:
    background = Style(bgcolor=palette.surface)
    lines: list[Text] = []
    for number, wrapped_row in enumerate(wrap_text(row, max(width - 2, 8))):
        line = pad_line(Text.assemble(" ", truncate_line(wrapped_row, width - 1), end=""), width, background)
        lines.append(mark_code_line(line, 1, continued=number > 0))
    return lines


def _list_lines(node: "SyntaxTreeNode", width: int, palette: Palette, depth: int) -> list[Text]:
    if depth > _MAX_DEPTH:
        return []
    start = int(node.attrs.get("start", 1))
    tight = all(part.hidden for item in node.children for part in item.children if part.type == "paragraph")
    lines: list[Text] = []
    for number, item in enumerate(node.children):
        mark = f"{start + number}. " if node.type == "ordered_list" else _take_task_mark(item) or "• "
        inside = _item_lines(item, max(width - len(mark), 8), palette, depth)
        if lines and not tight:
            lines.append(text_line())
        lines += indent_lines(inside or [text_line()], text_line(mark, palette.style("accent")))
    return lines


_TASK_MARK = re.compile(r"\[([ xX])\]\s+")


def _take_task_mark(item: "SyntaxTreeNode") -> str:
    """Returns the sign of an item of a task list, and removes `[x]` from its text; "" for other items."""
    paragraph = item.children[0] if item.children else None
    inline = paragraph.children[0] if paragraph is not None and paragraph.children else None
    if inline is None or inline.type != "inline" or not inline.children or inline.children[0].type != "text":
        return ""
    token = inline.children[0].token
    match = _TASK_MARK.match(token.content) if token is not None else None
    if token is None or match is None:
        return ""
    token.content = token.content[match.end() :]
    return "☐ " if match[1] == " " else "☑ "


def _item_lines(item: "SyntaxTreeNode", width: int, palette: Palette, depth: int) -> list[Text]:
    lines: list[Text] = []
    for part in item.children:
        part_lines = _render_block(part, width, palette, depth + 1)
        if lines and part.type not in {"bullet_list", "ordered_list", "paragraph"}:
            lines.append(text_line())
        lines += part_lines
    return lines
