"""Checks every request before it reaches a route: Host, Origin, token, rate, content type and body size."""

import hashlib
import hmac
import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from time import monotonic, time
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


LOGIN_SECONDS = 30 * 86_400
LINK_SECONDS = 86_400


class BrowserLogin(msgspec.Struct, frozen=True):
    """A signed-in browser; only hashes are stored. `expires` is Unix time."""

    id: str
    cookie: str
    secret: str
    expires: float


class BrowserLogins:
    """Browsers that signed in with a one-time link.

    A browser gets a secret that its page keeps in local storage and sends as a bearer token, and a cookie that opens
    the page's files and nothing else: browsers send cookies to every port of a host, so another server on this machine
    sees them. Logins are stored in `path`, so that they survive a restart of the server.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time) -> None:
        self._path = path
        self._clock = clock
        self._codes: dict[str, float] = {}  # when the link expires, by the hash of its code
        self._logins: dict[str, BrowserLogin] = {login.id: login for login in self._load()}

    def create_code(self) -> str:
        """Returns the code of a link that signs one browser in, once."""
        code = secrets.token_urlsafe(TOKEN_BYTES)
        self._codes[_hash_secret(code)] = self._clock() + LINK_SECONDS
        return code

    def redeem_code(self, code: str) -> bool:
        expires = self._codes.pop(_hash_secret(code), None)
        return expires is not None and expires > self._clock()

    def sign_in(self) -> tuple[str, str]:
        """Returns the cookie and the secret of a new login."""
        cookie, secret = secrets.token_urlsafe(TOKEN_BYTES), secrets.token_urlsafe(TOKEN_BYTES)
        login_id, expires = secrets.token_hex(8), self._clock() + LOGIN_SECONDS
        self._logins[login_id] = BrowserLogin(login_id, _hash_secret(cookie), _hash_secret(secret), expires)
        self._save()
        return cookie, secret

    def find_by_secret(self, secret: str) -> BrowserLogin | None:
        return self._find("secret", secret)

    def find_by_cookie(self, cookie: str) -> BrowserLogin | None:
        return self._find("cookie", cookie)

    def sign_out(self, login_id: str) -> None:
        if self._logins.pop(login_id, None) is not None:
            self._save()

    def _find(self, field: str, value: str) -> BrowserLogin | None:
        if not value:
            return None
        hashed, now = _hash_secret(value), self._clock()
        return next((one for one in self._logins.values() if getattr(one, field) == hashed and one.expires > now), None)

    def _load(self) -> list[BrowserLogin]:
        if self._path is None:
            return []
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=list[BrowserLogin])
        except (OSError, msgspec.DecodeError):
            return []  # browsers sign in again
        return [login for login in found if login.expires > self._clock()]

    def _save(self) -> None:
        if self._path is None:
            return
        temporary = self._path.with_suffix(".new")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(list(self._logins.values())))
        temporary.replace(self._path)


def _hash_secret(secret: str) -> str:
    """Secrets are long and random, so a plain hash cannot be inverted; comparing hashes reveals nothing of them."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


MAX_AUDIT_BYTES = 20 * 1024 * 1024


class AuditLog:
    """Appends one JSON object per denied request and per answered approval. At MAX_AUDIT_BYTES the file is renamed to
    `.1`, which replaces the previous one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, action: str, **fields: object) -> None:
        entry = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "action": action, **fields}
        with suppress(OSError):  # a full disk must not stop the server
            if self._path.exists() and self._path.stat().st_size > MAX_AUDIT_BYTES:
                self._path.replace(self._path.with_suffix(".1"))
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "ab") as file:
                file.write(msgspec.json.encode(entry) + b"\n")


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
    def browser_url(self) -> str:
        """The address for people: with the configured name if the server listens on all addresses."""
        if not self.names or self.host not in ("0.0.0.0", "::"):
            return self.url
        return f"{'https' if self.uses_tls else 'http'}://{self.names[0]}:{self.port}"

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
LOGIN_ID = "outrider.login"  # key of the ASGI scope
CODE_PARAMETER, TOKEN_PARAMETER = "code", "token"  # query parameters of sign-in links
SIGN_IN_PARAMETERS = frozenset({CODE_PARAMETER, TOKEN_PARAMETER})
SIGN_IN_TEXT = """\
This is an Outrider server, and this browser has not signed in.

Open the link that `outrider serve` printed when it started. A link signs in one browser, once:
`outrider serve --link` prints another one.
"""


class RejectedRequest(msgspec.Struct, frozen=True):
    """The response to a request that fails a check."""

    status: int
    type: str
    message: str


class RequestGuard:
    """ASGI middleware around the whole application, so that no route can omit a check."""

    def __init__(
        self,
        app: AsgiApp,
        *,
        address: ListenAddress,
        token: str,
        body_bytes: int = MAX_BODY_BYTES,
        logins: BrowserLogins | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._app = app
        self._address = address
        self._token = token
        self._logins = logins or BrowserLogins()
        self._audit = audit
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
        if rejected is not None and self._audit is not None:
            client = (scope.get("client") or ("",))[0]
            self._audit.write(
                "denied", reason=rejected.type, method=scope["method"], path=scope["path"][:300], client=client
            )
        if rejected is not None and rejected.status == 401 and "text/html" in headers.get("accept", ""):
            await _send_response(send, 401, [(b"content-type", b"text/plain; charset=utf-8")], SIGN_IN_TEXT.encode())
        elif rejected is not None:
            await send_rejection(send, rejected)
        elif self._is_sign_in(scope):
            await self._sign_browser_in(send)
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
        if not self._is_authenticated(scope, headers):
            if not self._failed_logins.allow_request():
                return RejectedRequest(429, "too_many_requests", "too many requests without the token")
            return RejectedRequest(401, "no_token", "send the server's token: Authorization: Bearer …")
        if not self._rate.allow_request():  # after the token: others cannot use up the owner's requests
            return RejectedRequest(429, "too_many_requests", "too many requests; try again in a moment")
        return self._check_body(scope["method"], headers)

    def _is_same_site(self, headers: dict[str, str]) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        return site in SAFE_SITES and (origin is None or origin.lower() in self._address.allowed_origins)

    def _is_authenticated(self, scope: Scope, headers: dict[str, str]) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            login = self._logins.find_by_secret(given.strip())
            scope[LOGIN_ID] = login.id if login else ""
            return login is not None or secrets_equal(given.strip(), self._token)
        if self._is_sign_in(scope):
            query = parse_qs(scope["query_string"].decode("latin-1"))
            if TOKEN_PARAMETER in query:
                return secrets_equal(query[TOKEN_PARAMETER][0], self._token)
            return self._logins.redeem_code(query[CODE_PARAMETER][0])
        is_page_file = scope["path"] == "/" or scope["path"].startswith("/page/")
        cookie = _read_cookie(headers.get("cookie", ""), self.cookie_name)
        return is_page_file and scope["method"] == "GET" and self._logins.find_by_cookie(cookie) is not None

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
        """Returns whether this is a link that signs a browser in."""
        query = parse_qs(scope["query_string"].decode("latin-1"))
        return scope["method"] == "GET" and scope["path"] == "/" and not query.keys().isdisjoint(SIGN_IN_PARAMETERS)

    async def _sign_browser_in(self, send: Send) -> None:
        """Sends the cookie, and the secret in the fragment of the address, which no server and no log sees."""
        cookie, secret = self._logins.sign_in()
        secure = "; Secure" if self._address.uses_tls else ""
        value = f"{self.cookie_name}={cookie}; HttpOnly; SameSite=Strict; Path=/; Max-Age={LOGIN_SECONDS}{secure}"
        headers = [(b"location", f"/#/sign-in/{secret}".encode()), (b"set-cookie", value.encode())]
        await _send_response(send, 303, headers, b"")

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
