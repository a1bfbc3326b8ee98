"""Cuts HTML into tags and text in one pass, in time that grows with its length only, whatever is wrong with it.

The standard library's parser takes minutes for some pages of a few hundred kilobytes.
"""

import re
from collections.abc import Iterator
from html import unescape

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
