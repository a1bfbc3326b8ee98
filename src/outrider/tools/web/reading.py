"""A fetched page as a text."""

import codecs
import re

from outrider.errors import ToolFailure
from outrider.tools.text.encoding import detect
from outrider.tools.web.fetching import Page

_META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_TEXTUAL = re.compile(r"^(?:text/.*|application/(?:.*\+)?(?:json|xml|yaml|x-yaml|javascript|toml|x-ndjson|x-sh))$")
_HTML = frozenset({"text/html", "application/xhtml+xml"})


def is_html(page: Page) -> bool:
    if page.content_type in _HTML:
        return True
    unsaid = page.content_type in {"", "application/octet-stream"}
    return unsaid and page.body[:512].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def page_text(page: Page) -> str:
    """Decoded as the server, the page or its bytes say."""
    unsaid = page.content_type in {"", "application/octet-stream"}
    if not unsaid and not _TEXTUAL.match(page.content_type) and page.content_type not in _HTML:
        raise ToolFailure(f"{page.address} is {page.content_type}, which cannot be shown as text")
    for name in (page.charset, _declared(page)):
        if name and _known(name):
            return page.body.decode(name, "replace").removeprefix("\ufeff")
    found = detect(page.body, whole=not page.cut)
    if found is None:
        raise ToolFailure(f"{page.address} is binary ({page.content_type or 'of no stated type'}), not text")
    return page.body[len(found.bom) :].decode(found.name, "replace")


def _declared(page: Page) -> str | None:
    match = _META.search(page.body[:4096]) if is_html(page) else None
    return match[1].decode("ascii", "replace") if match else None


def _known(name: str) -> bool:
    """Encodings of text only; the registry also holds compressions and the like."""
    try:
        return codecs.lookup(name)._is_text_encoding  # pyright: ignore
    except LookupError:
        return False
