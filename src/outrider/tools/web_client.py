"""One page over HTTP: public addresses only, with limits on time, size and redirects."""

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
from outrider.tools.text.encoding import detect

if TYPE_CHECKING:
    import aiohttp


Address = IPv4Address | IPv6Address
Allowed = Callable[[Address], bool]

_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))


def is_public(address: Address) -> bool:
    """Also for an IPv4 address that hides in an IPv6 one."""
    if isinstance(address, IPv6Address):
        inner = _embedded(address)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _embedded(address: IPv6Address) -> IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in _NAT64):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return None


class Gate:
    """Opens sockets for a connector, so that no name can lead elsewhere between the check and the connection."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self.refused: str | None = None

    def open_socket(self, found: Any) -> socket.socket:
        family, kind, protocol, _, target = found
        address = str(target[0]).partition("%")[0]
        if not self._allowed(ip_address(address)):
            self.refused = address
            raise OSError(errno.EACCES, f"{address} is not a public address")
        return socket.socket(family, kind, protocol)


_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = {
    "user-agent": "outrider (agent; reads pages for a user)",
    "accept": "text/markdown, text/html;q=0.9, application/json;q=0.9, text/*;q=0.8, */*;q=0.5",
}


class FetchLimits(msgspec.Struct, frozen=True):
    seconds: float = 30.0
    bytes: int = 5 * 1024 * 1024
    redirects: int = 5


class Page(msgspec.Struct, frozen=True):
    """`cut` says that it was longer. A redirect to another host is not followed: `moved_to` names it."""

    address: str
    status: int
    content_type: str
    charset: str | None
    body: bytes
    cut: bool = False
    moved_to: str | None = None


async def fetch(address: str, allowed: Allowed, limits: FetchLimits) -> Page:
    """Raises ToolFailure for what may not, or cannot, be fetched."""
    import aiohttp

    gate = Gate(allowed)
    connector = aiohttp.TCPConnector(socket_factory=gate.open_socket, use_dns_cache=False, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, connect=limits.seconds)
    try:
        async with (
            asyncio.timeout(limits.seconds),
            aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=timeout, headers=_HEADERS
            ) as session,
        ):
            return await _follow(session, checked(address), limits)
    except TimeoutError as error:
        raise ToolFailure(f"{address} did not answer within {limits.seconds:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if gate.refused is not None:
            raise ToolFailure(f"{address} leads to {gate.refused}, which is not a public address") from error
        raise ToolFailure(f"{address} could not be fetched: {error or type(error).__name__}") from error


def checked(address: str) -> str:
    """An address that may be tried at all."""
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


async def _follow(session: "aiohttp.ClientSession", address: str, limits: FetchLimits) -> Page:
    for _ in range(limits.redirects + 1):
        async with session.get(address, allow_redirects=False) as answer:
            target = answer.headers.get("location") if answer.status in _REDIRECTS else None
            if target is None:
                return await _page(answer, address, limits)
            status = answer.status
        following = checked(urljoin(address, target))
        if not _same_host(address, following):
            # The user's word was for this host; whether to go on to another is a new decision.
            return Page(address, status, "", None, b"", moved_to=following)
        address = following
    raise ToolFailure(f"more than {limits.redirects} redirects, the last one to {address}")


def _same_host(one: str, other: str) -> bool:
    names = [(urlsplit(address).hostname or "").removeprefix("www.") for address in (one, other)]
    downgraded = one.startswith("https:") and other.startswith("http:")
    return names[0] == names[1] and not downgraded


async def _page(answer: "aiohttp.ClientResponse", address: str, limits: FetchLimits) -> Page:
    body = bytearray()
    async for block in answer.content.iter_any():
        body += block
        if len(body) > limits.bytes:
            break
    cut = len(body) > limits.bytes
    content = bytes(body[: limits.bytes])
    return Page(address, answer.status, answer.content_type, answer.charset, content, cut)


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
