"""The application: the table of routes, the page, the description, all behind the guard."""

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from outrider.app.engine import Engine
from outrider.server.answers import answering, refusal
from outrider.server.endpoint import Endpoint
from outrider.server.feeds.feed import Feeds
from outrider.server.guards.address import Address
from outrider.server.guards.guard import App, Guard
from outrider.server.openapi import describe
from outrider.server.page_files import page_routes
from outrider.server.routes.catalogue import CATALOGUE
from outrider.server.routes.files import FILES
from outrider.server.routes.opening import OPENING
from outrider.server.routes.peers import PEERS
from outrider.server.routes.sessions import SESSIONS
from outrider.server.routes.turns import TURNS
from outrider.server.routes.work import WORK

DESCRIPTION = "/api/openapi.json"
ENDPOINTS: tuple[Endpoint, ...] = (*SESSIONS, *OPENING, *TURNS, *FILES, *WORK, *CATALOGUE, *PEERS)


def application(engine: Engine, feeds: Feeds, *, address: Address, token: str, version: str) -> App:
    """`engine` is open, and stays its owner's to close."""
    description = msgspec.json.encode(describe(ENDPOINTS, version))

    async def describing(_: Request) -> Response:
        return Response(description, media_type="application/json")

    routes = [Route(one.path, answering(one), methods=[one.method], name=one.name) for one in ENDPOINTS]
    routes += [Route(DESCRIPTION, describing), *page_routes()]
    app = Starlette(routes=routes, exception_handlers={404: _no_such, 405: _no_such})
    app.state.engine, app.state.feeds, app.state.version = engine, feeds, version
    return Guard(app, address=address, token=token)


async def _no_such(_: Request, __: Exception) -> Response:
    return refusal(404, "no_such_route", "there is no such route; /api/openapi.json lists them")
