"""Fetches one page over HTTP from public addresses, with limits on time, size and redirects."""

import asyncio
import codecs
import re
from contextlib import aclosing
from urllib.parse import urlsplit

import msgspec

from outrider._lazy import lazy_pattern
from outrider.errors import ConfigurationError, NetworkError, ToolFailure
from outrider.http.client import COMPRESSED, HttpClient, read_body, redirect_target, send_with_redirects
from outrider.http.connection import AddressFilter, AddressRefusedError
from outrider.http.transport import HttpRequest
from outrider.tools.text.encoding import detect_encoding

_HEADERS = {
    "user-agent": "outrider (agent; reads pages for a user)",
    "accept": "text/markdown, text/html;q=0.9, application/json;q=0.9, text/*;q=0.8, */*;q=0.5",
    "accept-encoding": COMPRESSED,
}


class FetchLimits(msgspec.Struct, frozen=True):
    seconds: float = 30.0
    bytes: int = 5 * 1024 * 1024
    redirects: int = 5


class FetchedPage(msgspec.Struct, frozen=True):
    """A response. `truncated` means that the body exceeded the limit. A redirect to another host is not followed;
    `redirected_to` contains its URL."""

    address: str
    status: int
    content_type: str
    charset: str | None
    body: bytes
    truncated: bool = False
    redirected_to: str | None = None


async def fetch_page(address: str, allowed: AddressFilter, limits: FetchLimits) -> FetchedPage:
    """Fetches a page and follows redirects on the same host. Raises ToolFailure if the URL is not allowed or the
    request fails."""
    url = check_url(address)
    try:
        async with (
            asyncio.timeout(limits.seconds),
            # No proxy: it would resolve the name itself, and the check of the IP address would have no effect.
            aclosing(HttpClient(is_allowed=allowed, max_body_bytes=limits.bytes)) as client,
        ):
            return await _read_page(client, url, limits)
    except TimeoutError as error:
        raise ToolFailure(f"{address} did not answer within {limits.seconds:g} s") from error
    except AddressRefusedError as error:
        raise ToolFailure(f"{address} resolves to {error.address}, which is not a public address") from error
    except (ConfigurationError, NetworkError, OSError, ValueError) as error:
        raise ToolFailure(f"{address} could not be fetched: {error or type(error).__name__}") from error


def check_url(address: str) -> str:
    """Returns the stripped URL. Raises ToolFailure unless it is an http or https URL without credentials."""
    try:
        parts = urlsplit(address.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ToolFailure(f"not an address: {address[:200]!r} ({error})") from error
    if parts.scheme not in {"http", "https"} or not host or port == 0:
        raise ToolFailure(f"only http:// and https:// addresses can be fetched, got {address[:200]!r}")
    if parts.username is not None or parts.password is not None:
        raise ToolFailure("an address with a user name or password in it is not fetched")
    return address.strip()


async def _read_page(client: HttpClient, url: str, limits: FetchLimits) -> FetchedPage:
    request = HttpRequest(url, _HEADERS, method="GET")
    response, final = await send_with_redirects(
        client, request, max_redirects=limits.redirects, may_follow=_is_same_host
    )
    if (target := redirect_target(response, final)) is not None:
        # The approval was for this host; another host needs a new approval.
        response.close()
        return FetchedPage(final, response.status, "", None, b"", redirected_to=target)
    body, truncated = await read_body(response, limits.bytes)
    content_type, charset = _parse_content_type(response.headers.get("content-type", ""))
    return FetchedPage(final, response.status, content_type, charset, body, truncated)


def _is_same_host(current: str, target: str) -> bool:
    names = [(urlsplit(address).hostname or "").removeprefix("www.") for address in (current, check_url(target))]
    downgraded = current.startswith("https:") and target.startswith("http:")
    return names[0] == names[1] and not downgraded


_CHARSET = lazy_pattern(r";\s*charset\s*=\s*[\"']?([^\s;,\"']+)", re.IGNORECASE)


def _parse_content_type(header: str) -> tuple[str, str | None]:
    """Returns the media type and the charset. A missing or malformed type becomes that of unknown bytes."""
    kind = re.split("[;,]", header, maxsplit=1)[0].strip().lower()
    charset = _CHARSET.search(header)
    return kind if "/" in kind else "application/octet-stream", charset[1] if charset else None


_META_CHARSET = lazy_pattern(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_TEXT_TYPES = lazy_pattern(r"^(?:text/.*|application/(?:.*\+)?(?:json|xml|yaml|x-yaml|javascript|toml|x-ndjson|x-sh))$")
_HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})


def is_html(page: FetchedPage) -> bool:
    if page.content_type in _HTML_TYPES:
        return True
    is_untyped = page.content_type in {"", "application/octet-stream"}
    return is_untyped and page.body[:512].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def page_text(page: FetchedPage) -> str:
    """Decodes the body with the charset from the header, the page or detection. Raises ToolFailure for binary
    content."""
    is_untyped = page.content_type in {"", "application/octet-stream"}
    if not is_untyped and not _TEXT_TYPES.match(page.content_type) and page.content_type not in _HTML_TYPES:
        raise ToolFailure(f"{page.address} is {page.content_type}, which cannot be shown as text")
    for name in (page.charset, _declared_charset(page)):
        if name and _is_text_codec(name):
            return page.body.decode(name, "replace").removeprefix("\ufeff")
    encoding = detect_encoding(page.body, complete=not page.truncated)
    if encoding is None:
        raise ToolFailure(f"{page.address} is binary ({page.content_type or 'of no stated type'}), not text")
    return page.body[len(encoding.bom) :].decode(encoding.name, "replace")


def _declared_charset(page: FetchedPage) -> str | None:
    match = _META_CHARSET.search(page.body[:4096]) if is_html(page) else None
    return match[1].decode("ascii", "replace") if match else None


def _is_text_codec(name: str) -> bool:
    """Returns True for text encodings; the codec registry also contains compressions and similar codecs."""
    try:
        return codecs.lookup(name)._is_text_encoding  # pyright: ignore
    except LookupError:
        return False
