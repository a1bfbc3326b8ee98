"""The words inside a block of Markdown: emphasis, code, links."""

from markdown_it.tree import SyntaxTreeNode
from rich.style import Style
from rich.text import Text

from outrider.tui.rendering.palette import Palette


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
