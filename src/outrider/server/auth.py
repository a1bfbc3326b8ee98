"""What every request passes before a route sees it: host, origin, token, rate, type and size of its body."""

import hashlib
import hmac
import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import parse_qs

import msgspec

from outrider.errors import ConfigurationError
from outrider.remote.client import is_loopback

BYTES = 32
SHORTEST = 32  # characters


def keep_token(path: Path) -> str:
    """The token of this server, made on the first call; a file that others could read is refused."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        token = secrets.token_urlsafe(BYTES)
        file.write(token)
    return token


def read_token(path: Path) -> str:
    try:
        status, text = path.stat(), path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the server's token cannot be read from {path}: {error}") from error
    if os.name == "posix" and (status.st_mode & 0o077 or status.st_uid != os.geteuid()):
        raise ConfigurationError(f"{path} can be read by others: remove it, and a new token is made")
    if len(text) < SHORTEST:
        raise ConfigurationError(f"{path} holds no token: remove it, and a new one is made")
    return text


def same(given: str, expected: str) -> bool:
    """In constant time, whatever was given."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


def cookie_of(token: str) -> str:
    """What a browser keeps instead of the token: it opens this server's pages and says nothing about the token."""
    return hashlib.sha256(f"outrider cookie {token}".encode()).hexdigest()


class Rate:
    def __init__(self, *, per_second: float, burst: int, clock: Callable[[], float] = monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._seen = clock()

    def take(self) -> bool:
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._seen) * self._per_second)
        self._seen = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A port of this machine, or a Unix socket. Beyond the machine itself only when it was said, and with TLS."""

    host: str = "127.0.0.1"
    port: int = 0
    socket: Path | None = None
    names: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None

    @property
    def secure(self) -> bool:
        return self.certificate is not None

    @property
    def url(self) -> str:
        if self.socket is not None:
            return f"http+unix://{self.socket}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}"

    @property
    def hosts(self) -> frozenset[str]:
        """Values of the Host header that are ours. Any other name was resolved to us by somebody else."""
        if self.socket is not None:
            return frozenset({"localhost", *self.names})
        names = {*self.names, *(LOOPBACK_NAMES if is_loopback(self.host) else (self.host,))}
        plain = 443 if self.secure else 80
        return frozenset({f"{name}:{self.port}" for name in names} | (names if self.port == plain else set()))

    @property
    def origins(self) -> frozenset[str]:
        return frozenset(f"{'https' if self.secure else 'http'}://{host}" for host in self.hosts)


def check(address: Address, *, beyond_this_machine: bool) -> None:
    """Raises ConfigurationError for an address that would let others listen in."""
    if address.socket is not None or is_loopback(address.host):
        return
    if not beyond_this_machine:
        raise ConfigurationError(
            f"{address.host} can be reached from other machines: say --expose if that is wanted, or leave --host out"
        )
    if not (address.certificate and address.key):
        raise ConfigurationError("a server that other machines reach needs TLS: give --tls-cert and --tls-key")
    if address.host in ("0.0.0.0", "::") and not address.names:
        raise ConfigurationError(f"with --host {address.host}, --name must say by which name the server is addressed")


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
