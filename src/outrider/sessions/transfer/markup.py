"""Text as HTML that nothing in it can break out of: a little Markdown, coloured diffs, visible control characters."""

import re
from html import escape

_FENCE = re.compile(r"^(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:^\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`|\*\*([^*\n]+)\*\*|\b(https?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]])")
_HEADING = re.compile(r"(#{1,6})[ \t]+(.+)")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,3}[.)])[ \t]+(.+)")
_DIFF = re.compile(r"^(?:diff --git |--- .*\n\+\+\+ |@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@)", re.MULTILINE)
# What would not be seen, or would make the rest be read in another order than it stands.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


def visible(text: str) -> str:
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))


def safe(text: str) -> str:
    return escape(visible(text), quote=True)


def prose(text: str) -> str:
    """What people and models write: paragraphs, headings, lists, code."""
    pieces: list[str] = []
    position = 0
    text = text.replace("\r\n", "\n")
    for fence in _FENCE.finditer(text):
        pieces.append(_blocks(text[position : fence.start()]))
        pieces.append(code(fence[3], fence[2]))
        position = fence.end()
    pieces.append(_blocks(text[position:]))
    return "".join(pieces)


def code(text: str, language: str = "") -> str:
    """Code or output; a diff is coloured."""
    if language in ("diff", "patch") or _DIFF.search(text):
        return f'<pre class="diff">{"".join(map(_diff_line, text.splitlines()))}</pre>'
    return f"<pre>{safe(text)}</pre>"


def _diff_line(line: str) -> str:
    if line.startswith(("+++", "---", "diff ", "index ")):
        kind = "file"
    else:
        kind = {"+": "added", "-": "removed", "@": "place"}.get(line[:1], "same")
    return f'<span class="{kind}">{safe(line) or " "}</span>\n'


def _blocks(text: str) -> str:
    return "".join(_block(block) for block in re.split(r"\n[ \t]*\n", text) if block.strip())


def _block(block: str) -> str:
    """One paragraph; lines that are headings or list items stand for themselves."""
    pieces: list[str] = []
    lines: list[str] = []

    def end_paragraph() -> None:
        if lines:
            pieces.append(f"<p>{'<br>'.join(map(_inline, lines))}</p>")
            lines.clear()

    for line in block.strip("\n").split("\n"):
        if heading := _HEADING.fullmatch(line.strip()):
            end_paragraph()
            pieces.append(f"<h4>{_inline(heading[2])}</h4>")
        elif item := _ITEM.fullmatch(line):
            end_paragraph()
            pieces.append(f'<p class="item">{_inline(item[1])}</p>')
        else:
            lines.append(line)
    end_paragraph()
    return "".join(pieces)


def _inline(text: str) -> str:
    pieces: list[str] = []
    position = 0
    for found in _INLINE.finditer(text):
        pieces.append(safe(text[position : found.start()]))
        if found[1] is not None:
            pieces.append(f"<code>{safe(found[1])}</code>")
        elif found[2] is not None:
            pieces.append(f"<strong>{safe(found[2])}</strong>")
        else:
            pieces.append(f'<a href="{safe(found[3])}" rel="noreferrer noopener">{safe(found[3])}</a>')
        position = found.end()
    pieces.append(safe(text[position:]))
    return "".join(pieces)
