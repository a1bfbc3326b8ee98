"""The application: the table of routes, the page, the description, all behind the guard."""

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from outrider.app.engine import Engine
from outrider.app.peers.answering import Peers
from outrider.server.answers import answering, refusal
from outrider.server.endpoint import Endpoint
from outrider.server.extras import Extras
from outrider.server.feeds.feed import Feeds
from outrider.server.guards.address import Address
from outrider.server.guards.guard import Guard
from outrider.server.openapi import describe
from outrider.server.page_files import page_routes
from outrider.server.routes.by_hand import BY_HAND
from outrider.server.routes.catalogue import CATALOGUE
from outrider.server.routes.files import FILES
from outrider.server.routes.jobs import JOBS
from outrider.server.routes.opening import OPENING
from outrider.server.routes.peers import PEERS
from outrider.server.routes.questions import QUESTIONS
from outrider.server.routes.rights import RIGHTS
from outrider.server.routes.schedules import SCHEDULES
from outrider.server.routes.sessions import SESSIONS
from outrider.server.routes.turns import TURNS
from outrider.server.routes.work import WORK

DESCRIPTION = "/api/openapi.json"
ENDPOINTS: tuple[Endpoint, ...] = (
    *SESSIONS, *OPENING, *TURNS, *QUESTIONS, *FILES, *WORK, *BY_HAND, *CATALOGUE, *RIGHTS, *PEERS, *JOBS, *SCHEDULES,
)  # fmt: skip
_NONE = Extras()


def application(
    engine: Engine,
    feeds: Feeds,
    *,
    address: Address,
    token: str,
    version: str,
    extras: Extras = _NONE,
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
