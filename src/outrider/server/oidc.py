"""Login at an OpenID Connect provider: authorization code with PKCE. A claim decides the role of a user.

The ID token comes from the token endpoint over TLS, so its issuer is authenticated by the connection (OpenID Connect
Core, 3.1.3.7, point 6); issuer, audience, nonce and times are checked here."""

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping
from http import HTTPStatus
from time import time
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from outrider.errors import ConfigurationError, NetworkError
from outrider.remote.client import fetch_url, is_loopback
from outrider.server.users import ROLES, AccessDeniedError, Role, ServerUser, UserDirectory

LOGIN_SECONDS = 600.0  # for the user to log in at the provider
METADATA_SECONDS = 3600.0
REQUEST_SECONDS = 10.0
MAX_OPEN_LOGINS = 1000
MAX_ANSWER_BYTES = 1 << 20
CLOCK_LEEWAY = 60.0  # seconds


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The provider, the client that is registered there, and how claims become users.

    - `issuer`: the address of the provider.
    - `client_id`: the id of the client that is registered at the provider.
    - `client_secret`: the secret of the client; empty for a public client.
    - `roles`: maps values of `role_claim` to roles.
    - `default_role`: for users whose claim has none of these values; without it they have no access.
    - `role_claim`: the claim with the roles, a string or a list.
    - `name_claim`: the claim that becomes the name of a new user.
    - `scopes`: the scopes to request, separated by spaces.
    """

    issuer: str
    client_id: str
    client_secret: str = ""
    roles: dict[str, Role] = {}
    default_role: Role | None = None
    role_claim: str = "groups"
    name_claim: str = "preferred_username"
    scopes: str = "openid profile email"

    def check(self) -> None:
        """Raises ConfigurationError for settings that cannot work or are not safe."""
        parts = urlsplit(self.issuer)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        if not is_safe or not parts.hostname or not self.client_id:
            raise ConfigurationError("--oidc-issuer needs an https:// address, and --oidc-client-id the client there")
        if wrong := [role for role in self.roles.values() if role not in ROLES]:
            raise ConfigurationError(f"--oidc-role: {wrong[0]!r} is not a role; use one of: {', '.join(ROLES)}")
        if not self.roles and self.default_role is None:
            raise ConfigurationError("no user could log in: pass --oidc-role VALUE=ROLE or --oidc-default-role")


class ProviderMetadata(msgspec.Struct, frozen=True):
    """What the discovery document of a provider must contain."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    userinfo_endpoint: str = ""


class _OpenLogin(msgspec.Struct, frozen=True):
    expires: float
    browser: str
    nonce: str
    verifier: str


class LoginStart(msgspec.Struct, frozen=True):
    """The provider's page, and the secret that binds the login to the browser that began it."""

    url: str
    browser: str


class OidcLogins:
    """Logins at one provider. `redirect_uri` is where the provider sends browsers back to. `metadata` describes the
    provider; without it, the description is fetched from the issuer, and again from time to time."""

    def __init__(
        self,
        settings: OidcSettings,
        users: UserDirectory,
        redirect_uri: str,
        clock: Callable[[], float] = time,
        *,
        metadata: ProviderMetadata | None = None,
    ) -> None:
        settings.check()
        self._settings = settings
        self._users = users
        self._redirect_uri = redirect_uri
        self._clock = clock
        self._open: dict[str, _OpenLogin] = {}
        self._metadata = (float("inf"), metadata) if metadata is not None else None

    async def start(self) -> LoginStart:
        """Starts a login. Raises ConfigurationError if the provider cannot be reached."""
        metadata = await self._load_metadata()
        state, nonce, verifier, browser = (secrets.token_urlsafe(32) for _ in range(4))
        now = self._clock()
        self._open = {key: login for key, login in self._open.items() if login.expires > now}
        while len(self._open) >= MAX_OPEN_LOGINS:
            self._open.pop(next(iter(self._open)))
        self._open[state] = _OpenLogin(now + LOGIN_SECONDS, browser, nonce, verifier)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = urlencode({
            "response_type": "code", "client_id": self._settings.client_id, "redirect_uri": self._redirect_uri,
            "scope": self._settings.scopes, "state": state, "nonce": nonce, "code_challenge": challenge,
            "code_challenge_method": "S256",
        })  # fmt: skip
        separator = "&" if "?" in metadata.authorization_endpoint else "?"
        return LoginStart(f"{metadata.authorization_endpoint}{separator}{query}", browser)

    async def finish(self, query: Mapping[str, str], browser: str) -> ServerUser:
        """Returns the user after the provider sent the browser back. Raises AccessDeniedError for an answer that does
        not belong to a login of this browser, and for a user without a role."""
        login = self._open.pop(query.get("state", ""), None)
        is_own = login is not None and secrets.compare_digest(login.browser.encode(), browser.encode())
        if login is None or not is_own or login.expires <= self._clock():
            raise AccessDeniedError("this login was not started in this browser, or it took too long; start again")
        if "code" not in query:
            raise AccessDeniedError(f"the login failed: {query.get('error', 'the provider sent no code')}")
        metadata = await self._load_metadata()
        if query.get("iss", metadata.issuer) != metadata.issuer:  # RFC 9207
            raise AccessDeniedError("the answer is from another provider")
        claims = await self._fetch_claims(metadata, query["code"], login)
        return self.store_user(claims)

    async def _fetch_claims(self, metadata: ProviderMetadata, code: str, login: _OpenLogin) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": self._redirect_uri,
            "code_verifier": login.verifier, "client_id": self._settings.client_id,
        }  # fmt: skip
        headers: dict[str, str] = {}
        if self._settings.client_secret:
            pair = f"{quote(self._settings.client_id, safe='')}:{quote(self._settings.client_secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        answer = await _fetch_json(metadata.token_endpoint, headers, urlencode(form).encode())
        claims = _decode_claims(answer.get("id_token"))
        self.check_claims(claims, metadata, login.nonce)
        claim_names = (self._settings.role_claim, self._settings.name_claim)
        if metadata.userinfo_endpoint and any(name not in claims for name in claim_names):
            bearer = {"Authorization": f"Bearer {answer.get('access_token', '')}"}
            user_info = await _fetch_json(metadata.userinfo_endpoint, bearer)
            if user_info.get("sub") != claims["sub"]:
                raise AccessDeniedError("the provider returned the data of another user")
            claims = {**user_info, **claims}
        return claims

    def check_claims(self, claims: dict[str, Any], metadata: ProviderMetadata, nonce: str) -> None:
        """Raises AccessDeniedError if the ID token is from another issuer, for another client or login, or expired."""
        audience = claims.get("aud")
        audiences: list[Any] = cast("list[Any]", audience) if isinstance(audience, list) else [audience]
        now, expires = self._clock(), claims.get("exp")
        is_valid = (
            claims.get("iss") == metadata.issuer
            and self._settings.client_id in audiences
            and claims.get("azp", self._settings.client_id) == self._settings.client_id
            and claims.get("nonce") == nonce
            and isinstance(expires, int | float)
            and expires > now - CLOCK_LEEWAY
            and isinstance(claims.get("sub"), str)
        )
        if not is_valid:
            raise AccessDeniedError("the ID token of the provider is not valid for this login")

    def store_user(self, claims: dict[str, Any]) -> ServerUser:
        """Creates the user with the first login and updates the role with every login. A removed user who logs
        in again has the same limits; no other account can get the name, because it owns their sessions."""
        subject = f"{claims['iss']} {claims['sub']}"
        role = self._find_role(claims)
        user_before = self._users.find_by_subject(subject)
        if role is None:
            if user_before is not None:
                self._users.remove(user_before.name)
            raise AccessDeniedError("this account has no role on this server; ask its administrator")
        user_before = user_before or self._users.find_former(subject=subject)
        if user_before is None:
            raw_name = str(claims.get(self._settings.name_claim) or claims["sub"])
            name = re.sub(r"[^\w.@+-]", "-", raw_name, flags=re.ASCII)
            if self._users.get(name) is not None or self._users.find_former(name=name) is not None:
                raise AccessDeniedError(f"there is, or was, another user {name} on this server; ask its administrator")
            user_before = ServerUser(name=name, subject=subject)
        user = msgspec.structs.replace(user_before, role=role)
        try:
            if self._users.get(user_before.name) is not None:
                return self._users.change(user_before.name, lambda current: msgspec.structs.replace(current, role=role))
            self._users.put(user)
        except ConfigurationError as error:
            raise AccessDeniedError(error.message) from error
        return user

    def _find_role(self, claims: dict[str, Any]) -> Role | None:
        """Returns the highest role of the values of the claim."""
        claim = claims.get(self._settings.role_claim)
        listed: list[Any] = cast("list[Any]", claim) if isinstance(claim, list) else [claim]
        values = [value for value in listed if isinstance(value, str)]
        for role in ROLES[::-1]:
            if any(self._settings.roles.get(value) == role for value in values):
                return role
        return self._settings.default_role

    async def _load_metadata(self) -> ProviderMetadata:
        if self._metadata is None or self._metadata[0] <= self._clock():
            url = f"{self._settings.issuer.rstrip('/')}/.well-known/openid-configuration"
            try:
                metadata = msgspec.convert(await _fetch_json(url), ProviderMetadata)
            except msgspec.ValidationError as error:
                raise ConfigurationError(f"{url} is not the description of a login provider: {error}") from error
            if metadata.issuer.rstrip("/") != self._settings.issuer.rstrip("/"):
                raise ConfigurationError(f"{url} describes another issuer: {metadata.issuer}")
            for endpoint in (metadata.authorization_endpoint, metadata.token_endpoint, metadata.userinfo_endpoint):
                _check_endpoint(endpoint)
            self._metadata = self._clock() + METADATA_SECONDS, metadata
        return self._metadata[1]


def _check_endpoint(url: str) -> None:
    parts = urlsplit(url)
    if url and parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise ConfigurationError(f"the login provider has an endpoint without TLS: {url}")


def _decode_claims(token: object) -> dict[str, Any]:
    """Returns the claims of an ID token without a check of its signature: the token comes directly from the token
    endpoint, over TLS or from this machine (`_check_endpoint`), and not through the browser. So the connection proves
    who has issued it (OpenID Connect Core, 3.1.3.7, point 6)."""
    try:
        payload = str(token).split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError):
        claims = None
    if not isinstance(claims, dict):
        raise AccessDeniedError("the provider sent no ID token that can be read")
    return cast("dict[str, Any]", claims)


async def _fetch_json(url: str, headers: Mapping[str, str] | None = None, form: bytes = b"") -> dict[str, Any]:
    """Fetches a JSON object. The errors do not quote the answer, which may contain secrets. Redirects are not followed,
    because they could send the client's secret to another server."""
    endpoint = url.partition("?")[0]
    all_headers = {"Accept": "application/json", **(headers or {})}
    if form:
        all_headers["Content-Type"] = "application/x-www-form-urlencoded"
    try:
        status, body = await fetch_url(url, all_headers, form, seconds=REQUEST_SECONDS, max_bytes=MAX_ANSWER_BYTES)
        document = json.loads(body) if status == HTTPStatus.OK else None
    except (OSError, NetworkError, ValueError) as error:
        raise ConfigurationError(f"the login provider cannot be reached at {endpoint}: {error}") from None
    if status != HTTPStatus.OK:
        raise ConfigurationError(f"the login provider answered {status} at {endpoint}")
    if not isinstance(document, dict):
        raise ConfigurationError(f"the answer of the login provider is not a JSON object at {endpoint}")
    return cast("dict[str, Any]", document)
