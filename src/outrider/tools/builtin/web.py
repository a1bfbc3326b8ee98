"""The tools `web_fetch`, which returns the text of a page, and `web_search`."""

import base64
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Annotated, Any, Literal
from urllib.parse import urlencode, urlsplit

import msgspec

from outrider._lazy import lazy_pattern
from outrider._sync import ThreadPool
from outrider.errors import NetworkError, ToolFailure
from outrider.http.client import HttpClient, is_loopback, is_public, read_body
from outrider.http.connection import AddressFilter
from outrider.http.transport import HttpRequest
from outrider.permissions.redaction.terminal import sanitize_for_terminal
from outrider.tools import web_client as web
from outrider.tools.definitions import argument_aliases, load_prompt
from outrider.tools.tool import Tool, ToolContext, ToolResult
from outrider.tools.web_client import FetchedPage, FetchLimits, fetch_page
from outrider.types.origins import make_origin
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
        description=load_prompt(__file__, "web_fetch"),
        url_parameters=("url",),
        timeout=bounds.seconds * 2,
        # Other agents pass a `prompt` for a small model; here the model reads the page itself.
        preprocess_args=argument_aliases({"uri": "url", "link": "url", "address": "url"}, drop=frozenset({"prompt"})),
        unsaid=("format",),
    )


def names_this_machine(url: str) -> bool:
    """Returns whether the host of a URL is `localhost`, ::1 or in 127.0.0.0/8; a name that only resolves to one of them
    does not count."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def _format_page(page: FetchedPage, output_format: Format) -> ToolResult:
    metadata = {"url": page.address, "status": page.status, "content_type": page.content_type, "bytes": len(page.body)}
    if page.redirected_to is not None:
        return ToolResult(
            f"{page.address} redirects to {page.redirected_to}; fetch that if you want it.", metadata=metadata
        )
    if page.status < _FIRST_ERROR_STATUS and page.content_type in _ATTACHED_TYPES:
        return _attach_page(page)
    text, title = _page_content(page, output_format)
    if page.status >= _FIRST_ERROR_STATUS:
        raise ToolFailure(f"{page.address} answered with status {page.status}:\n{text[:2_000]}")
    if page.truncated:
        text += f"\n\n(cut here: the page is longer than {len(page.body):,} bytes)"
    return ToolResult(text or "(the page has no text)", title=title or page.address, metadata=metadata)


def _page_content(page: FetchedPage, output_format: Format) -> tuple[str, str]:
    text = web.page_text(page)
    if not web.is_html(page) or output_format == "html":
        return text, ""
    from outrider.tools.html_to_markdown import html_to_text

    return html_to_text(text, page.address, markdown=output_format == "markdown")


def _attach_page(page: FetchedPage) -> ToolResult:
    if page.truncated:
        raise ToolFailure(f"{page.address} is larger than {len(page.body):,} bytes, too large to attach")
    name = page.address.rpartition("/")[2].partition("?")[0] or "page"
    attachment = Attachment(page.content_type, base64.b64encode(page.body).decode(), name=name)
    return ToolResult(f"{page.address} ({page.content_type}) is attached.", (attachment,), title=name)


SearchService = Literal["searxng", "brave", "tavily"]
MAX_RESULTS = 10
_MAX_QUERY_LENGTH = 400
_MAX_SNIPPET_LENGTH = 400
_MAX_TITLE_LENGTH = 200
_MAX_URL_LENGTH = 2_000
_TAG = lazy_pattern(r"</?[a-zA-Z][^<>]*>")  # services mark the words of the query in HTML
_MAX_RESPONSE_BYTES = 2 * 1024 * 1024
_TIMEOUT_SECONDS = 30.0
_OK = 200
_ADDRESSES = {"brave": "https://api.search.brave.com", "tavily": "https://api.tavily.com"}


class SearchBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A search service: SearXNG needs `base_url`, the others need `api_key`."""

    service: SearchService
    base_url: str | None = None
    api_key: str | None = None

    def build_request(self, query: str) -> HttpRequest:
        base = (self.base_url or _ADDRESSES.get(self.service, "")).rstrip("/")
        match self.service:
            case "searxng":
                return _get(f"{base}/search?{urlencode({'q': query, 'format': 'json'})}")
            case "brave":
                address = f"{base}/res/v1/web/search?{urlencode({'q': query, 'count': MAX_RESULTS})}"
                return _get(address, {"x-subscription-token": self.api_key or ""})
            case "tavily":
                headers = {"content-type": "application/json", "authorization": f"Bearer {self.api_key or ''}"}
                body = msgspec.json.encode({"query": query, "max_results": MAX_RESULTS})
                return HttpRequest(f"{base}/search", headers, body)


def web_search_tool(backend: SearchBackend, proxy: Callable[[str], str | None] | None = None) -> Tool:
    """Returns the tool. `proxy` returns the proxy for a URL."""

    async def web_search(query: Annotated[str, "what to look for"]) -> ToolResult:
        if not query.strip() or len(query) > _MAX_QUERY_LENGTH:
            raise ToolFailure(f"a query has 1 to {_MAX_QUERY_LENGTH} characters")
        results = list(_read_results(await _request_results(backend, query, proxy)))[:MAX_RESULTS]
        text = "\n\n".join(results) or "(nothing was found)"
        return ToolResult(text, title=query, origins=(make_origin("web", f"{backend.service}: {query}"),))

    return Tool(
        web_search,
        description=load_prompt(__file__, "web_search"),
        network=True,
        display="fetch",
        timeout=_TIMEOUT_SECONDS,
        preprocess_args=argument_aliases({"q": "query", "search_query": "query"}),
    )


async def _request_results(backend: SearchBackend, query: str, proxy: Callable[[str], str | None] | None) -> Any:
    try:
        async with aclosing(HttpClient(proxy=proxy)) as client:
            response = await client.send(backend.build_request(query))
            body, is_cut = await read_body(response, _MAX_RESPONSE_BYTES)
    except (OSError, NetworkError) as error:
        raise ToolFailure(f"{backend.service} cannot be reached: {error}") from error
    if response.status != _OK:
        detail = body[:300].decode("utf-8", "replace")
        raise ToolFailure(f"{backend.service} answered with status {response.status}: {detail}")
    if is_cut:
        raise ToolFailure(f"the answer of {backend.service} is larger than {_MAX_RESPONSE_BYTES} bytes")
    try:
        return _decode_answer(body)
    except (ValueError, RecursionError) as error:
        hint = "; SearXNG must allow this format" if backend.service == "searxng" else ""
        raise ToolFailure(f"{backend.service} did not answer in JSON{hint}") from error


def _decode_answer(body: bytes) -> Any:
    """Decodes JSON, also if it contains invalid UTF-8 or lone surrogates, which services copy from pages."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        import json  # lazy: only for damaged answers

        return json.loads(body.decode("utf-8", "replace"), strict=False)


def _read_results(answer: Any) -> Iterator[str]:
    match answer:
        case {"web": {"results": [*results]}} | {"results": [*results]}:
            pass
        case _:
            return
    for result in results:
        match result:
            case {"url": str(url), **fields} if _is_web_address(url):
                title = _plain_line(fields.get("title"), _MAX_TITLE_LENGTH) or url
                snippet = _plain_line(fields.get("content") or fields.get("description"), _MAX_SNIPPET_LENGTH)
                yield f"{title}\n{url}\n{snippet}".rstrip()
            case _:
                continue


def _is_web_address(url: str) -> bool:
    is_readable = url.isprintable() and " " not in url and len(url) <= _MAX_URL_LENGTH
    return is_readable and url.lower().startswith(("http://", "https://"))


def _plain_line(text: Any, length: int) -> str:
    """Returns a string without HTML, line breaks and invisible characters; "" for other values."""
    from html import unescape  # lazy: its table of names is large

    if not isinstance(text, str):
        return ""
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    plain = sanitize_for_terminal(unescape(_TAG.sub("", joined)))
    return " ".join(plain.split())[:length]


def _get(url: str, headers: dict[str, str] | None = None) -> HttpRequest:
    return HttpRequest(url, {"accept": "application/json", **(headers or {})}, method="GET")
