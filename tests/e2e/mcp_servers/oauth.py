"""A protected MCP server and its authorization server, with the SDK's own OAuth routes: `oauth.py PORT PORT`.

A login is granted at once: the address that the user is sent to redirects back with a code. `POST /admin/expire` and
`/admin/revoke` at the authorization server end tokens as in real life.
"""

import asyncio
import secrets
import sys
import time
import warnings
from urllib.parse import urlencode

import uvicorn
from mcp.server.auth.provider import AccessToken, AuthorizationCode, AuthorizationParams, RefreshToken
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

warnings.simplefilter("ignore")
SERVER_PORT, LOGIN_PORT = int(sys.argv[1]), int(sys.argv[2])
SERVER, LOGIN = f"http://127.0.0.1:{SERVER_PORT}", f"http://127.0.0.1:{LOGIN_PORT}"


class Accounts:
    """The state of the authorization server. Refresh tokens are used once."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.lifetime = 3600
        self.refreshed = 0

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[str(client_info.client_id)] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = AuthorizationCode(
            code=secrets.token_urlsafe(16),
            scopes=params.scopes or ["read"],
            expires_at=time.time() + 60,
            client_id=str(client.client_id),
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.codes[code.code] = code
        return f"{params.redirect_uri}?{urlencode({'code': code.code, 'state': params.state or ''})}"

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self.issue(authorization_code.client_id, authorization_code.scopes)

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self.refresh[refresh_token.token]
        self.refreshed += 1
        return self.issue(refresh_token.client_id, scopes or refresh_token.scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.pop(token.token, None)
        self.refresh.pop(token.token, None)

    async def verify_token(self, token: str) -> AccessToken | None:
        found = self.access.get(token)
        return found if found and (found.expires_at or 0) > time.time() else None

    def issue(self, client_id: str, scopes: list[str]) -> OAuthToken:
        access, refresh = f"access-{secrets.token_hex(16)}", f"refresh-{secrets.token_hex(16)}"
        expires = int(time.time()) + self.lifetime
        self.access[access] = AccessToken(token=access, client_id=client_id, scopes=scopes, expires_at=expires)
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=scopes)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=self.lifetime, scope=" ".join(scopes))


accounts = Accounts()


async def administer(request: Request) -> Response:
    match request.path_params["what"]:
        case "expire":  # the next tokens have already ended when they are stored
            accounts.access.clear()
        case "short":
            accounts.lifetime = 1
        case "revoke":
            accounts.access.clear()
            accounts.refresh.clear()
            accounts.clients.clear()
    tokens = len(accounts.access) + len(accounts.refresh)
    return JSONResponse({"refreshed": accounts.refreshed, "clients": len(accounts.clients), "tokens": tokens})


class NeedsWriteScope:
    """Refuses calls of `delete` with 403 unless the token has the scope `write`, as servers with step-up do."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        body = await request.body()
        token = accounts.access.get(request.headers.get("authorization", "").removeprefix("Bearer "))
        if b'"delete"' in body and token and "write" not in token.scopes:
            challenge = 'Bearer error="insufficient_scope", scope="read write"'
            await Response(status_code=403, headers={"WWW-Authenticate": challenge})(scope, receive, send)
            return
        sent = False

        async def replay() -> dict[str, object]:
            nonlocal sent
            if sent:
                return dict(await receive())
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay, send)


server = MCPServer(
    "protected",
    token_verifier=accounts,
    auth=AuthSettings(
        issuer_url=AnyHttpUrl(LOGIN),
        resource_server_url=AnyHttpUrl(f"{SERVER}/mcp"),
        required_scopes=["read"],
        validate_token_resource=False,
    ),
)


@server.tool()
def greet(name: str) -> str:
    """Greet a person."""
    return f"Hello {name}."


@server.tool()
def delete(name: str) -> str:
    """Delete something; needs more rights."""
    return f"{name} is deleted."


async def main() -> None:
    scopes = ClientRegistrationOptions(enabled=True, valid_scopes=["read", "write"], default_scopes=["read"])
    routes = create_auth_routes(accounts, AnyHttpUrl(LOGIN), None, scopes, RevocationOptions(enabled=True))
    login = Starlette(routes=[*routes, Route("/admin/{what}", administer, methods=["POST"])])
    protected = NeedsWriteScope(server.streamable_http_app())
    apps = ((protected, SERVER_PORT), (login, LOGIN_PORT))
    await asyncio.gather(
        *(uvicorn.Server(uvicorn.Config(app, port=port, log_level="error")).serve() for app, port in apps)
    )


asyncio.run(main())
