"""Checks every request before it reaches a route: Host, Origin, token, rate, content type and body size."""

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

TOKEN_BYTES = 32
MIN_TOKEN_LENGTH = 32  # characters


def load_or_create_token(path: Path) -> str:
    """Returns the server's token and creates the file on the first call. O_EXCL makes one of several processes create
    it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        token = secrets.token_urlsafe(TOKEN_BYTES)
        file.write(token)
    return token


def read_token(path: Path) -> str:
    """Reads the token file. Raises ConfigurationError if it is unreadable, readable by other users, or too short."""
    try:
        status, text = path.stat(), path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read the server's token from {path}: {error}") from error
    if os.name == "posix" and (status.st_mode & 0o077 or status.st_uid != os.geteuid()):
        raise ConfigurationError(f"{path} is readable by other users: delete it, and the server creates a new token")
    if len(text) < MIN_TOKEN_LENGTH:
        raise ConfigurationError(f"{path} contains no valid token: delete it, and the server creates a new one")
    return text


def secrets_equal(candidate: str, expected: str) -> bool:
    """Compares in constant time, for any input string."""
    return hmac.compare_digest(candidate.encode("utf-8", "surrogateescape"), expected.encode())


def derive_cookie(token: str) -> str:
    """Returns the cookie value: a hash of the token, so that the cookie authenticates a browser without revealing the
    token."""
    return hashlib.sha256(f"outrider cookie {token}".encode()).hexdigest()


class RequestRateLimiter:
    """A token bucket."""

    def __init__(self, *, per_second: float, burst: int, clock: Callable[[], float] = monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._refilled_at = clock()

    def allow_request(self) -> bool:
        """Takes one token from the bucket; returns False if it is empty."""
        current = self._clock()
        self._tokens = min(self._burst, self._tokens + (current - self._refilled_at) * self._per_second)
        self._refilled_at = current
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


class ListenAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server listens: a TCP port or a Unix socket. The default is loopback; any other host needs --expose and
    TLS."""

    host: str = "127.0.0.1"
    port: int = 0
    socket: Path | None = None
    names: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None

    @property
    def uses_tls(self) -> bool:
        return self.certificate is not None

    @property
    def url(self) -> str:
        if self.socket is not None:
            return f"http+unix://{self.socket}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.uses_tls else 'http'}://{host}:{self.port}"

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """The valid values of the Host header. Any other name means DNS rebinding: a foreign name that resolves to this
        server."""
        if self.socket is not None:
            return frozenset({"localhost", *self.names})
        names = {*self.names, *(LOOPBACK_NAMES if is_loopback(self.host) else (self.host,))}
        plain = 443 if self.uses_tls else 80
        return frozenset({f"{name}:{self.port}" for name in names} | (names if self.port == plain else set()))

    @property
    def allowed_origins(self) -> frozenset[str]:
        return frozenset(f"{'https' if self.uses_tls else 'http'}://{host}" for host in self.allowed_hosts)


def check_exposure(address: ListenAddress, *, exposed: bool) -> None:
    """Raises ConfigurationError for an address that other machines reach without consent, TLS or a host name."""
    if address.socket is not None or is_loopback(address.host):
        return
    if not exposed:
        raise ConfigurationError(
            f"{address.host} is reachable from other machines: pass --expose to allow this, or omit --host"
        )
    if not (address.certificate and address.key):
        raise ConfigurationError("a server that other machines can reach requires TLS: pass --tls-cert and --tls-key")
    if address.host in ("0.0.0.0", "::") and not address.names:
        raise ConfigurationError(f"--host {address.host} requires --name with the host name that clients use")


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 32 * 1024 * 1024
METHODS_WITHOUT_BODY = ("GET", "HEAD", "DELETE")
SAFE_SITES = ("same-origin", "none")
SECURITY_HEADERS = [
    (b"content-security-policy", b"default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
                                 b"frame-ancestors 'none'; object-src 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]  # fmt: skip
SIGN_IN_PARAMETER = "token"  # query parameter of the browser link
SIGN_IN_TEXT = """\
This is an Outrider server, and this browser has not signed in.

Open the link that `outrider serve` printed when it began: it ends in /?token=…
"""


class RejectedRequest(msgspec.Struct, frozen=True):
    """The response to a request that fails a check."""

    status: int
    type: str
    message: str


class RequestGuard:
    """ASGI middleware around the whole application, so that no route can omit a check."""

    def __init__(self, app: AsgiApp, *, address: ListenAddress, token: str, body_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._address = address
        self._token = token
        self._cookie = derive_cookie(token)
        self._body_bytes = body_bytes
        self._rate = RequestRateLimiter(per_second=500, burst=2_000)
        self._failed_logins = RequestRateLimiter(per_second=1, burst=20)

    @property
    def cookie_name(self) -> str:
        """Contains the port, because browsers share cookies between the ports of a host."""
        return f"outrider-{self._address.port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        rejected = self._check_request(scope, headers)
        if rejected is not None and rejected.status == 401 and "text/html" in headers.get("accept", ""):
            await _send_response(send, 401, [(b"content-type", b"text/plain; charset=utf-8")], SIGN_IN_TEXT.encode())
        elif rejected is not None:
            await send_rejection(send, rejected)
        elif self._is_sign_in(scope):
            await self._send_cookie(send)
        else:
            await self._app(scope, self._limit_body(receive), _add_security_headers(send))

    def _check_request(self, scope: Scope, headers: dict[str, str]) -> RejectedRequest | None:
        """Runs the checks from the cheapest to the most expensive. Without the token a client cannot learn which routes
        exist."""
        names = [name for name, _ in scope["headers"]]
        if names.count(b"host") != 1 or headers["host"].lower() not in self._address.allowed_hosts:
            return RejectedRequest(421, "wrong_host", "the Host header does not name this server")
        if not self._is_same_site(headers):
            return RejectedRequest(403, "foreign_origin", "cross-site requests are rejected")
        if not self._rate.allow_request():
            return RejectedRequest(429, "too_many_requests", "too many requests; try again in a moment")
        if not self._is_authenticated(scope, headers):
            if not self._failed_logins.allow_request():
                return RejectedRequest(429, "too_many_requests", "too many requests without the token")
            return RejectedRequest(401, "no_token", "send the server's token: Authorization: Bearer …")
        return self._check_body(scope["method"], headers)

    def _is_same_site(self, headers: dict[str, str]) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        return site in SAFE_SITES and (origin is None or origin.lower() in self._address.allowed_origins)

    def _is_authenticated(self, scope: Scope, headers: dict[str, str]) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return secrets_equal(given.strip(), self._token)
        if self._is_sign_in(scope):
            return secrets_equal(parse_qs(scope["query_string"].decode("latin-1"))[SIGN_IN_PARAMETER][0], self._token)
        return secrets_equal(_read_cookie(headers.get("cookie", ""), self.cookie_name), self._cookie)

    def _check_body(self, method: str, headers: dict[str, str]) -> RejectedRequest | None:
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._body_bytes:
            return RejectedRequest(413, "too_large", f"the body exceeds {self._body_bytes:,} bytes")
        has_body = int(length) > 0 or "transfer-encoding" in headers
        if method in METHODS_WITHOUT_BODY or not has_body:
            return None
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return RejectedRequest(415, "wrong_type", "send JSON: Content-Type: application/json")
        return None

    def _is_sign_in(self, scope: Scope) -> bool:
        """Returns whether this is the link that the server printed for browsers."""
        query = scope["query_string"].decode("latin-1")
        return scope["method"] == "GET" and scope["path"] == "/" and SIGN_IN_PARAMETER in parse_qs(query)

    async def _send_cookie(self, send: Send) -> None:
        secure = "; Secure" if self._address.uses_tls else ""
        cookie = f"{self.cookie_name}={self._cookie}; HttpOnly; SameSite=Strict; Path=/{secure}"
        await _send_response(send, 303, [(b"location", b"/"), (b"set-cookie", cookie.encode())], b"")

    def _limit_body(self, receive: Receive) -> Receive:
        """Limits bodies without a Content-Length header while they arrive."""
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._body_bytes:
                raise BodyTooLargeError
            return message

        return counted


class BodyTooLargeError(Exception):
    """The body exceeds the limit or its announced length."""


async def send_rejection(send: Send, rejected: RejectedRequest) -> None:
    body = msgspec.json.encode({"error": {"type": rejected.type, "message": rejected.message}})
    headers = [(b"content-type", b"application/json")]
    if rejected.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await _send_response(send, rejected.status, headers, body)


async def _send_response(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    all_headers = [*headers, (b"cache-control", b"no-store"), *SECURITY_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


def _add_security_headers(send: Send) -> Send:
    async def headed(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
        await send(message)

    return headed


def _read_cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found else ""
