"""The ASGI application: API routes, static page and OpenAPI document, wrapped in the request guard."""

from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from outrider.engine.engine import Engine
from outrider.errors import ConfigurationError
from outrider.remote.agent_server import PeerTurnRegistry
from outrider.server.auth import LOGIN_PATHS, BrowserLogins, ListenAddress, PublicUrl, RequestGuard
from outrider.server.endpoint import ApiEndpoint, RepeatedRequests, error_response, make_handler
from outrider.server.event_stream import SessionFeedRegistry
from outrider.server.oidc import OidcLogins
from outrider.server.openapi import build_openapi
from outrider.server.routes.agent_protocols import PROTOCOL_ROUTES
from outrider.server.routes.info import INFO_ROUTES, PEER_ROUTES, STORED_ANSWER_ROUTES
from outrider.server.routes.jobs import JOB_ROUTES, SCHEDULE_ROUTES
from outrider.server.routes.openai import OPENAI_ROUTES
from outrider.server.routes.sessions import OPEN_ROUTES, SESSION_ROUTES
from outrider.server.routes.settings import SETTINGS_ROUTES
from outrider.server.routes.tools import COMMAND_ROUTES, TOOL_ROUTES
from outrider.server.routes.turns import QUESTION_ROUTES, TURN_ROUTES
from outrider.server.routes.workspace import FILE_ROUTES
from outrider.server.state import ServerState
from outrider.server.turn_stream import ProtocolTurns
from outrider.server.users import AuditLog, UserLimits
from outrider.types.modes import APPROVAL_DESCRIPTIONS, MODE_DESCRIPTIONS, REASONING_EFFORTS

_PAGE_FOLDER = Path(__file__).parent / "page"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_CHOICES = msgspec.json.encode(
    {"modes": MODE_DESCRIPTIONS, "approvals": APPROVAL_DESCRIPTIONS, "efforts": REASONING_EFFORTS}
)


def page_routes() -> list[Route]:
    """Returns one route per static file; the files are read once, at start-up."""
    files = sorted(path for path in _PAGE_FOLDER.rglob("*") if path.suffix in _MEDIA_TYPES)
    routes = [_static_route(f"/page/{path.relative_to(_PAGE_FOLDER).as_posix()}", path) for path in files]
    return [_static_route("/", _PAGE_FOLDER / "index.html"), *routes]


def _static_route(url_path: str, path: Path) -> Route:
    content, media_type = path.read_bytes().replace(b"<!-- choices -->", _CHOICES), _MEDIA_TYPES[path.suffix]

    async def answer(_: Request) -> Response:
        return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

    return Route(url_path, answer, methods=["GET"])


def parse_public_address(url: str) -> ListenAddress:
    """Returns the address of an application that another server runs. Raises ConfigurationError for a wrong URL."""
    try:
        return ListenAddress(public=PublicUrl.parse(url), port=urlsplit(url).port or 0)
    except ConfigurationError as error:
        raise ConfigurationError(error.message.replace("--public-url ", "url=")) from None


OPENAPI_PATH = "/api/openapi.json"
ENDPOINTS: tuple[ApiEndpoint, ...] = (
    *SESSION_ROUTES, *OPEN_ROUTES, *TURN_ROUTES, *QUESTION_ROUTES, *FILE_ROUTES, *TOOL_ROUTES, *COMMAND_ROUTES,
    *INFO_ROUTES, *STORED_ANSWER_ROUTES, *PEER_ROUTES, *JOB_ROUTES, *SCHEDULE_ROUTES, *SETTINGS_ROUTES,
    *OPENAI_ROUTES, *PROTOCOL_ROUTES,
)  # fmt: skip
_EMPTY_STATE = ServerState()


def create_app(
    engine: Engine,
    feeds: SessionFeedRegistry,
    *,
    address: ListenAddress,
    token: str,
    version: str,
    state: ServerState = _EMPTY_STATE,
    logins: BrowserLogins | None = None,
    audit: AuditLog | None = None,
) -> RequestGuard:
    """Builds the application for an open engine. The caller owns `engine` and the objects in `state`, and closes
    them."""
    routes = [*all_routes(version, address.browser_url if address.socket is None else ".."), *state.routes]
    app = Starlette(routes=routes, exception_handlers={404: _route_not_found, 405: _method_not_allowed})
    app.router.redirect_slashes = False  # a redirect is not described; a path with a slash too many is unknown
    app.state.engine, app.state.feeds, app.state.peers, app.state.version = (
        engine,
        feeds,
        PeerTurnRegistry(engine),
        version,
    )
    app.state.turns, app.state.repeats = ProtocolTurns(engine), RepeatedRequests()
    app.state.background, app.state.questions = state.background, state.questions
    app.state.settings, app.state.server_logins = state.settings, state.server_logins
    app.state.logins, app.state.webhooks = logins or BrowserLogins(), state.webhooks
    app.state.url = address.browser_url
    app.state.monitor, app.state.users, app.state.limits = state.monitor, state.users, UserLimits(state.users, engine)
    return RequestGuard(
        app,
        address=address,
        token=token,
        logins=app.state.logins,
        audit=audit,
        monitor=state.monitor,
        users=state.users,
        limits=app.state.limits,
        oidc=OidcLogins(state.oidc, state.users, f"{address.browser_url}{LOGIN_PATHS[1]}") if state.oidc else None,
    )


def all_routes(version: str, url: str = "..") -> list[Route]:
    @cache  # most servers are never asked for their description
    def describe() -> bytes:
        return msgspec.json.encode(build_openapi(ENDPOINTS, version, url))

    async def describing(_: Request) -> Response:
        return Response(describe(), media_type="application/json")

    described = [
        Route(endpoint.path, make_handler(endpoint), methods=[endpoint.method], name=endpoint.name)
        for endpoint in ENDPOINTS
    ]
    return [*described, Route(OPENAPI_PATH, describing), *page_routes()]


async def _method_not_allowed(request: Request, _: Exception) -> Response:
    """Answers 405 with the allowed methods of all routes that share the path."""
    matches = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = sorted({method for route in matches for method in route.methods or ()})
    response = error_response(405, "no_such_method", f"allowed methods: {', '.join(methods)}")
    response.headers["allow"] = ", ".join(methods)
    return response


async def _route_not_found(_: Request, __: Exception) -> Response:
    return error_response(404, "no_such_route", "no such route; see /api/openapi.json")
