"""What most requests need besides one exchange: redirects, bounded bodies, and the check for public IP addresses."""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from urllib.parse import urljoin

import msgspec

from outrider.errors import NetworkError
from outrider.http.connection import IpAddress
from outrider.http.http1 import HttpAddress
from outrider.http.transport import HttpRequest, HttpResponse, HttpTransport

REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
COMPRESSED = "gzip, deflate"
"""The Accept-Encoding of requests whose response need not arrive event by event."""

# Another origin gets only headers that cannot contain a credential; API keys have many header names.
_HEADERS_FOR_OTHER_ORIGINS = frozenset({"accept", "accept-encoding", "accept-language", "range", "user-agent"})
_BODY_HEADERS = frozenset({"content-encoding", "content-type"})

FollowRule = Callable[[str, str], bool]
"""Returns whether a redirect from the first URL to the second one is followed."""


def is_no_downgrade(url: str, target: str) -> bool:
    """The rule for most requests: follows all redirects except from https to http."""
    return HttpAddress.parse(target).is_secure or not HttpAddress.parse(url).is_secure


async def send_with_redirects(
    client: HttpTransport, request: HttpRequest, *, max_redirects: int, may_follow: FollowRule = is_no_downgrade
) -> tuple[HttpResponse, str]:
    """Sends a request, follows redirects, and returns the last response with its URL.

    Credentials are not sent to another origin. A redirect that the rule rejects is returned as the response. Raises
    NetworkError after too many redirects.
    """
    for _ in range(max_redirects + 1):
        response = await client.send(request)
        target = redirect_target(response, request.url)
        try:
            follows = target is not None and may_follow(request.url, target)
        except BaseException:
            response.close()
            raise
        if target is None or not follows:
            return response, request.url
        response.close()
        request = redirected_request(request, response.status, target)
    raise NetworkError(f"more than {max_redirects} redirects, the last one to {request.url}", type="redirects")


def redirect_target(response: HttpResponse, url: str) -> str | None:
    """Returns the absolute URL of a redirect, None for another response. The URL may have any scheme."""
    location = response.headers.get("location") if response.status in REDIRECT_STATUSES else None
    return urljoin(url, location) if location else None


def redirected_request(request: HttpRequest, status: int, target: str) -> HttpRequest:
    """Returns the request for the target of a redirect: without credentials if the origin differs, and as GET where
    browsers do so (RFC 9110, 15.4)."""
    headers = {name: value for name, value in request.headers.items() if not name.lower().startswith("proxy-")}
    if not _same_origin(HttpAddress.parse(request.url), HttpAddress.parse(target)):
        keep = _HEADERS_FOR_OTHER_ORIGINS | (_BODY_HEADERS if request.body else frozenset[str]())
        headers = {name: value for name, value in headers.items() if name.lower() in keep}
    if request.method != "HEAD" and (status == 303 or (status in (301, 302) and request.method == "POST")):
        headers = {name: value for name, value in headers.items() if name.lower() not in _BODY_HEADERS}
        return HttpRequest(target, headers, method="GET")
    return msgspec.structs.replace(request, url=target, headers=headers)


def _same_origin(one: HttpAddress, other: HttpAddress) -> bool:
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


async def read_body(response: HttpResponse, max_bytes: int) -> tuple[bytes, bool]:
    """Returns the body, cut at `max_bytes`, and whether it is longer than that. Closes the response."""
    body = bytearray()
    try:
        while len(body) <= max_bytes and (chunk := await response.read()):
            body += chunk
    finally:
        response.close()
    return bytes(body[:max_bytes]), len(body) > max_bytes


_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))


def is_public(address: IpAddress) -> bool:
    """Returns True for a public address. Checks an IPv4 address that is embedded in an IPv6 address, too."""
    if isinstance(address, IPv6Address):
        inner = _embedded_ipv4(address)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def is_other_machine(address: IpAddress) -> bool:
    """Returns True for an address that is neither this machine's nor link-local, as cloud metadata services are.
    This includes private networks."""
    inner = _embedded_ipv4(address) if isinstance(address, IPv6Address) else None
    if inner is not None:
        return is_other_machine(inner)
    return not (address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified)


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
