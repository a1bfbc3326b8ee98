"""Converts HTML pages to Markdown or plain text in bounded time, even if the HTML is malformed or hostile.

Our tokenizer is linear in the page length, whereas `html.parser` is quadratic on some malformed input. Its tokens are
rewritten to a small, well-formed subset of HTML with bounded depth, which markdownify then converts. Import this module
only on use: markdownify takes about 100 ms to load.
"""

import re
from collections import Counter
from collections.abc import Iterator
from html import escape, unescape
from typing import Any
from urllib.parse import urljoin

import msgspec
from markdownify import MarkdownConverter

_RAW_TEXT_TAGS = frozenset(["script", "style", "textarea", "title", "noscript", "iframe", "template"])
_RAW_TEXT_ENDS = {name: re.compile(rf"</{name}\b", re.IGNORECASE) for name in _RAW_TEXT_TAGS}
_TAG_NAME = re.compile(r"</?([A-Za-z][A-Za-z0-9:-]{0,40})")
_ATTRIBUTE = re.compile(r"""(?<![\w-])(href|src|alt)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
_MAX_ATTRIBUTE_TEXT = 2_048
_MAX_QUOTED_BRACKETS = 10


class HtmlText(msgspec.Struct, frozen=True):
    text: str


class HtmlTag(msgspec.Struct, frozen=True):
    name: str
    closing: bool
    raw: str

    def read_attributes(self) -> dict[str, str]:
        """Returns href, src and alt; other attributes are ignored."""
        attributes = _ATTRIBUTE.findall(self.raw[:_MAX_ATTRIBUTE_TEXT])
        return {name.lower(): unescape(double or single or bare) for name, double, single, bare in attributes}


def tokenize_html(html: str) -> Iterator[HtmlText | HtmlTag]:
    """Yields tags and unescaped text. The content of a script or similar tag is one text token. An unterminated tag or
    comment extends to the end of the page."""
    position = 0
    while position < len(html):
        start = html.find("<", position)
        if start < 0:
            yield HtmlText(unescape(html[position:]))
            return
        if start > position:
            yield HtmlText(unescape(html[position:start]))
        position = _tag_end(html, start)
        name = _TAG_NAME.match(html, start)
        if position == start + 1:
            yield HtmlText("<")
        elif name:
            tag = HtmlTag(name[1].lower(), html[start + 1] == "/", html[start:position])
            yield tag
            if tag.name in _RAW_TEXT_TAGS and not tag.closing:
                end = _RAW_TEXT_ENDS[tag.name].search(html, position)
                stop = end.start() if end else len(html)
                yield HtmlText(unescape(html[position:stop]))
                position = stop


def _tag_end(html: str, start: int) -> int:
    """Returns the index after the tag or comment at `start`; `start + 1` if the `<` is plain text."""
    if html.startswith("<!--", start):
        end = html.find("-->", start + 4)
        return end + 3 if end >= 0 else len(html)
    if not (_TAG_NAME.match(html, start) or html.startswith(("<!", "<?", "</"), start)):
        return start + 1
    end = html.find(">", start)
    for _ in range(_MAX_QUOTED_BRACKETS):
        if end < 0 or html.count('"', start, end) % 2 == 0:
            break
        end = html.find(">", end + 1)
    return end + 1 if end >= 0 else len(html)


_SKIPPED_TAGS = frozenset(
    ["script", "style", "noscript", "template", "svg", "canvas", "iframe", "object", "embed", "select", "button",
     "textarea", "audio", "video", "math"]
)  # fmt: skip
_BLOCK_TAGS = frozenset(
    ["p", "div", "section", "article", "header", "footer", "main", "aside", "nav", "form", "fieldset", "figure",
     "figcaption", "address", "details", "summary", "dl", "dt", "caption", "center"]
)  # fmt: skip
_HEADING_TAGS = frozenset(["h1", "h2", "h3", "h4", "h5", "h6"])
_INLINE_TAGS = frozenset(["strong", "b", "em", "i", "code", "kbd", "del", "s", "a"])
_INDENTED_TAGS = frozenset(["blockquote", "li", "dd"])
_VOID_TAGS = frozenset(["br", "hr", "img"])
# thead, tbody and tfoot are dropped: markdownify searches all rows of a thead for each of its rows.
_CONVERTED_TAGS = (
    _HEADING_TAGS | _INLINE_TAGS | _INDENTED_TAGS | {"p", "dl", "dt", "pre", "ul", "ol", "table", "tr", "td", "th"}
)
# An opening tag ends an open element of these names (whose end tag HTML makes optional), up to the boundary elements.
_IMPLIED_ENDS = {
    "li": ({"li"}, {"ul", "ol"}),
    "dt": ({"dt", "dd"}, {"dl"}),
    "dd": ({"dt", "dd"}, {"dl"}),
    "tr": ({"tr"}, {"table"}),
    "td": ({"td", "th"}, {"tr", "table"}),
    "th": ({"td", "th"}, {"tr", "table"}),
    "a": ({"a"}, set[str]()),
}
_ENDS_PARAGRAPH = _BLOCK_TAGS | _HEADING_TAGS | {"blockquote", "pre", "ul", "ol", "table"}
_WHITESPACE = re.compile(r"[ \t\r\n\f\v\xa0]+")
_MAX_SKIPPED_DEPTH = 50
# markdownify recurses per level and copies the text at each level; indented levels also lengthen every line.
_MAX_DEPTH = 60
_MAX_INDENTED_DEPTH = 10
_MAX_ELEMENTS = 50_000  # about 5 s; later tags are dropped, their text is not


def html_to_text(html: str, address: str = "", *, markdown: bool = True) -> tuple[str, str]:
    """Returns the text and the title of a page. Links are resolved against the page's address."""
    writer = _MarkdownWriter(address) if markdown else _PlainTextWriter(address)
    for token in tokenize_html(html):
        writer.add_token(token)
    lines = [line.rstrip() for line in writer.finish().split("\n")]
    title = _WHITESPACE.sub(" ", "".join(writer.title)).strip()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n"), title


class _PageWriter:
    """Tracks open elements and skipped ones; subclasses write the accepted tags and text."""

    def __init__(self, address: str) -> None:
        self.title: list[str] = []
        self._address = address
        self._out: list[str] = []
        self._in_title = False
        self._skipped: list[str] = []
        self._open: list[str] = []
        self._dropped: Counter[str] = Counter()  # opening tags beyond the limits, whose end tags must be ignored
        self._elements = 0

    def add_token(self, token: HtmlText | HtmlTag) -> None:
        if isinstance(token, HtmlText):
            self._add_text(token.text)
        elif self._skipped or token.name in _SKIPPED_TAGS:
            self._skip_tag(token)
        elif token.name == "title":
            self._in_title = not token.closing
        elif token.name in _VOID_TAGS:
            self._write_void(token)
        elif token.closing:
            self._close_tag(_canonical(token.name))
        else:
            self._open_tag(_canonical(token.name), token)

    def finish(self) -> str:
        """Closes all elements and returns the converted text."""
        self._close_down_to(0)
        return "".join(self._out)

    def _write_start(self, name: str, tag: HtmlTag) -> None:
        raise NotImplementedError

    def _write_end(self, name: str) -> None:
        raise NotImplementedError

    def _write_void(self, tag: HtmlTag) -> None:
        raise NotImplementedError

    def _write_text(self, text: str) -> None:
        raise NotImplementedError

    def _add_text(self, text: str) -> None:
        if self._in_title:
            self.title.append(text)
        elif not self._skipped:
            self._write_text(text if "pre" in self._open else _WHITESPACE.sub(" ", text))

    def _skip_tag(self, tag: HtmlTag) -> None:
        if not tag.closing and tag.name in _SKIPPED_TAGS and not tag.raw.endswith("/>"):
            self._skipped.append(tag.name)
        elif tag.closing and tag.name in self._skipped[-_MAX_SKIPPED_DEPTH:]:
            while self._skipped.pop() != tag.name:
                pass

    def _open_tag(self, name: str, tag: HtmlTag) -> None:
        if name not in _CONVERTED_TAGS:
            return
        self._end_implied(name)
        self._elements += 1
        indented = sum(open_name in _INDENTED_TAGS for open_name in self._open) if name in _INDENTED_TAGS else 0
        if len(self._open) >= _MAX_DEPTH or indented >= _MAX_INDENTED_DEPTH or self._elements > _MAX_ELEMENTS:
            self._dropped[name] += 1
            self._out.append(" ")
            return
        self._open.append(name)
        self._write_start(name, tag)

    def _end_implied(self, name: str) -> None:
        if name in _ENDS_PARAGRAPH and self._open and self._open[-1] == "p":
            self._close_down_to(len(self._open) - 1)
        ended, boundaries = _IMPLIED_ENDS.get(name, (set[str](), set[str]()))
        for depth in range(len(self._open) - 1, -1, -1):
            if self._open[depth] in boundaries:
                return
            if self._open[depth] in ended:
                self._close_down_to(depth)
                return

    def _close_tag(self, name: str) -> None:
        if self._dropped[name]:
            self._dropped[name] -= 1
        elif name in self._open:
            self._close_down_to(len(self._open) - 1 - self._open[::-1].index(name))

    def _close_down_to(self, depth: int) -> None:
        while len(self._open) > depth:
            self._write_end(self._open.pop())


class _MarkdownWriter(_PageWriter):
    """Writes well-formed HTML and converts it with markdownify at the end."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._next_numbers: list[int] = []  # per open list

    def finish(self) -> str:
        converter = _PageConverter(
            heading_style="atx",
            bullets="-",
            escape_asterisks=False,
            escape_underscores=False,
            autolinks=False,
            table_infer_header=True,
        )
        return converter.convert(super().finish())

    def _write_start(self, name: str, tag: HtmlTag) -> None:
        attributes = ""
        if name == "a":
            target = tag.read_attributes().get("href", "")
            if target and not target.startswith(("#", "javascript:", "data:")):
                attributes = f' href="{escape(self._absolute_url(target))}"'
        elif name in ("ul", "ol"):
            self._next_numbers.append(1)
        elif name == "li" and self._next_numbers:
            attributes = f' value="{self._next_numbers[-1]}"'
            self._next_numbers[-1] += 1
        self._out.append(f"<{name}{attributes}>")

    def _write_end(self, name: str) -> None:
        if name in ("ul", "ol"):
            self._next_numbers.pop()
        self._out.append(f"</{name}>")

    def _write_void(self, tag: HtmlTag) -> None:
        if tag.name != "img":
            self._out.append(f"<{tag.name}>")
        elif (attributes := tag.read_attributes()).get("alt"):
            source = escape(self._absolute_url(attributes.get("src", "")))
            self._out.append(f'<img alt="{escape(attributes["alt"])}" src="{source}">')

    def _write_text(self, text: str) -> None:
        self._out.append(escape(text, quote=False))

    def _absolute_url(self, target: str) -> str:
        try:
            return urljoin(self._address, target.strip())
        except ValueError:
            return target


class _PlainTextWriter(_PageWriter):
    def _write_start(self, name: str, tag: HtmlTag) -> None:
        if name == "li":
            self._out.append("\n- ")
        elif name in ("td", "th"):
            self._out.append(" | " if self._out and not self._out[-1].endswith("\n") else "")
        else:
            self._out.append("\n" if name == "tr" else "" if name in _INLINE_TAGS else "\n\n")

    def _write_end(self, name: str) -> None:
        self._out.append("" if name in _INLINE_TAGS or name in ("li", "tr", "td", "th") else "\n\n")

    def _write_void(self, tag: HtmlTag) -> None:
        self._out.append({"br": "\n", "hr": "\n\n---\n\n"}.get(tag.name, ""))

    def _write_text(self, text: str) -> None:
        at_line_start = not self._out or self._out[-1].endswith(("\n", " "))
        self._out.append(text.lstrip(" ") if at_line_start and "pre" not in self._open else text)


def _canonical(name: str) -> str:
    """Maps all block tags without Markdown syntax to `p`, except the parts of a definition list."""
    return "p" if name in _BLOCK_TAGS and name not in ("dl", "dt") else name


class _PageConverter(MarkdownConverter):
    """markdownify with list numbers from the `value` attribute: it counts the preceding items for each item, which is
    quadratic in the length of the list."""

    def convert_li(self, el: Any, text: str, parent_tags: set[str]) -> str:
        del parent_tags  # markdownify passes it by name
        text = text.strip()
        if not text:
            return "\n"
        numbered = el.parent is not None and el.parent.name == "ol"
        bullet = f"{el.get('value', 1)}. " if numbered else "- "
        lines = text.split("\n")
        indent = " " * len(bullet)
        return "\n".join([bullet + lines[0], *(indent + line if line else "" for line in lines[1:])]) + "\n"
