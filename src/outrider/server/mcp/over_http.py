"""The MCP server beside the API, at /mcp: the same tools and the same rules as on standard input and output."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from mcp.server.transport_security import TransportSecuritySettings
from starlette.routing import BaseRoute

from outrider.app.config.settings import Settings
from outrider.app.engine import Engine
from outrider.app.views.sessions import archive_of
from outrider.server.mcp.runs import Runs
from outrider.server.mcp.serve import OtherAgents, mcp_server

SESSIONS = 100  # of the protocol, at once
# Hosts and origins are the guard's matter, which stands before every route.
_GUARDED = TransportSecuritySettings(enable_dns_rebinding_protection=False)


@asynccontextmanager
async def mcp_routes(engine: Engine, settings: Settings, version: str) -> AsyncGenerator[Sequence[BaseRoute], None]:
    """Another agent gives its orders here, so nobody is asked: its engine has the same parts and no one beside it."""
    async with engine.like(attended=False) as alone:
        server = mcp_server(OtherAgents(archive_of(alone), Runs(alone, settings), settings.missing), version)
        routes = server.streamable_http_app(transport_security=_GUARDED, max_sessions=SESSIONS).routes
        async with server.session_manager.run():
            yield routes
