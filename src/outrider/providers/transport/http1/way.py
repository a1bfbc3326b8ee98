"""The way to one address: where to connect, and the head with which every call begins."""

from outrider.providers.provider import HttpCall
from outrider.providers.transport.http1 import head
from outrider.providers.transport.http1.address import Address

Route = tuple[str, str, int, str | None]
"""What connections have in common that can take each other's place."""


class Way:
    """The same headers go with call after call: they are written once, all but the length of the body."""

    def __init__(self, url: str, proxy: str | None) -> None:
        self.place = Address.of(url)
        self.proxy = Address.of(proxy) if proxy else None
        self.route: Route = (self.place.scheme, self.place.host, self.place.port, proxy)
        self._headers: dict[str, str] | None = None
        self._opening = b""

    def request(self, call: HttpCall) -> bytes:
        if call.headers != self._headers:
            self._opening = self._written(call.headers)
            self._headers = dict(call.headers)
        return b"".join((self._opening, b"content-length: %d\r\n\r\n" % len(call.body), call.body))

    def _written(self, given: dict[str, str]) -> bytes:
        place, proxy = self.place, self.proxy
        headers = {"host": place.authority, "accept": "*/*", "user-agent": "outrider"}
        headers["accept-encoding"] = "identity"  # a compressing proxy would hold events back
        if place.credentials:
            headers["authorization"] = place.credentials
        target = place.target
        if proxy is not None and not place.secure:
            target = place.whole
            if proxy.credentials:
                headers["proxy-authorization"] = proxy.credentials
        headers |= {name.lower(): value for name, value in given.items()}
        headers.pop("content-length", None)
        return head.written("POST", target, headers).removesuffix(b"\r\n")
