"""Checks every request before it reaches a route: Host, Origin, token, rate, content type and body size."""

import hmac
import ipaddress
import os
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from html import escape
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from outrider.background.health import answer_health
from outrider.engine.frontend import write_private_file
from outrider.errors import ConfigurationError
from outrider.remote.client import is_loopback
from outrider.server.oidc import OidcLogins
from outrider.server.state import USER_NAME, ServerMonitor
from outrider.server.users import (
    SERVER_REQUESTER,
    SERVER_USER,
    AccessDeniedError,
    AuditLog,
    ClientRateLimits,
    Requester,
    RequestRateLimiter,
    UserDirectory,
    UserLimits,
    hash_secret,
)

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
    """A signed-in browser; only hashes are stored. `expires` is Unix time. The login ends with the `token` of the user
    that it was made with, if there was one."""

    id: str
    cookie: str
    secret: str
    expires: float
    user: str = SERVER_USER
    token: str = ""  # the id


class BrowserLogins:
    """Browsers that signed in with a one-time link.

    A browser gets a secret that its page keeps in local storage and sends as a bearer token, and a cookie that opens
    the page's files and nothing else: browsers send cookies to every port of a host, so another server on this machine
    sees them. Logins are stored in `path`, so that they survive a restart of the server.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time) -> None:
        self._path = path
        self._clock = clock
        # Expiry, user and token id, by the hash of a code.
        self._codes: dict[str, tuple[float, str, str]] = {}
        self._logins: dict[str, BrowserLogin] = {login.id: login for login in self._load()}

    def create_code(self, user: str = SERVER_USER, token: str = "") -> str:
        """Returns the code of a link that signs one browser in, once. The login ends with the token of the user that
        has this id."""
        code, now = secrets.token_urlsafe(TOKEN_BYTES), self._clock()
        self._codes = {key: entry for key, entry in self._codes.items() if entry[0] > now}
        self._codes[hash_secret(code)] = now + LINK_SECONDS, user, token
        return code

    def redeem_code(self, code: str) -> tuple[str, str, float] | None:
        """Returns the user, the token id and the creation time of a link; None if it is invalid or has expired."""
        expires, user, token = self._codes.pop(hash_secret(code), (0.0, "", ""))
        return (user, token, expires - LINK_SECONDS) if expires > self._clock() else None

    def sign_in(self, user: str = SERVER_USER, token: str = "") -> tuple[str, str]:
        """Returns the cookie and the secret of a new login."""
        cookie, secret = secrets.token_urlsafe(TOKEN_BYTES), secrets.token_urlsafe(TOKEN_BYTES)
        login_id, expires = secrets.token_hex(8), self._clock() + LOGIN_SECONDS
        self._logins[login_id] = BrowserLogin(login_id, hash_secret(cookie), hash_secret(secret), expires, user, token)
        self._save()
        return cookie, secret

    def find_by_secret(self, secret: str) -> BrowserLogin | None:
        return self._find("secret", secret)

    def find_by_cookie(self, cookie: str) -> BrowserLogin | None:
        return self._find("cookie", cookie)

    def is_signed_in(self, login_id: str) -> bool:
        login = self._logins.get(login_id)
        return login is not None and login.expires > self._clock()

    def sign_out(self, login_id: str) -> None:
        if self._logins.pop(login_id, None) is not None:
            self._save()

    def _find(self, field: str, value: str) -> BrowserLogin | None:
        if not value:
            return None
        hashed, now = hash_secret(value), self._clock()
        return next(
            (login for login in self._logins.values() if getattr(login, field) == hashed and login.expires > now), None
        )

    def _load(self) -> list[BrowserLogin]:
        if self._path is None:
            return []
        try:
            logins = msgspec.json.decode(self._path.read_bytes(), type=list[BrowserLogin])
        except (OSError, msgspec.DecodeError):
            return []  # browsers sign in again
        return [login for login in logins if login.expires > self._clock()]

    def _save(self) -> None:
        """Stores the logins, without those that have expired."""
        now = self._clock()
        self._logins = {login.id: login for login in self._logins.values() if login.expires > now}
        if self._path is not None:
            write_private_file(self._path, msgspec.json.encode(list(self._logins.values())))


LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1/128")


class PublicUrl(msgspec.Struct, frozen=True):
    """The address under which a reverse proxy serves this server. `prefix` is the path before every route, "" or such
    as "/agents"."""

    scheme: str
    authority: str
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> "PublicUrl":
        """Parses a URL. Raises ConfigurationError if it is not an http or https address with a host and an optional
        path."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        path = parts.path.rstrip("/")
        is_plain_path = all(part and part.strip(".") for part in path.split("/")[1:]) and path.isascii()
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise ConfigurationError(f"--public-url {text} is not an address such as https://agents.example/outrider")
        if parts.fragment or not is_plain_path or any(char in path for char in "%\\;\"' "):
            raise ConfigurationError(f"--public-url {text}: the path must be plain, such as /outrider")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise ConfigurationError(f"--public-url {text} would send passwords and tokens unencrypted: use https")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        has_port = port not in (None, 443 if parts.scheme == "https" else 80)
        return cls(parts.scheme, f"{host}:{port}" if has_port else host, path)

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def hosts(self) -> frozenset[str]:
        """The values of the Host header that a proxy may pass on."""
        default = ":443" if self.scheme == "https" else ":80"
        has_port = ":" in self.authority.rpartition("]")[2]
        return frozenset({self.authority} if has_port else {self.authority, self.authority + default})


class TrustedProxies:
    """The addresses of reverse proxies whose X-Forwarded headers are trusted. A connection over a Unix socket has no
    address and is trusted as well."""

    def __init__(self, networks: Iterable[str]) -> None:
        try:
            self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]
        except ValueError as error:
            raise ConfigurationError(f"--trusted-proxy needs an address or a network: {error}") from error

    def contains(self, host: str) -> bool:
        if not host:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)

    def find_client(self, peer: str, forwarded_for: str) -> str:
        """Returns the address of the client: the last one that does not belong to a trusted proxy. Clients can forge
        the addresses before it."""
        hops = [hop.strip() for hop in forwarded_for.split(",") if hop.strip()]
        while hops and self.contains(peer):
            peer = hops.pop()
        return peer


class ListenAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server listens: a TCP port or a Unix socket. The default is loopback; any other host requires --expose
    and TLS, or a reverse proxy.

    - `host`: the address to listen on.
    - `port`: the TCP port; 0 selects a free one.
    - `socket`: the path of a Unix socket, instead of a port.
    - `names`: the host names that clients use.
    - `certificate`: the file with the TLS certificate.
    - `key`: the file with the key of the certificate.
    - `public`: the address of a reverse proxy.
    - `proxies`: the networks of the reverse proxies.
    """

    host: str = "127.0.0.1"
    port: int = 0
    socket: Path | None = None
    names: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    public: PublicUrl | None = None
    proxies: tuple[str, ...] = ()

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
        """The address for people: the public one, or with the configured name if the server listens on all
        addresses."""
        if self.public is not None:
            return self.public.origin + self.public.prefix
        if not self.names or self.host not in ("0.0.0.0", "::"):
            return self.url
        return f"{'https' if self.uses_tls else 'http'}://{self.names[0]}:{self.port}"

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """The valid values of the Host header. Any other name means DNS rebinding: a foreign name that resolves to this
        server."""
        public = self.public.hosts if self.public is not None else frozenset[str]()
        if self.socket is not None:
            return frozenset({"localhost", *self.names}) | public
        has_loopback = is_loopback(self.host) or self.host in ("0.0.0.0", "::")
        names = {*self.names, *(LOOPBACK_NAMES if has_loopback else (self.host,))}
        plain = 443 if self.uses_tls else 80
        local = {f"{name}:{self.port}" for name in names} | (names if self.port == plain else set[str]())
        return frozenset(local) | public

    @property
    def allowed_origins(self) -> frozenset[str]:
        local = {f"{'https' if self.uses_tls else 'http'}://{host}" for host in self.allowed_hosts}
        if self.public is None:
            return frozenset(local)
        return frozenset((local - {f"http://{host}" for host in self.public.hosts}) | {self.public.origin})

    @property
    def prefix(self) -> str:
        return self.public.prefix if self.public is not None else ""

    @property
    def is_behind_proxy(self) -> bool:
        """Whether only the proxy may connect: the server listens for other machines without TLS."""
        return self.public is not None and self.socket is None and not self.uses_tls and not is_loopback(self.host)


def check_exposure(address: ListenAddress, *, exposed: bool) -> None:
    """Raises ConfigurationError for an address that other machines can reach without --expose, TLS or a host name, and
    if a file for TLS is missing."""
    for file in (address.certificate, address.key):
        if file is not None and not file.is_file():
            raise ConfigurationError(f"the certificate and its key cannot be read: there is no file {file}")
    if address.socket is not None or is_loopback(address.host):
        return
    if not exposed:
        raise ConfigurationError(
            f"{address.host} is reachable from other machines: pass --expose (in a program expose=True) to allow this, "
            "or no host"
        )
    if address.is_behind_proxy and address.proxies:
        return
    if not (address.certificate and address.key):
        raise ConfigurationError(
            "a server that other machines can reach requires TLS: pass --tls-cert and --tls-key, or "
            "--public-url and --trusted-proxy if a reverse proxy encrypts"
        )
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
PROBE_PATHS = ("/livez", "/readyz")  # without a token, for any Host: probes use the address of a container
METRICS_PATH = "/metrics"
MCP_PATH = "/mcp"
LOGIN_ID, TOKEN_ID, REQUESTER = "outrider.login", "outrider.token", "outrider.requester"  # keys of the ASGI scope
EVENT_STREAM = "outrider.event_stream"  # the key of a stream that starts when the routes have returned
READ_METHODS = ("GET", "HEAD", "OPTIONS")
DENIED_STATUSES = (401, 403)
SIGN_OUT_PATH = "/api/sign-out"
CODE_PARAMETER, TOKEN_PARAMETER = "code", "token"  # query parameters of sign-in links
SIGN_IN_PARAMETERS = frozenset({CODE_PARAMETER, TOKEN_PARAMETER})
LOGIN_PATHS = ("/login", "/login/callback")
_PAGE_HEAD = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Outrider</title>'
_LOGIN_PAGE = _PAGE_HEAD + '</head><body><h1>Outrider</h1><p><a id="login" href="{link}">Sign in</a></p></body></html>'
_FAILED_PAGE = _PAGE_HEAD + '</head><body><h1>Outrider</h1><p>{problem}</p><p><a href="{link}">Sign in</a></p></body>'
_SIGNED_IN_PAGE = (
    _PAGE_HEAD
    + '<meta http-equiv="refresh" content="0;url={target}"></head><body><a href="{target}">Continue</a></body>'
)
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
        monitor: ServerMonitor | None = None,
        users: UserDirectory | None = None,
        limits: UserLimits | None = None,
        oidc: OidcLogins | None = None,
    ) -> None:
        self._app = app
        self._monitor = monitor
        self._users = users or UserDirectory()
        self._limits = limits
        self._oidc = oidc
        self._started_logins = ClientRateLimits(per_second=1, burst=20)
        self._address = address
        self._token = token
        self._logins = logins or BrowserLogins()
        self._audit = audit
        self._body_bytes = body_bytes
        self._rate = RequestRateLimiter(per_second=500, burst=2_000)
        self._failed_logins = ClientRateLimits(per_second=1, burst=20)
        self._proxies = TrustedProxies((*LOOPBACK_NETWORKS, *address.proxies))

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
        if self._monitor is None:
            await self._answer_request(scope, headers, receive, send)
            return
        with self._monitor.track_response(scope, send) as tracked:
            await self._answer_request(scope, headers, receive, tracked)

    async def _answer_request(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        if self._redirects_to_prefix(scope):
            await _send_response(send, 308, [(b"location", f"{self._address.prefix}/".encode())], b"")
            return
        rejected = self._apply_proxy(scope, headers)
        if rejected is None and self._monitor is not None and scope["path"] in PROBE_PATHS:
            await _send_health(send, self._monitor, scope)
            return
        if rejected is None and self._oidc is not None and scope["path"] in LOGIN_PATHS:
            await self._answer_login(self._oidc, scope, headers, send)
            return
        rejected = rejected or self._check_request(scope, headers)
        if rejected is not None:
            self._record_denial(scope, rejected)
            await self._reject_request(headers, send, rejected)
        elif self._is_sign_in(scope):
            await self._sign_browser_in(scope, send)
        elif self._monitor is not None and scope["path"] == METRICS_PATH:
            await _send_health(send, self._monitor, scope)
        else:
            answer = self._add_headers(scope, send)
            if scope["path"].startswith(MCP_PATH):
                answer = self._end_with_access(scope, headers, answer)
            limited = self._limit_body(receive)
            await self._app(scope, limited, answer)
            if (stream := scope.pop(EVENT_STREAM, None)) is not None:
                await stream(limited, answer)

    def _end_with_access(self, scope: Scope, headers: dict[str, str], send: Send) -> Send:
        """Ends a stream of /mcp once its client has lost access; other routes check this themselves."""
        requester, has_ended = scope[REQUESTER], False

        async def send_checked(message: Message) -> None:
            nonlocal has_ended
            if has_ended:
                return
            has_ended = message["type"] == "http.response.body" and self._authenticate({**scope}, headers) != requester
            await send({"type": "http.response.body", "body": b""} if has_ended else message)

        return send_checked

    async def _reject_request(self, headers: dict[str, str], send: Send, rejected: RejectedRequest) -> None:
        if rejected.status == 401 and "text/html" in headers.get("accept", "") and self._oidc is not None:
            page = _LOGIN_PAGE.format(link=f"{self._address.prefix}{LOGIN_PATHS[0]}")
            await _send_response(send, 401, [(b"content-type", b"text/html; charset=utf-8")], page.encode())
        elif rejected.status == 401 and "text/html" in headers.get("accept", ""):
            await _send_response(send, 401, [(b"content-type", b"text/plain; charset=utf-8")], SIGN_IN_TEXT.encode())
        else:
            await send_rejection(send, rejected)

    def _record_denial(self, scope: Scope, rejected: RejectedRequest) -> None:
        if self._monitor is not None:
            self._monitor.record_denial(rejected.type)
        if self._audit is not None:
            client = (scope.get("client") or ("",))[0]
            fields = {"method": scope["method"], "path": scope["path"][:300], "client": client}
            self._audit.write("denied", reason=rejected.type, user=scope.get(USER_NAME, ""), **fields)

    def _redirects_to_prefix(self, scope: Scope) -> bool:
        """Returns whether to redirect to the prefix with a slash, which the relative addresses in the page require."""
        return bool(self._address.prefix) and scope["path"] == self._address.prefix and not scope["query_string"]

    def _apply_proxy(self, scope: Scope, headers: dict[str, str]) -> RejectedRequest | None:
        """Removes the prefix of the public URL, if the proxy has not done it, and applies the proxy's headers about the
        client."""
        public = self._address.public
        if public is None:
            return None
        if scope["path"].startswith(f"{public.prefix}/"):
            scope["path"] = scope["path"].removeprefix(public.prefix)
            scope["raw_path"] = scope["path"].encode()
        peer = (scope.get("client") or ("",))[0]
        if not self._proxies.contains(peer):
            if self._address.is_behind_proxy:
                return RejectedRequest(403, "not_a_proxy", "this server accepts connections of its reverse proxy only")
            return None
        if "x-forwarded-for" in headers:
            scope["client"] = (self._proxies.find_client(peer, headers["x-forwarded-for"]), 0)
            if public.scheme == "https" and headers.get("x-forwarded-proto", "https").lower() != "https":
                return RejectedRequest(403, "not_encrypted", f"use {public.origin}: this request was not encrypted")
        return None

    def _check_request(self, scope: Scope, headers: dict[str, str]) -> RejectedRequest | None:
        """Runs the checks from the cheapest to the most expensive. Without the token a client cannot learn which routes
        exist."""
        names = [name for name, _ in scope["headers"]]
        if names.count(b"host") != 1 or headers["host"].lower() not in self._address.allowed_hosts:
            return RejectedRequest(421, "wrong_host", "the Host header does not name this server")
        if not self._is_same_site(headers):
            return RejectedRequest(403, "foreign_origin", "cross-site requests are rejected")
        requester = self._authenticate(scope, headers)
        if requester is None:
            if not self._failed_logins.allow_request((scope.get("client") or ("",))[0]):
                return RejectedRequest(429, "too_many_requests", "too many requests without the token")
            return RejectedRequest(401, "no_token", "send the server's token: Authorization: Bearer …")
        scope[REQUESTER], scope[USER_NAME] = requester, requester.name
        is_allowed = self._limits is None or self._limits.allow_request(requester)
        if (
            not is_allowed or not self._rate.allow_request()
        ):  # after the token: clients without one cannot use up the limit
            return RejectedRequest(429, "too_many_requests", "too many requests; try again in a moment")
        return _check_role(requester, scope) or self._check_body(scope["method"], headers)

    def _is_same_site(self, headers: dict[str, str]) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        return site in SAFE_SITES and (origin is None or origin.lower() in self._address.allowed_origins)

    def _authenticate(self, scope: Scope, headers: dict[str, str]) -> Requester | None:
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            login = self._logins.find_by_secret(credentials.strip())
            scope[LOGIN_ID] = login.id if login else ""
            return (
                self._find_login(scope, login) if login is not None else self._check_token(scope, credentials.strip())
            )
        if self._is_sign_in(scope):
            query = parse_qs(scope["query_string"].decode("latin-1"))
            if TOKEN_PARAMETER in query:
                return self._check_token(scope, query[TOKEN_PARAMETER][0])
            link = self._logins.redeem_code(query[CODE_PARAMETER][0])
            return self._find_signed_in(scope, *link) if link is not None else None
        if scope["method"] != "GET" or not (scope["path"] == "/" or scope["path"].startswith("/page/")):
            return None
        login = self._logins.find_by_cookie(_read_cookie(headers.get("cookie", ""), self.cookie_name))
        return self._find_login(scope, login) if login is not None else None

    def _check_token(self, scope: Scope, token: str) -> Requester | None:
        if secrets_equal(token, self._token):
            return SERVER_REQUESTER
        user_token = self._users.find_by_token(token)
        return self._find_requester(scope, user_token[0].name, user_token[1]) if user_token is not None else None

    def _find_login(self, scope: Scope, login: BrowserLogin) -> Requester | None:
        return self._find_signed_in(scope, login.user, login.token, login.expires - LOGIN_SECONDS)

    def _find_signed_in(self, scope: Scope, name: str, token: str, began: float) -> Requester | None:
        """Returns None also for a login or a link of an earlier user of the same name."""
        user = self._users.get(name)
        is_earlier = user is not None and began < user.created - 1
        return None if is_earlier else self._find_requester(scope, name, token)

    def _find_requester(self, scope: Scope, name: str, token: str) -> Requester | None:
        """Returns None for a user or token that was removed: logins end with them."""
        if name == SERVER_USER:
            return SERVER_REQUESTER
        if token and not self._users.has_token(name, token):
            return None
        scope[TOKEN_ID] = token
        user = self._users.get(name)
        return Requester.from_user(user) if user is not None else None

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

    async def _answer_login(self, oidc: OidcLogins, scope: Scope, headers: dict[str, str], send: Send) -> None:
        """Answers the two routes of a login. The provider's page redirects browsers to them, so they accept requests
        from other sites; a cookie binds the answer to the browser that started the login."""
        host = headers.get("host", "").lower()
        rejected: RejectedRequest | None = None
        if scope["method"] != "GET" or host not in self._address.allowed_hosts:
            rejected = RejectedRequest(421, "wrong_host", "the Host header does not name this server")
        elif not self._started_logins.allow_request((scope.get("client") or ("",))[0]):
            rejected = RejectedRequest(429, "too_many_requests", "too many logins; try again in a moment")
        if rejected is not None:
            self._record_denial(scope, rejected)
            await send_rejection(send, rejected)
            return
        name = f"{self.cookie_name}-login"
        try:
            if scope["path"] == LOGIN_PATHS[0]:
                start = await oidc.start()
                cookie = self._make_cookie(name, start.browser, "Lax", 600)
                await _send_response(send, 303, [(b"location", start.url.encode()), (b"set-cookie", cookie)], b"")
                return
            query = {key: values[0] for key, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
            user = await oidc.finish(query, _read_cookie(headers.get("cookie", ""), name))
        except (AccessDeniedError, ConfigurationError) as error:
            self._record_denial(scope, RejectedRequest(403, "login_failed", str(error)))
            page = _FAILED_PAGE.format(problem=escape(str(error)), link=f"{self._address.prefix}{LOGIN_PATHS[0]}")
            await _send_response(send, 403, [(b"content-type", b"text/html; charset=utf-8")], page.encode())
            return
        scope[USER_NAME] = user.name
        await self._sign_browser_in(scope, send, redirects=False)

    def _make_cookie(self, name: str, value: str, same_site: str, seconds: int) -> bytes:
        secure = "; Secure" if self._address.browser_url.startswith("https:") else ""
        path = f"{self._address.prefix}/"
        text = f"{name}={value}; HttpOnly; SameSite={same_site}; Path={path}; Max-Age={seconds}{secure}"
        return text.encode()

    async def _sign_browser_in(self, scope: Scope, send: Send, *, redirects: bool = True) -> None:
        """Sends the cookie, and the secret in the fragment of the address, which browsers do not send to a server.
        After a login at a provider, a page of this server opens the target: browsers do not send the cookie with a
        redirect that another site started."""
        cookie, secret = self._logins.sign_in(scope[USER_NAME], scope.get(TOKEN_ID, ""))
        if self._audit is not None:
            self._audit.write("sign-in", user=scope[USER_NAME], client=(scope.get("client") or ("",))[0])
        set_cookie = (b"set-cookie", self._make_cookie(self.cookie_name, cookie, "Strict", LOGIN_SECONDS))
        target = f"{self._address.prefix}/#/sign-in/{secret}"
        if redirects:
            await _send_response(send, 303, [(b"location", target.encode()), set_cookie], b"")
            return
        headers = [(b"content-type", b"text/html; charset=utf-8"), set_cookie]
        await _send_response(send, 200, headers, _SIGNED_IN_PAGE.format(target=target).encode())

    def _add_headers(self, scope: Scope, send: Send) -> Send:
        """Adds the security headers, and writes changes and denied requests to the audit log."""

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *SECURITY_HEADERS]
                is_denied = message["status"] in DENIED_STATUSES
                if self._audit is not None and (is_denied or scope["method"] not in READ_METHODS):
                    client = (scope.get("client") or ("",))[0]
                    fields = {"method": scope["method"], "path": scope["path"][:300], "client": client}
                    self._audit.write("request", user=scope[USER_NAME], status=message["status"], **fields)
            await send(message)

        return headed

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


async def _send_health(send: Send, monitor: ServerMonitor, scope: Scope) -> None:
    status, kind, body = await answer_health(monitor, scope["method"], scope["path"])
    await _send_response(send, status.value, [(b"content-type", kind.encode())], body)


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


def _check_role(requester: Requester, scope: Scope) -> RejectedRequest | None:
    """Rejects changes by viewers on every route. Rejects /mcp for all but administrators, because its tools read the
    sessions of all users."""
    if requester.role == "viewer" and scope["method"] not in READ_METHODS and scope["path"] != SIGN_OUT_PATH:
        return RejectedRequest(403, "forbidden", f"{requester.name} is a viewer and may not change anything")
    if scope["path"].startswith(MCP_PATH) and not requester.is_admin:
        return RejectedRequest(403, "forbidden", "/mcp is for administrators")
    return None


def _read_cookie(header: str, name: str) -> str:
    try:
        cookie = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return cookie.value if cookie else ""
