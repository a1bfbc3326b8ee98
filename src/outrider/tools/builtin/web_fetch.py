"""Fetches a page of the web and gives its text."""

import base64
from typing import Literal

from outrider.errors import ToolFailure
from outrider.tools import web_client as web
from outrider.tools.threads import Threads
from outrider.tools.tool import Tool, ToolResult, argument_aliases, prompt_beside
from outrider.tools.web_client import Allowed, FetchLimits, Page, fetch, is_public
from outrider.types.tool_state import Attachment

Format = Literal["markdown", "text", "html"]

LONGEST_ADDRESS = 4_000
_ATTACHED = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"})
_FAILED = 400
_threads = Threads(4)


def web_fetch_tool(allowed: Allowed = is_public, limits: FetchLimits | None = None) -> Tool:
    """`allowed` judges the address of every connection; whoever trusts an inner network may say so here."""
    bounds = limits or FetchLimits()

    async def web_fetch(url: str, format: Format = "markdown") -> ToolResult:
        if len(url) > LONGEST_ADDRESS:
            raise ToolFailure(f"an address has at most {LONGEST_ADDRESS} characters")
        page = await fetch(url, allowed, bounds)
        return await _threads.run(lambda: _told(page, format))

    return Tool(
        web_fetch,
        description=prompt_beside(__file__),
        timeout=bounds.seconds * 2,
        # Others ask a small model about the page; here the model reads it itself.
        preprocess_args=argument_aliases({"uri": "url", "link": "url", "address": "url"}, drop=frozenset({"prompt"})),
        unsaid=("format",),
    )


def _told(page: Page, wanted: Format) -> ToolResult:
    metadata = {"url": page.address, "status": page.status, "content_type": page.content_type, "bytes": len(page.body)}
    if page.moved_to is not None:
        return ToolResult(f"{page.address} redirects to {page.moved_to}; fetch that if you want it.", metadata=metadata)
    if page.status < _FAILED and page.content_type in _ATTACHED:
        return _attached(page)
    text, title = _text(page, wanted)
    if page.status >= _FAILED:
        raise ToolFailure(f"{page.address} answered with status {page.status}:\n{text[:2_000]}")
    if page.cut:
        text += f"\n\n(cut here: the page is longer than {len(page.body):,} bytes)"
    return ToolResult(text or "(the page has no text)", title=title or page.address, metadata=metadata)


def _text(page: Page, wanted: Format) -> tuple[str, str]:
    text = web.page_text(page)
    if not web.is_html(page) or wanted == "html":
        return text, ""
    from outrider.tools.html_to_markdown import html_to_text

    return html_to_text(text, page.address, markdown=wanted == "markdown")


def _attached(page: Page) -> ToolResult:
    if page.cut:
        raise ToolFailure(f"{page.address} is larger than {len(page.body):,} bytes, too large to attach")
    name = page.address.rpartition("/")[2].partition("?")[0] or "page"
    attachment = Attachment(page.content_type, base64.b64encode(page.body).decode(), name=name)
    return ToolResult(f"{page.address} ({page.content_type}) is attached.", (attachment,), title=name)
