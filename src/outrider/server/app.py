"""The application: the table of routes, the page, the description, all behind the guard."""

from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from outrider.engine.engine import Engine
from outrider.remote.agent_server import Peers
from outrider.server.auth import Address, Guard
from outrider.server.event_stream import Feeds
from outrider.server.openapi import describe
from outrider.server.routes.info import CATALOGUE, PEERS, RIGHTS
from outrider.server.routes.jobs import JOBS, SCHEDULES
from outrider.server.routes.sessions import OPENING, SESSIONS
from outrider.server.routes.tools import BY_HAND, FILES, WORK
from outrider.server.routes.turns import QUESTIONS, TURNS
from outrider.server.routing import Endpoint, answering, refusal
from outrider.server.state import ServerState

_FOLDER = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def page_routes() -> list[Route]:
    files = sorted(path for path in _FOLDER.rglob("*") if path.suffix in _TYPES)
    routes = [_serving(f"/page/{path.relative_to(_FOLDER).as_posix()}", path) for path in files]
    return [_serving("/", _FOLDER / "index.html"), *routes]


def _serving(address: str, path: Path) -> Route:
    content, media_type = path.read_bytes(), _TYPES[path.suffix]

    async def answer(_: Request) -> Response:
        return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

    return Route(address, answer, methods=["GET"])


DESCRIPTION = "/api/openapi.json"
ENDPOINTS: tuple[Endpoint, ...] = (
    *SESSIONS, *OPENING, *TURNS, *QUESTIONS, *FILES, *WORK, *BY_HAND, *CATALOGUE, *RIGHTS, *PEERS, *JOBS, *SCHEDULES,
)  # fmt: skip
_NONE = ServerState()


def application(
    engine: Engine,
    feeds: Feeds,
    *,
    address: Address,
    token: str,
    version: str,
    extras: ServerState = _NONE,
) -> Guard:
    """`engine` is open, and stays its owner's to close, as what the extras hold does."""
    routes = [*all_routes(version), *extras.routes]
    app = Starlette(routes=routes, exception_handlers={404: _no_such, 405: _other_method})
    app.state.engine, app.state.feeds, app.state.peers, app.state.version = engine, feeds, Peers(engine), version
    app.state.background, app.state.questions = extras.background, extras.questions
    return Guard(app, address=address, token=token)


def all_routes(version: str) -> list[Route]:
    description = msgspec.json.encode(describe(ENDPOINTS, version))

    async def describing(_: Request) -> Response:
        return Response(description, media_type="application/json")

    described = [Route(one.path, answering(one), methods=[one.method], name=one.name) for one in ENDPOINTS]
    return [*described, Route(DESCRIPTION, describing), *page_routes()]


async def _other_method(request: Request, _: Exception) -> Response:
    """Several routes may share a path, so what is allowed is asked of all of them."""
    matches = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    allowed = sorted({method for route in matches for method in route.methods or ()})
    refused = refusal(405, "no_such_method", f"this path takes {', '.join(allowed)}")
    refused.headers["allow"] = ", ".join(allowed)
    return refused


async def _no_such(_: Request, __: Exception) -> Response:
    return refusal(404, "no_such_route", "there is no such route; /api/openapi.json lists them")
