"""Fetches one page over HTTP from public addresses, with limits on time, size and redirects."""

import asyncio
import codecs
import errno
import re
import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import msgspec

from outrider.errors import ToolFailure
from outrider.tools.text.encoding import detect_encoding

if TYPE_CHECKING:
    import aiohttp


Address = IPv4Address | IPv6Address
IsAllowed = Callable[[Address], bool]

_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))


def is_public(address: Address) -> bool:
    """Returns True for a public address. Checks an IPv4 address that is embedded in an IPv6 address, too."""
    if isinstance(address, IPv6Address):
        inner = _embedded_ipv4(address)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in _NAT64):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


class SocketGuard:
    """Creates sockets for the connector and checks the resolved address, so that DNS rebinding between check and
    connection has no effect."""

    def __init__(self, allowed: IsAllowed) -> None:
        self._allowed = allowed
        self.refused: str | None = None

    def open_socket(self, found: Any) -> socket.socket:
        family, kind, protocol, _, target = found
        address = str(target[0]).partition("%")[0]
        if not self._allowed(ip_address(address)):
            self.refused = address
            raise OSError(errno.EACCES, f"{address} is not a public address")
        return socket.socket(family, kind, protocol)


_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_HEADERS = {
    "user-agent": "outrider (agent; reads pages for a user)",
    "accept": "text/markdown, text/html;q=0.9, application/json;q=0.9, text/*;q=0.8, */*;q=0.5",
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


async def fetch_page(address: str, allowed: IsAllowed, limits: FetchLimits) -> FetchedPage:
    """Fetches a page and follows redirects on the same host. Raises ToolFailure if the URL is not allowed or the
    request fails."""
    import aiohttp

    gate = SocketGuard(allowed)
    connector = aiohttp.TCPConnector(socket_factory=gate.open_socket, use_dns_cache=False, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, connect=limits.seconds)
    try:
        async with (
            asyncio.timeout(limits.seconds),
            aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=timeout, headers=_HEADERS
            ) as session,
        ):
            return await _follow_redirects(session, check_url(address), limits)
    except TimeoutError as error:
        raise ToolFailure(f"{address} did not answer within {limits.seconds:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if gate.refused is not None:
            raise ToolFailure(f"{address} resolves to {gate.refused}, which is not a public address") from error
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


async def _follow_redirects(session: "aiohttp.ClientSession", address: str, limits: FetchLimits) -> FetchedPage:
    for _ in range(limits.redirects + 1):
        async with session.get(address, allow_redirects=False) as answer:
            target = answer.headers.get("location") if answer.status in _REDIRECT_STATUSES else None
            if target is None:
                return await _read_page(answer, address, limits)
            status = answer.status
        following = check_url(urljoin(address, target))
        if not _same_host(address, following):
            # The approval was for this host; another host needs a new approval.
            return FetchedPage(address, status, "", None, b"", redirected_to=following)
        address = following
    raise ToolFailure(f"more than {limits.redirects} redirects, the last one to {address}")


def _same_host(one: str, other: str) -> bool:
    names = [(urlsplit(address).hostname or "").removeprefix("www.") for address in (one, other)]
    downgraded = one.startswith("https:") and other.startswith("http:")
    return names[0] == names[1] and not downgraded


async def _read_page(answer: "aiohttp.ClientResponse", address: str, limits: FetchLimits) -> FetchedPage:
    body = bytearray()
    async for block in answer.content.iter_any():
        body += block
        if len(body) > limits.bytes:
            break
    cut = len(body) > limits.bytes
    content = bytes(body[: limits.bytes])
    return FetchedPage(address, answer.status, answer.content_type, answer.charset, content, cut)


_META_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_TEXT_TYPES = re.compile(r"^(?:text/.*|application/(?:.*\+)?(?:json|xml|yaml|x-yaml|javascript|toml|x-ndjson|x-sh))$")
_HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})


def is_html(page: FetchedPage) -> bool:
    if page.content_type in _HTML_TYPES:
        return True
    unsaid = page.content_type in {"", "application/octet-stream"}
    return unsaid and page.body[:512].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def page_text(page: FetchedPage) -> str:
    """Decodes the body with the charset from the header, the page or detection. Raises ToolFailure for binary
    content."""
    unsaid = page.content_type in {"", "application/octet-stream"}
    if not unsaid and not _TEXT_TYPES.match(page.content_type) and page.content_type not in _HTML_TYPES:
        raise ToolFailure(f"{page.address} is {page.content_type}, which cannot be shown as text")
    for name in (page.charset, _declared_charset(page)):
        if name and _is_text_codec(name):
            return page.body.decode(name, "replace").removeprefix("\ufeff")
    found = detect_encoding(page.body, complete=not page.truncated)
    if found is None:
        raise ToolFailure(f"{page.address} is binary ({page.content_type or 'of no stated type'}), not text")
    return page.body[len(found.bom) :].decode(found.name, "replace")


def _declared_charset(page: FetchedPage) -> str | None:
    match = _META_CHARSET.search(page.body[:4096]) if is_html(page) else None
    return match[1].decode("ascii", "replace") if match else None


def _is_text_codec(name: str) -> bool:
    """Returns True for text encodings; the codec registry also contains compressions and similar codecs."""
    try:
        return codecs.lookup(name)._is_text_encoding  # pyright: ignore
    except LookupError:
        return False
