"""The engine that every front end opens: the user's settings, a store on disk, the built-in tools and a sandbox."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.config.environment import KEY_VARIABLES
from outrider.config.paths import make_private
from outrider.config.providers import read_prompts
from outrider.config.settings import Settings
from outrider.engine.approval_gate import Rules
from outrider.engine.engine import Engine
from outrider.engine.session_tools import ToolEnvironment
from outrider.engine.undo_cleanup import forget_lost
from outrider.errors import ConfigurationError
from outrider.event_bus import EventBus
from outrider.models.local.weights import adapt_to_local_models
from outrider.processes.sandbox.sandbox import Network
from outrider.project.extensions import UserPaths, WorkspaceExtensions
from outrider.project.sandbox import FoundSandbox
from outrider.project.trust import WorkspaceTrust, find_project, server_items
from outrider.providers.catalog import Catalog
from outrider.sessions.recovery import forget
from outrider.sessions.sqlite.store import SqliteStore
from outrider.sessions.store import Store
from outrider.tools.builtin.question import Ask
from outrider.types.ids import now_ms

if TYPE_CHECKING:
    from outrider.project.mcp import Servers


DAY = 24 * 3600 * 1000


@asynccontextmanager
async def standard_engine(
    settings: Settings,
    *,
    workspace: Path,
    attended: bool,
    bus: EventBus | None = None,
    ask: Ask | None = None,
    store: Store | None = None,
) -> AsyncGenerator[Engine, None]:
    """`attended` says whether somebody is there to approve calls, `ask` puts the model's questions to them. Sessions
    are kept in the user's data directory, or in the `store` that is given, which is opened and closed here.
    Raises ConfigurationError where no model can be reached, with the ways to get one."""
    if settings.missing:
        from outrider.models.local.discovery import ways_to_a_model  # the standard HTTP client takes long to load

        raise ConfigurationError(await asyncio.to_thread(ways_to_a_model, settings.missing))
    data, bus = make_private(settings.data), bus or EventBus()
    async with AsyncExitStack() as opened:
        store = await opened.enter_async_context(store or SqliteStore(settings.folders.store))
        belongings = _belongings(settings, workspace, opened)
        around = ToolEnvironment(
            sandbox=FoundSandbox(data / "scratch", lambda: belongings.environment(workspace).get("PATH", "")),
            data=data,
            home=settings.home,
            bus=bus,
            ask=ask,
            network=await _network(settings, opened),
            belongings=belongings,
        )
        engine = Engine(
            adapt_to_local_models(settings.agents, settings.providers),
            settings.providers,
            store=store,
            bus=bus,
            attended=attended,
            workspace=workspace,
            limits=settings.limits,
            rules=Rules(settings.rules.allow, settings.rules.ask, settings.rules.deny),
            surroundings=around,
            titles=attended,
            compacts=settings.compaction.automatic,
            catalog=Catalog.from_config(settings.models) if settings.models else None,
        )
        await opened.enter_async_context(engine)
        _forget_old(settings, store, opened)
        yield engine


def _belongings(settings: Settings, workspace: Path, opened: AsyncExitStack) -> WorkspaceExtensions:
    folders = settings.folders
    own = UserPaths(folders.home, folders.instructions, folders.skills, folders.trust)
    servers = _servers(settings, workspace)
    if servers is not None:
        servers.open(settings.environ)
        opened.push_async_callback(servers.close)
    return WorkspaceExtensions(own, settings.environ, read_prompts(folders.prompts), servers)


def _servers(settings: Settings, workspace: Path) -> "Servers | None":
    trust = WorkspaceTrust(find_project(workspace, settings.home), settings.folders.trust)
    if not settings.mcp and not server_items(trust.project):
        return None
    from outrider.project.mcp import Servers, choose_servers

    source = str(settings.folders.config_file)
    chosen = choose_servers(settings.mcp, source, trust, settings.environ, KEY_VARIABLES)
    return Servers(chosen, trust.project.root, settings.data / "mcp_tools.json")


async def _network(settings: Settings, opened: AsyncExitStack) -> Network:
    if not settings.sandbox.hosts:
        return "off"
    from outrider.processes.sandbox.proxy import open_proxy

    return await opened.enter_async_context(open_proxy(settings.sandbox.hosts))


def _forget_old(settings: Settings, store: Store, opened: AsyncExitStack) -> None:
    """Beside everything else, and only where the user wants sessions to be forgotten."""
    days = settings.retention.days
    if days is None:
        return

    async def forget_all() -> None:
        if await forget(store, inactive_since=now_ms() - days * DAY):
            await forget_lost(settings.data, store)

    task = asyncio.create_task(forget_all(), name="forgetting old sessions")
    opened.push_async_callback(asyncio.wait, [task])


def store_at(file: Path, server: str | None = None) -> Store:
    """To be opened by the caller. `server` is postgresql://…"""
    if server is None:
        return SqliteStore(file)
    from outrider.sessions.postgres.store import PostgresStore

    return PostgresStore(server)
