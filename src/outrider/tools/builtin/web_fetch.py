"""The `web_fetch` tool: fetches a page and returns its text."""

import base64
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import Literal
from urllib.parse import urlsplit

from outrider.errors import ToolFailure
from outrider.http.client import is_public
from outrider.http.connection import AddressFilter
from outrider.tools import web_client as web
from outrider.tools.threads import ThreadPool
from outrider.tools.tool import Tool, ToolContext, ToolResult, argument_aliases, load_prompt
from outrider.tools.web_client import FetchedPage, FetchLimits, fetch_page
from outrider.types.tool_state import Attachment

Format = Literal["markdown", "text", "html"]

MAX_URL_LENGTH = 4_000
_ATTACHED_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"})
_FIRST_ERROR_STATUS = 400
_threads = ThreadPool(4)


def web_fetch_tool(
    allowed: AddressFilter = is_public,
    limits: FetchLimits | None = None,
    may_reach_this_machine: Callable[[str], bool] = lambda _: False,
) -> Tool:
    """Returns the tool. The callback `allowed` checks the IP address of each connection; pass a custom one to allow a
    private network. `may_reach_this_machine` returns whether the user has allowed the call with this id, in which case
    a URL may name this machine."""
    bounds = limits or FetchLimits()

    async def web_fetch(url: str, context: ToolContext, format: Format = "markdown") -> ToolResult:
        if len(url) > MAX_URL_LENGTH:
            raise ToolFailure(f"an address has at most {MAX_URL_LENGTH} characters")
        is_local = names_this_machine(url) and may_reach_this_machine(context.call_id)
        page = await fetch_page(url, (lambda address: address.is_loopback) if is_local else allowed, bounds)
        return await _threads.run(lambda: _format_page(page, format))

    return Tool(
        web_fetch,
        description=load_prompt(__file__),
        url_parameters=("url",),
        timeout=bounds.seconds * 2,
        # Other agents pass a `prompt` for a small model; here the model reads the page itself.
        preprocess_args=argument_aliases({"uri": "url", "link": "url", "address": "url"}, drop=frozenset({"prompt"})),
        unsaid=("format",),
    )


def names_this_machine(url: str) -> bool:
    """Returns whether the host of a URL is `localhost`, ::1 or in 127.0.0.0/8; names that resolve to one do not
    count."""
    try:
        host = urlsplit(url).hostname or ""
        return host in ("localhost", "::1") or IPv4Address(host).is_loopback
    except ValueError:
        return False


def _format_page(page: FetchedPage, wanted: Format) -> ToolResult:
    metadata = {"url": page.address, "status": page.status, "content_type": page.content_type, "bytes": len(page.body)}
    if page.redirected_to is not None:
        return ToolResult(
            f"{page.address} redirects to {page.redirected_to}; fetch that if you want it.", metadata=metadata
        )
    if page.status < _FIRST_ERROR_STATUS and page.content_type in _ATTACHED_TYPES:
        return _attach_page(page)
    text, title = _page_content(page, wanted)
    if page.status >= _FIRST_ERROR_STATUS:
        raise ToolFailure(f"{page.address} answered with status {page.status}:\n{text[:2_000]}")
    if page.truncated:
        text += f"\n\n(cut here: the page is longer than {len(page.body):,} bytes)"
    return ToolResult(text or "(the page has no text)", title=title or page.address, metadata=metadata)


def _page_content(page: FetchedPage, wanted: Format) -> tuple[str, str]:
    text = web.page_text(page)
    if not web.is_html(page) or wanted == "html":
        return text, ""
    from outrider.tools.html_to_markdown import html_to_text

    return html_to_text(text, page.address, markdown=wanted == "markdown")


def _attach_page(page: FetchedPage) -> ToolResult:
    if page.truncated:
        raise ToolFailure(f"{page.address} is larger than {len(page.body):,} bytes, too large to attach")
    name = page.address.rpartition("/")[2].partition("?")[0] or "page"
    attachment = Attachment(page.content_type, base64.b64encode(page.body).decode(), name=name)
    return ToolResult(f"{page.address} ({page.content_type}) is attached.", (attachment,), title=name)
