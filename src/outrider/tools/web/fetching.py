"""One page over HTTP: public addresses only, with limits on time, size and redirects."""

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

import msgspec

from outrider.errors import ToolFailure
from outrider.tools.web.addresses import Allowed, Gate

if TYPE_CHECKING:
    import aiohttp

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
