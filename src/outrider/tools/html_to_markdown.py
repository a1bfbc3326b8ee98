"""HTML as Markdown or plain text, in one pass, whatever is wrong with it."""

import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import urljoin

import msgspec

_RAW = frozenset(["script", "style", "textarea", "title", "noscript", "iframe", "template"])
_ENDS = {name: re.compile(rf"</{name}\b", re.IGNORECASE) for name in _RAW}
_NAME = re.compile(r"</?([A-Za-z][A-Za-z0-9:-]{0,40})")
_ATTRIBUTE = re.compile(r"""(?<![\w-])(href|src|alt)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
_LONGEST_ATTRIBUTES = 2_048
_MOST_QUOTED = 10


class Text(msgspec.Struct, frozen=True):
    text: str


class Tag(msgspec.Struct, frozen=True):
    name: str
    closing: bool
    raw: str

    def attributes(self) -> dict[str, str]:
        """Only the few that text needs."""
        found = _ATTRIBUTE.findall(self.raw[:_LONGEST_ATTRIBUTES])
        return {name.lower(): unescape(double or single or bare) for name, double, single, bare in found}


def tokens(html: str) -> Iterator[Text | Tag]:
    """What is inside scripts and the like is one text. A tag or comment without its end is the end."""
    at = 0
    while at < len(html):
        start = html.find("<", at)
        if start < 0:
            yield Text(unescape(html[at:]))
            return
        if start > at:
            yield Text(unescape(html[at:start]))
        at = _after(html, start)
        name = _NAME.match(html, start)
        if at == start + 1:
            yield Text("<")
        elif name:
            tag = Tag(name[1].lower(), html[start + 1] == "/", html[start:at])
            yield tag
            if tag.name in _RAW and not tag.closing:
                end = _ENDS[tag.name].search(html, at)
                stop = end.start() if end else len(html)
                yield Text(unescape(html[at:stop]))
                at = stop


def _after(html: str, start: int) -> int:
    """The place after the tag or comment that begins here; one further for a mark that begins nothing."""
    if html.startswith("<!--", start):
        end = html.find("-->", start + 4)
        return end + 3 if end >= 0 else len(html)
    if not (_NAME.match(html, start) or html.startswith(("<!", "<?", "</"), start)):
        return start + 1
    end = html.find(">", start)
    for _ in range(_MOST_QUOTED):
        if end < 0 or html.count('"', start, end) % 2 == 0:
            break
        end = html.find(">", end + 1)
    return end + 1 if end >= 0 else len(html)


_SKIPPED = frozenset(
    [
        "script",
        "style",
        "noscript",
        "template",
        "svg",
        "canvas",
        "iframe",
        "object",
        "embed",
        "select",
        "button",
        "textarea",
        "audio",
        "video",
        "math",
    ]
)
_BLOCKS = frozenset(
    [
        "p",
        "div",
        "section",
        "article",
        "header",
        "footer",
        "main",
        "aside",
        "nav",
        "form",
        "fieldset",
        "figure",
        "figcaption",
        "address",
        "details",
        "summary",
        "dl",
        "dd",
        "dt",
        "table",
        "thead",
        "tbody",
        "tfoot",
        "caption",
        "center",
    ]
)
_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_MARKS = {"strong": "**", "b": "**", "em": "*", "i": "*", "code": "`", "kbd": "`", "del": "~~", "s": "~~"}
_SPACE = re.compile(r"[ \t\r\n\f\v\xa0]+")
_DEEPEST_LIST = 20
_DEEPEST_SKIPPED = 50
_BREAKS = {"br": "\n", "hr": "\n\n---\n\n", "tr": "\n"}


def html_to_text(html: str, address: str = "", *, markdown: bool = True) -> tuple[str, str]:
    """The text and the title of a page; links become absolute by the page's address."""
    reader = _Reader(address, markdown=markdown)
    for token in tokens(html):
        reader.take(token)
    return reader.text(), reader.title()


class _Reader:
    def __init__(self, address: str, *, markdown: bool) -> None:
        self._address = address
        self._markdown = markdown
        self._out: list[str] = []
        self._title: list[str] = []
        self._in_title = False
        self._skipped: list[str] = []
        self._lists: list[int | None] = []  # the next number, or None in a list of points
        self._open_link: tuple[int, str] | None = None
        self._verbatim = 0
        self._cells = 0

    def take(self, token: Text | Tag) -> None:
        if isinstance(token, Text):
            self._text(token.text)
        elif self._skipped or token.name in _SKIPPED:
            self._skip(token)
        elif token.closing:
            self._end(token.name)
        else:
            self._start(token)

    def text(self) -> str:
        self._close_link()
        lines = [line.rstrip() for line in "".join(self._out).split("\n")]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()

    def title(self) -> str:
        return _SPACE.sub(" ", "".join(self._title)).strip()

    def _skip(self, tag: Tag) -> None:
        if not tag.closing and tag.name in _SKIPPED and not tag.raw.endswith("/>"):
            self._skipped.append(tag.name)
        elif tag.closing and tag.name in self._skipped[-_DEEPEST_SKIPPED:]:
            while self._skipped.pop() != tag.name:
                pass

    def _start(self, tag: Tag) -> None:
        name = tag.name
        if name in _HEADINGS:
            self._out.append(f"\n\n{_HEADINGS[name] + ' ' if self._markdown else ''}")
        elif name in _BLOCKS:
            self._out.append("\n\n")
        elif name in _MARKS:
            self._mark(_MARKS[name])
        elif name in _BREAKS:
            self._out.append(_BREAKS[name])
            self._cells = 0
        else:
            self._start_other(tag)

    def _start_other(self, tag: Tag) -> None:
        match tag.name:
            case "title":
                self._in_title = True
            case "pre":
                self._verbatim += 1
                self._out.append("\n\n```\n" if self._markdown else "\n\n")
            case "ul" | "ol":
                self._out.append("\n" if self._lists else "\n\n")
                self._lists.append(1 if tag.name == "ol" else None)
            case "li":
                self._item()
            case "blockquote":
                self._out.append("\n\n> " if self._markdown else "\n\n")
            case "a":
                self._close_link()
                self._open_link = len(self._out), tag.attributes().get("href", "")
            case "img":
                self._image(tag.attributes())
            case "td" | "th":
                self._out.append(" | " if self._cells else "| ")
                self._cells += 1
            case _:
                pass

    def _end(self, name: str) -> None:
        if name in _HEADINGS or name in _BLOCKS or name == "blockquote":
            self._out.append("\n\n")
        elif name in _MARKS:
            self._mark(_MARKS[name])
        match name:
            case "title":
                self._in_title = False
            case "pre" if self._verbatim:
                self._verbatim -= 1
                self._out.append("\n```\n\n" if self._markdown else "\n\n")
            case "ul" | "ol" if self._lists:
                self._lists.pop()
                self._out.append("\n" if self._lists else "\n\n")
            case "a":
                self._close_link()
            case "tr" if self._cells:
                self._out.append(" |")
            case _:
                pass

    def _text(self, text: str) -> None:
        if self._in_title:
            self._title.append(text)
        elif not self._skipped:
            self._out.append(text if self._verbatim else self._collapsed(text))

    def _collapsed(self, text: str) -> str:
        text = _SPACE.sub(" ", text)
        at_line_start = not self._out or self._out[-1].endswith(("\n", " "))
        return text.lstrip(" ") if at_line_start else text

    def _mark(self, mark: str) -> None:
        if self._markdown and not self._verbatim:
            self._out.append(mark)

    def _item(self) -> None:
        indent = "  " * min(len(self._lists) - 1, _DEEPEST_LIST)
        number = self._lists[-1] if self._lists else None
        if number is not None:
            self._lists[-1] = number + 1
        self._out.append(f"\n{indent}{f'{number}.' if number is not None else '-'} ")

    def _image(self, attributes: dict[str, str]) -> None:
        if attributes.get("alt") and self._markdown:
            self._out.append(f"![{attributes['alt']}]({self._absolute(attributes.get('src', ''))})")

    def _close_link(self) -> None:
        """Links do not nest: the next one, too, ends the one before."""
        if self._open_link is None:
            return
        (start, target), self._open_link = self._open_link, None
        text = "".join(self._out[start:]).strip()
        plain = not self._markdown or not target or target.startswith(("#", "javascript:", "data:"))
        if text and not plain and not self._verbatim:
            self._out[start:] = [f"[{text}]({self._absolute(target)})"]

    def _absolute(self, target: str) -> str:
        try:
            return urljoin(self._address, target.strip())
        except ValueError:
            return target
