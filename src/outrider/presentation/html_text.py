"""Untrusted text as HTML: escaped text, Markdown, code and diffs.

The result holds no raw HTML of the text, no scripts, no inline styles and no images, and its links are HTTP, HTTPS or
mail addresses. Invisible and bidirectional control characters are shown as escapes."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING

from outrider.presentation.diffs import FileDiff, diff_rows

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

SHOWN_CHARACTERS = 100_000
"""Characters of one text that are shown; the middle of a longer one is left out."""
_ALLOWED_LINKS = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_BARE_URL = re.compile(r"\bhttps?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]]")
_DIFF = re.compile(r"^(?:diff --git |--- .*\n\+\+\+ |@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@)", re.MULTILINE)
# Control, zero-width and bidirectional characters: invisible, or they change the displayed order of a text.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_FIRST_HEADING = 4  # the levels above belong to the page
_LAST_HEADING = 6


def escape_invisible(text: str) -> str:
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))


def escape_text(text: str) -> str:
    return escape(escape_invisible(text), quote=True)


def cut_text(text: str) -> str:
    """Returns the text without its middle if it is longer than SHOWN_CHARACTERS."""
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - SHOWN_CHARACTERS:,} characters are left out here …\n{text[-half:]}"


def render_markdown(text: str) -> str:
    """Renders CommonMark with tables and strikethrough. HTML in the text is shown as text."""
    parser = _parser()
    tokens = parser.parse(cut_text(text))
    for token in tokens:
        _adapt_block(token)
    # Entities such as `&#x202e;` are decoded by the parser, so invisible characters are escaped in the result.
    return escape_invisible(parser.renderer.render(tokens, parser.options, {}))


def render_code(text: str, language: str = "") -> str:
    """Renders code or tool output; a diff gets one class per line type."""
    text = cut_text(text)
    if language in ("diff", "patch") or _DIFF.search(text):
        return f'<pre class="diff">{"".join(map(_render_diff_line, text.splitlines()))}</pre>'
    return f"<pre>{escape_text(text)}</pre>"


def render_diffs(files: Sequence[FileDiff]) -> str:
    """Renders the changes of files, as far as SHOWN_CHARACTERS go."""
    rows = (_render_row(row.kind, row.text) for row in diff_rows(files, SHOWN_CHARACTERS))
    return f'<pre class="diff">{"".join(rows)}</pre>'


def _render_diff_line(line: str) -> str:
    if line.startswith(("+++", "---", "diff ", "index ")):
        kind = "file"
    else:
        kind = {"+": "added", "-": "removed", "@": "place"}.get(line[:1], "context")
    return _render_row(kind, line)


def _render_row(kind: str, text: str) -> str:
    return f'<span class="{kind}">{escape_text(text) or " "}</span>\n'


@cache
def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "xhtmlOut": False})
    parser.enable(["table", "strikethrough"]).disable("image")
    parser.validateLink = _is_allowed_link
    return parser


def _is_allowed_link(url: str) -> bool:
    return _ALLOWED_LINKS.match(url.strip()) is not None


def _adapt_block(token: "Token") -> None:
    """Changes a block to what the page allows: smaller headings, alignment by class, code as `render_code` shows it."""
    match token.type:
        case "heading_open" | "heading_close":
            token.tag = f"h{min(int(token.tag[1:]) + _FIRST_HEADING - 1, _LAST_HEADING)}"
        case "th_open" | "td_open":
            align = str(token.attrs.pop("style", "")).rpartition(":")[2]
            if align in ("right", "center"):
                token.attrSet("class", align)
        case "fence" | "code_block":
            token.content = render_code(token.content, token.info.strip().partition(" ")[0])
            token.type = "html_block"  # rendered as it is
        case "inline":
            token.children = list(_adapt_inline(token.children or []))
        case _:
            return  # rendered as the parser left it: the parser produces no HTML of the text


def _adapt_inline(tokens: "Sequence[Token]") -> "Iterator[Token]":
    """Yields the tokens of a paragraph with bare addresses as links."""
    in_link = False
    for token in tokens:
        if token.type in ("link_open", "link_close"):
            in_link = token.type == "link_open"
            if in_link:
                token.attrSet("rel", "noreferrer noopener")
        if token.type == "text" and not in_link:
            yield from _link_addresses(token)
        else:
            yield token


def _link_addresses(token: "Token") -> "Iterator[Token]":
    from markdown_it.token import Token

    position = 0
    for found in _BARE_URL.finditer(token.content):
        yield Token("text", "", 0, content=token.content[position : found.start()])
        yield Token("link_open", "a", 1, attrs={"href": found[0], "rel": "noreferrer noopener"})
        yield Token("text", "", 0, content=found[0])
        yield Token("link_close", "a", -1)
        position = found.end()
    yield Token("text", "", 0, content=token.content[position:])
