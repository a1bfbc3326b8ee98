"""What every request passes before a route sees it: host, origin, token, rate, type and size of its body."""

from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

import msgspec

from outrider.server.guards.address import Address
from outrider.server.guards.rate import Rate
from outrider.server.guards.token import cookie_of, same

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_BYTES = 32 * 1024 * 1024
WITHOUT_BODY = ("GET", "HEAD", "DELETE")
SAFE_SITES = ("same-origin", "none")
HEADERS = [
    (b"content-security-policy", b"default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
                                 b"frame-ancestors 'none'; object-src 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]  # fmt: skip
SIGN_IN = "token"  # the query parameter of the link that a person opens
NO_LINK = """\
This is an Outrider server, and this browser has not signed in.

Open the link that `outrider serve` printed when it began: it ends in /?token=…
"""


class Refusal(msgspec.Struct, frozen=True):
    status: int
    type: str
    message: str


class Guard:
    """Around the whole application: a route that forgets a check cannot exist."""

    def __init__(self, app: App, *, address: Address, token: str, body_bytes: int = BODY_BYTES) -> None:
        self._app = app
        self._address = address
        self._token = token
        self._cookie = cookie_of(token)
        self._body_bytes = body_bytes
        self._rate = Rate(per_second=500, burst=2_000)
        self._wrong = Rate(per_second=1, burst=20)

    @property
    def cookie_name(self) -> str:
        """By port, since browsers share cookies between the ports of a host."""
        return f"outrider-{self._address.port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None and refusal.status == 401 and "text/html" in headers.get("accept", ""):
            await _answer(send, 401, [(b"content-type", b"text/plain; charset=utf-8")], NO_LINK.encode())
        elif refusal is not None:
            await refuse(send, refusal)
        elif self._signs_in(scope):
            await self._give_cookie(send)
        else:
            await self._app(scope, self._bounded(receive), _with_headers(send))

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> Refusal | None:
        """From what costs least to what costs most; nobody without the token learns what exists."""
        names = [name for name, _ in scope["headers"]]
        if names.count(b"host") != 1 or headers["host"].lower() not in self._address.hosts:
            return Refusal(421, "wrong_host", "this server does not go by that name")
        if not self._same_site(headers):
            return Refusal(403, "foreign_origin", "requests of other sites are not served")
        if not self._rate.take():
            return Refusal(429, "too_many_requests", "too many requests; try again in a moment")
        if not self._knows(scope, headers):
            if not self._wrong.take():
                return Refusal(429, "too_many_requests", "too many requests without the token")
            return Refusal(401, "no_token", "send the server's token: Authorization: Bearer …")
        return self._body_refusal(scope["method"], headers)

    def _same_site(self, headers: dict[str, str]) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        return site in SAFE_SITES and (origin is None or origin.lower() in self._address.origins)

    def _knows(self, scope: Scope, headers: dict[str, str]) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return same(given.strip(), self._token)
        if self._signs_in(scope):
            return same(parse_qs(scope["query_string"].decode("latin-1"))[SIGN_IN][0], self._token)
        return same(_cookie(headers.get("cookie", ""), self.cookie_name), self._cookie)

    def _body_refusal(self, method: str, headers: dict[str, str]) -> Refusal | None:
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._body_bytes:
            return Refusal(413, "too_large", f"a body may have {self._body_bytes:,} bytes")
        has_body = int(length) > 0 or "transfer-encoding" in headers
        if method in WITHOUT_BODY or not has_body:
            return None
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return Refusal(415, "wrong_type", "send JSON: Content-Type: application/json")
        return None

    def _signs_in(self, scope: Scope) -> bool:
        """A person opens the page with the link that the server printed."""
        query = scope["query_string"].decode("latin-1")
        return scope["method"] == "GET" and scope["path"] == "/" and SIGN_IN in parse_qs(query)

    async def _give_cookie(self, send: Send) -> None:
        secure = "; Secure" if self._address.secure else ""
        cookie = f"{self.cookie_name}={self._cookie}; HttpOnly; SameSite=Strict; Path=/{secure}"
        await _answer(send, 303, [(b"location", b"/"), (b"set-cookie", cookie.encode())], b"")

    def _bounded(self, receive: Receive) -> Receive:
        """Bodies without a length are counted as they come."""
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._body_bytes:
                raise BodyTooLargeError
            return message

        return counted


class BodyTooLargeError(Exception):
    """More came than was announced, or than is taken."""


async def refuse(send: Send, refusal: Refusal) -> None:
    body = msgspec.json.encode({"error": {"type": refusal.type, "message": refusal.message}})
    headers = [(b"content-type", b"application/json")]
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await _answer(send, refusal.status, headers, body)


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    all_headers = [*headers, (b"cache-control", b"no-store"), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def headed(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS]
        await send(message)

    return headed


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found else ""
