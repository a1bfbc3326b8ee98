"""OAuth for MCP servers: the flow of the SDK with stored logins, and a login in the user's browser.

The SDK discovers the authorization server, registers Outrider, uses PKCE, refreshes tokens and asks for more scopes if
a server requires them. This module adds what the SDK lacks: logins that survive a restart together with the endpoint
that refreshes them, and the redirect that ends a login.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from html import escape
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.utils import credentials_match_issuer
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyHttpUrl, AnyUrl, BaseModel, ValidationError

from outrider.errors import ConfigurationError, OutriderError
from outrider.tools.mcp.config import HttpServer, LoginFile, OAuthClient, StoredLogin

REFRESH_MARGIN = 30.0  # seconds before its end in which a token is refreshed, so that it does not end on the way
LOGIN_TIMEOUT = 600.0  # seconds for a person to log in
CALLBACK_PATH = "/callback"
_PKCE_METHOD = "S256"
_LEGACY_METADATA_PATH = "/.well-known/oauth-authorization-server"
_OK = 200
_UNAUTHORIZED = 401
_FORBIDDEN = 403
_SCOPE = re.compile(r'scope="(?P<scope>[^"]{1,500})"')

Model = TypeVar("Model", bound=BaseModel)

ShowLogin = Callable[[str], Awaitable[None]]
"""Shows the address at which the user logs in, for example by opening a browser."""


class LoginNeeded(OAuthFlowError):
    """The server requires a login, and this process cannot ask the user for one."""


class ServerAuth(OAuthClientProvider):
    """Adds the access token of a server to requests, and renews it. If that fails, `report` is called with the reason,
    and with what it affects: every request, or one call."""

    def __init__(
        self,
        server: HttpServer,
        logins: LoginFile,
        *,
        report: Callable[[str, Literal["server", "call"]], None],
        redirect: "LoginRedirect | None" = None,
    ) -> None:
        self._server = server
        self._logins = logins
        self._report = report
        self._seen_at = -1
        self._needs_no_person = server.oauth is not None and server.oauth.grant == "client_credentials"
        self._can_ask = redirect is not None or self._needs_no_person
        self._redirect = redirect
        self._own_issuer = ""
        stored = logins.read_login(server.url)
        address = redirect.address if redirect else _registered_redirect(stored)
        self._own_client = _configured_client(server.oauth, address)
        scope = _granted_scope(stored) or (server.oauth.scope if server.oauth else "") or None
        super().__init__(
            server.url,
            OAuthClientMetadata(redirect_uris=[AnyUrl(address)], client_name="Outrider", scope=scope),
            _LoginStorage(self),
            redirect_handler=redirect.show if redirect else None,
            callback_handler=redirect.wait_for_code if redirect else None,
        )

    def secret_values(self) -> list[str]:
        return list(self._logins.read_login(self._server.url).secret_values())

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if self._logins.changed_at() != self._seen_at:
            # Another process may have refreshed the token, which makes the one in memory invalid.
            self.load()
        flow = super().async_auth_flow(request)
        may_refresh = True
        try:
            outgoing = await anext(flow)
            while True:
                response = yield outgoing
                if outgoing is request and may_refresh and self._is_revoked(response):
                    # Refresh the token before a person has to log in again.
                    may_refresh = False
                    await flow.aclose()
                    self.context.token_expiry_time = 1.0
                    flow = super().async_auth_flow(request)
                    outgoing = await anext(flow)
                    continue
                if outgoing is request:
                    response = self._check_rights(response)
                elif self._is_legacy_metadata(outgoing, response):
                    response = await self._accept_own_issuer(response)
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        except LoginNeeded:
            raise
        except OAuthFlowError as error:
            self._report(f"the login failed: {error}", "server")
            raise
        finally:
            await flow.aclose()

    def _is_revoked(self, response: httpx2.Response) -> bool:
        """Returns whether a token was rejected before it expired, and can be refreshed without a login."""
        return response.status_code == _UNAUTHORIZED and self.context.can_refresh_token()

    def _is_legacy_metadata(self, request: httpx2.Request, response: httpx2.Response) -> bool:
        is_found = request.url.path == _LEGACY_METADATA_PATH and response.status_code == _OK
        return is_found and self.context.auth_server_url is None

    async def _accept_own_issuer(self, response: httpx2.Response) -> httpx2.Response:
        """Returns the metadata of a server of the protocol of 2025-03-26, which is its own authorization server. Some
        name an issuer with a path, which the SDK refuses, because the metadata are at the root. An issuer at the
        server's own origin is as trustworthy as the server."""
        document, origin = _parse_object(await response.aread()), _origin(self._server.url)
        issuer = document.get("issuer")
        if not isinstance(issuer, str) or not issuer.startswith(f"{origin}/"):
            return response
        self._own_issuer = issuer
        return httpx2.Response(_OK, json={**document, "issuer": origin}, request=response.request)

    def load(self) -> StoredLogin:
        """Reads the stored login into the SDK's context."""
        self._seen_at = self._logins.changed_at()
        stored = self._logins.read_login(self._server.url)
        context = self.context
        context.current_tokens = _parse(OAuthToken, stored.tokens)
        context.client_info = self._own_client or _parse(OAuthClientInformationFull, stored.client)
        context.token_expiry_time = stored.expires_at - REFRESH_MARGIN if stored.expires_at else None
        context.oauth_metadata = _parse(OAuthMetadata, stored.metadata)
        context.protected_resource_metadata = resource = _parse(ProtectedResourceMetadata, stored.resource)
        if resource is not None and resource.authorization_servers:
            context.auth_server_url = str(resource.authorization_servers[0])
        return stored

    def revocation_requests(self) -> list[httpx2.Request]:
        """Returns the requests that revoke the stored tokens (RFC 7009), the refresh token first. The list is empty if
        the authorization server cannot revoke tokens, or is not the one that the client belongs to."""
        self.load()
        metadata, tokens, client = self.context.oauth_metadata, self.context.current_tokens, self.context.client_info
        if metadata is None or metadata.revocation_endpoint is None or tokens is None or client is None:
            return []
        if not credentials_match_issuer(client, str(metadata.issuer), None):
            return []
        requests: list[httpx2.Request] = []
        for kind, token in (("refresh_token", tokens.refresh_token), ("access_token", tokens.access_token)):
            if token:
                form = {"token": token, "token_type_hint": kind, "client_id": client.client_id}
                form, headers = self.context.prepare_token_auth(form, {})
                requests.append(httpx2.Request("POST", str(metadata.revocation_endpoint), data=form, headers=headers))
        return requests

    async def _perform_authorization(self) -> httpx2.Request:
        """Returns the request for a token: after a login of a person, or with the credentials of the client."""
        context = self.context
        if not self._needs_no_person:
            methods = context.oauth_metadata.code_challenge_methods_supported if context.oauth_metadata else None
            if methods is not None and _PKCE_METHOD not in methods:
                raise OAuthFlowError("the authorization server does not support PKCE (S256)")
            if context.oauth_metadata and self._own_issuer:  # the response of the login may name it
                context.oauth_metadata.issuer = AnyHttpUrl(self._own_issuer)
            return await super()._perform_authorization()
        data, headers = context.prepare_token_auth({"grant_type": "client_credentials"}, {})
        if context.should_include_resource_param(context.protocol_version):
            data["resource"] = context.get_resource_url()
        if context.client_metadata.scope:
            data["scope"] = context.client_metadata.scope
        return httpx2.Request("POST", self._get_token_endpoint(), data=data, headers=headers)

    def _check_rights(self, response: httpx2.Response) -> httpx2.Response:
        """Raises LoginNeeded if the server wants a login or more rights, and the user cannot be asked. Stores the scope
        that a call needs: the next login asks for it, although its first request may need less."""
        challenge = response.headers.get("WWW-Authenticate", "")
        wants_scope = response.status_code == _FORBIDDEN and "insufficient_scope" in challenge
        if response.status_code != _UNAUTHORIZED and not wants_scope:
            return response
        stored = self._logins.read_login(self._server.url)
        has_logged_in = self._redirect is not None and self._redirect.has_answer
        if has_logged_in and not wants_scope:
            problem = "it rejects the login that has just succeeded"
            self._report(problem, "server")
            raise LoginNeeded(problem)
        if self._can_ask and not has_logged_in:
            if wants_scope or not stored.wanted_scope:
                return response
            headers = {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{stored.wanted_scope}"'}
            return httpx2.Response(_FORBIDDEN, headers=headers, request=response.request)
        needed_right = "a login"
        if wants_scope and (scope := _SCOPE.search(challenge)):
            stored.wanted_scope = scope["scope"]
            self._logins.write_login(self._server.url, stored)
            self._seen_at = self._logins.changed_at()
            needed_right = f"more rights ({scope['scope']})"
        problem = f"it needs {needed_right}: outrider mcp login {self._server.name}"
        self._report(problem, "call" if wants_scope else "server")
        raise LoginNeeded(problem)

    def store(self, tokens: OAuthToken | None = None, client: OAuthClientInformationFull | None = None) -> None:
        stored = self._logins.read_login(self._server.url)
        if client is not None:
            stored.client = _dump(client)
        if tokens is not None:
            stored.tokens = _dump(tokens)
            stored.wanted_scope = None if self._can_ask else stored.wanted_scope
            stored.expires_at = time.time() + tokens.expires_in if tokens.expires_in else None
        stored.metadata = _dump(self.context.oauth_metadata) or stored.metadata
        stored.resource = _dump(self.context.protected_resource_metadata) or stored.resource
        self._logins.write_login(self._server.url, stored)
        self._seen_at = self._logins.changed_at()


class _LoginStorage:
    """Implements the SDK's `TokenStorage`."""

    def __init__(self, auth: ServerAuth) -> None:
        self._auth = auth

    async def get_tokens(self) -> OAuthToken | None:
        self._auth.load()
        return self._auth.context.current_tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._auth.store(tokens=tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._auth.context.client_info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._auth.store(client=client_info)


class LoginRedirect:
    """The end of a login: a listener on this machine, to which the authorization server redirects the browser. Use it
    with `async with`."""

    def __init__(self, show: ShowLogin, port: int = 0) -> None:
        self._show = show
        self._port = port
        self._answer: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None
        self.address = ""

    @property
    def has_answer(self) -> bool:
        """Whether the browser was redirected here, so that this login has ended."""
        return self._answer.done()

    async def __aenter__(self) -> "LoginRedirect":
        self._server = await asyncio.start_server(self._answer_request, "127.0.0.1", self._port)
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"http://127.0.0.1:{port}{CALLBACK_PATH}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        self._answer.cancel()

    async def show(self, address: str) -> None:
        if urlsplit(address).scheme not in ("http", "https"):
            raise OAuthFlowError("the authorization server named an address that is not a web page")
        await self._show(address)

    async def wait_for_code(self) -> AuthorizationCodeResult:
        try:
            async with asyncio.timeout(LOGIN_TIMEOUT):
                return await self._answer
        except TimeoutError:
            raise OAuthFlowError(f"there was no login within {LOGIN_TIMEOUT / 60:g} minutes") from None

    def take_address(self, address: str) -> None:
        """Reads the answer from the address to which the browser was redirected, for a browser on another machine.
        Raises OutriderError if it is the address of another page."""
        target = urlsplit(address.strip())
        query = parse_qs(target.query)
        if target.path != CALLBACK_PATH or not query.keys() & {"code", "error"}:
            raise OutriderError(f"this is not the address that the login ends with: it begins with {self.address}")
        self._take_answer(target.path, query)

    async def _answer_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                line = (await reader.readline()).decode("latin-1").split()
                while (await reader.readline()).strip():
                    pass
            target = urlsplit(line[1] if len(line) > 1 else "/")
            text = self._take_answer(target.path, parse_qs(target.query))
            status = "200 OK" if target.path == CALLBACK_PATH else "404 Not Found"
            body = f"<!doctype html><meta charset=utf-8><title>Outrider</title><p>{escape(text)}</p>".encode()
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Referrer-Policy: no-referrer\r\nConnection: close\r\n\r\n".encode() + body)
            await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass  # this connection was not the redirect of the login, which continues to wait
        finally:
            writer.close()

    def _take_answer(self, path: str, query: dict[str, list[str]]) -> str:
        if path != CALLBACK_PATH:
            return "There is nothing here."
        value = {name: values[0] for name, values in query.items()}
        if self._answer.done():
            return "This login has ended. You can close this page."
        if "code" in value:
            self._answer.set_result(
                AuthorizationCodeResult(code=value["code"], state=value.get("state"), iss=value.get("iss"))
            )
            return "You are logged in. You can close this page and return to Outrider."
        reason = value.get("error_description") or value.get("error") or "the answer has no code"
        self._answer.set_exception(OAuthFlowError(f"the authorization server refused: {reason}"))
        return f"The login failed: {reason}"


def check_login_kind(server: object) -> HttpServer:
    """Returns the server if one can log in to it. Raises ConfigurationError otherwise."""
    if not isinstance(server, HttpServer):
        raise ConfigurationError("this server runs as a program on this machine; only servers with a URL have a login")
    if any(name.lower() == "authorization" for name in server.headers):
        raise ConfigurationError(
            "this server has an `Authorization` header in its configuration; remove the header to log in"
        )
    return server


def _configured_client(client: OAuthClient | None, redirect: str) -> OAuthClientInformationFull | None:
    """Returns the registration that the user configured. It is not stored with the tokens."""
    if client is None:
        return None
    return OAuthClientInformationFull(
        client_id=client.client_id,
        client_secret=client.client_secret or None,
        redirect_uris=[AnyUrl(redirect)],
        token_endpoint_auth_method="client_secret_basic" if client.client_secret else "none",
        issuer=client.issuer or None,
    )


def _registered_redirect(stored: StoredLogin) -> str:
    addresses: list[Any] = (stored.client or {}).get("redirect_uris") or []
    return str(addresses[0]) if addresses else f"http://127.0.0.1:0{CALLBACK_PATH}"


def _granted_scope(stored: StoredLogin) -> str | None:
    return (stored.tokens or {}).get("scope")


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _parse_object(content: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _dump(value: BaseModel | None) -> dict[str, Any] | None:
    return value.model_dump(mode="json", exclude_none=True) if value is not None else None


def _parse(kind: type[Model], stored: dict[str, Any] | None) -> Model | None:
    try:
        return kind.model_validate(stored) if stored else None
    except ValidationError:
        return None
