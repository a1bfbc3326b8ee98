"""Builds the standard engine of the front ends: the user's settings, an SQLite store, the built-in tools and a
sandbox."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from outrider._sync import CALLBACK_SECONDS
from outrider.agents.hooks import Hooks
from outrider.config.paths import make_private_folder
from outrider.config.providers import KEY_VARIABLES, proxy_for, read_prompts
from outrider.config.settings import Settings
from outrider.engine.approval_gate import Rules
from outrider.engine.engine import Engine
from outrider.engine.session_tools import OwnerLimits, ToolEnvironment
from outrider.errors import ConfigurationError
from outrider.event_bus import EventBus
from outrider.models.clients import adapt_to_local_models
from outrider.processes.sandbox.sandbox import Network, NoSandbox, Sandbox
from outrider.project.extensions import UserPaths, WorkspaceExtensions
from outrider.project.sandbox import LazySandbox
from outrider.project.trust import HOOK_FILES, WorkspaceTrust, find_project, server_items
from outrider.providers.catalog import ModelCatalog, use_price_file
from outrider.sessions.sqlite.store import SqliteStore
from outrider.sessions.store import Store
from outrider.tools.tool import AskUser, Tool
from outrider.tools.workspace_files import EditorBuffers
from outrider.types.ids import now_ms
from outrider.types.origins import EgressBudget, FlowSettings

if TYPE_CHECKING:
    from outrider.project.hooks import ConfiguredHooks
    from outrider.project.mcp import McpServerManager


_log = logging.getLogger("outrider.hooks")

DAY_MS = 24 * 3600 * 1000
OVERLAY_DAYS = 14


CASSETTES = "cassettes"
"""The name of the folder with the recorded sessions in the data folder."""


@asynccontextmanager
async def standard_engine(
    settings: Settings,
    *,
    workspace: Path,
    attended: bool,
    bus: EventBus | None = None,
    ask: AskUser | None = None,
    store: Store | None = None,
    titles: bool | None = None,
    readable: tuple[str, ...] = (),
    editor_buffers: Callable[[str], EditorBuffers | None] | None = None,
    limits_of_owner: Callable[[str], OwnerLimits | None] | None = None,
) -> AsyncGenerator[Engine, None]:
    """Opens an engine with the user's settings. Raises ConfigurationError with setup instructions if no model is
    configured.

    - `workspace`: the folder of new sessions.
    - `attended`: whether a user can approve calls.
    - `bus`: the event bus; None creates one.
    - `ask`: the callback for the model's questions to the user.
    - `store`: where sessions are stored; it is opened and closed here. None is the user's data folder.
    - `titles`: whether a model names sessions; None means the value of `attended`.
    - `readable`: folders outside the workspace that agents may read without a question.
    - `editor_buffers`: returns the buffers of a session's editor.
    - `limits_of_owner`: returns the limits of a user's sessions.
    """
    if settings.missing:
        from outrider.models.local_models import missing_model_message  # lazy: rarely needed

        raise ConfigurationError(await asyncio.to_thread(missing_model_message, settings.missing))
    data, bus = make_private_folder(settings.data_folder), bus or EventBus()
    use_price_file(data / "prices.json")
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(store or SqliteStore(settings.folders.store_file))
        extensions = _open_extensions(settings, workspace, stack, attended=attended, asks=attended and ask is not None)
        environment = ToolEnvironment(
            sandbox=_choose_sandbox(settings, data, lambda: extensions.command_environment(workspace).get("PATH", "")),
            data=data,
            home=settings.home_folder,
            config=settings.folders.config,
            bus=bus,
            ask=ask,
            network=await _open_network(settings, stack),
            extensions=extensions,
            search_tool=_choose_search_tool(settings),
            hosts=settings.sandbox.hosts,
            editor_buffers=editor_buffers,
            limits_of_owner=limits_of_owner,
        )
        hooks = _read_hooks(settings, workspace, bus, extensions, stack)
        engine = Engine(
            adapt_to_local_models(settings.agents, settings.providers),
            settings.providers,
            store=store,
            bus=bus,
            attended=attended,
            workspace=workspace,
            limits=settings.limits,
            approval=settings.approval,
            rules=Rules(settings.rules.allow, settings.rules.ask, settings.rules.deny, readable),
            surroundings=environment,
            flow=_flow_settings(settings),
            titles=attended if titles is None else titles,
            compacts=settings.compaction.automatic,
            catalog=ModelCatalog.from_config(settings.models) if settings.models else None,
            hooks=hooks or Hooks(),
            cassettes=data / CASSETTES if settings.recording.enabled else None,
            callback_seconds=None if hooks else CALLBACK_SECONDS,  # each command of a hook has its own time limit
        )
        await stack.enter_async_context(engine)
        _delete_old_sessions(settings, store, stack)
        _delete_old_overlays(data, stack)
        yield engine


def _read_hooks(
    settings: Settings, workspace: Path, bus: EventBus, extensions: WorkspaceExtensions, stack: AsyncExitStack
) -> Hooks | None:
    """Returns the hooks of the user and of the trusted workspace, or None. Raises ConfigurationError."""
    configured = find_hooks(settings, workspace)
    if configured is None:
        return None
    for notice in configured.notices:
        _log.warning("%s", notice)
    if not configured.table:
        return None
    from outrider.project.hooks import CommandHooks  # lazy: most users have none

    root = find_project(workspace, settings.home_folder).root
    commands = CommandHooks(configured.table, bus, workspace, root, extensions.command_environment)
    stack.callback(commands.attach())
    return commands.build_hooks()


def find_hooks(settings: Settings, workspace: Path) -> "ConfiguredHooks | None":
    """Returns the hooks of the user and of the trusted workspace, with notices about entries that are ignored; None if
    there are no files with hooks. Raises ConfigurationError for an invalid file of the user."""
    trust = WorkspaceTrust(find_project(workspace, settings.home_folder), settings.folders.trust_file)
    if not settings.folders.hooks_file.exists() and not any(
        (trust.project.root / name).exists() for name in HOOK_FILES
    ):
        return None
    from outrider.project.hooks import read_hooks  # lazy: most users have none

    return read_hooks(settings.folders.hooks_file, trust)


def _flow_settings(settings: Settings) -> FlowSettings:
    allowed = settings.egress.allow.items()
    return FlowSettings(
        allowed={name: EgressBudget(requests=budget.requests, bytes=budget.bytes) for name, budget in allowed},
        private_servers=settings.egress.private_servers,
        trusted_servers=settings.egress.trusted_servers,
    )


def _choose_sandbox(settings: Settings, data: Path, search_path: Callable[[], str]) -> Sandbox:
    if settings.no_sandbox:
        return NoSandbox("--no-sandbox was given", "", accepted=True)
    if settings.sandbox.image:
        if settings.sandbox.hosts:
            raise ConfigurationError("[sandbox] has image and hosts: a container cannot allow single hosts; remove one")
        import shutil  # lazy: its modules for archives take a hundredth of a start

        program = shutil.which(settings.sandbox.engine, path=settings.environ.get("PATH"))
        if program is None:
            raise ConfigurationError(
                f"[sandbox] image needs a container engine: there is no program {settings.sandbox.engine}"
            )
        from outrider.processes.sandbox.detect import ContainerSandbox  # lazy: most users have none

        return ContainerSandbox(program, settings.sandbox.image, settings.sandbox.options)
    return LazySandbox(data / "scratch", search_path)


def _choose_search_tool(settings: Settings) -> Callable[[], Tool] | None:
    """Returns a function that creates the tool `web_search`, if a service is configured. Raises ConfigurationError."""
    table, source = settings.web_search, settings.folders.config_file
    if table.service is None:
        return None
    key = settings.environ.get(table.api_key_env or "", "").strip()
    if table.service == "searxng" and not table.base_url:
        raise ConfigurationError(f"{source}: web_search.base_url: is missing; write the address of your SearXNG")
    if table.service != "searxng" and not key:
        raise ConfigurationError(f"{source}: web_search.api_key_env: must name a variable that holds your key")
    from outrider.tools.builtin.web import SearchBackend, web_search_tool  # lazy: most users have none

    backend = SearchBackend(service=table.service, base_url=table.base_url, api_key=key or None)
    return lambda: web_search_tool(backend, proxy_for)


def _open_extensions(
    settings: Settings, workspace: Path, stack: AsyncExitStack, *, attended: bool, asks: bool
) -> WorkspaceExtensions:
    folders = settings.folders
    user = UserPaths(folders.home, folders.instructions_file, folders.skills_folder, folders.trust_file)
    servers = _find_servers(settings, workspace, attended=attended, asks=asks)
    if servers is not None:
        servers.open(settings.environ)
        stack.push_async_callback(servers.close)
    return WorkspaceExtensions(user, settings.environ, read_prompts(folders.prompts_folder), servers)


def _find_servers(settings: Settings, workspace: Path, *, attended: bool, asks: bool) -> "McpServerManager | None":
    trust = WorkspaceTrust(find_project(workspace, settings.home_folder), settings.folders.trust_file)
    if not settings.mcp and not server_items(trust.project):
        return None
    from outrider.project.mcp import CONNECT_WAIT_SECONDS, UNATTENDED_WAIT_SECONDS, McpServerManager, choose_servers
    from outrider.tools.mcp.config import LoginFile

    source = str(settings.folders.config_file)
    chosen = choose_servers(settings.mcp, source, trust, settings.environ, KEY_VARIABLES)
    ledger, logins = settings.data_folder / "mcp_tools.json", LoginFile(settings.folders.logins_file)
    wait = CONNECT_WAIT_SECONDS if attended else UNATTENDED_WAIT_SECONDS
    return McpServerManager(
        chosen, trust.project.root, ledger, asks=asks, proxy=proxy_for, logins=logins, wait_seconds=wait
    )


async def _open_network(settings: Settings, stack: AsyncExitStack) -> Network:
    if not settings.sandbox.hosts:
        return "off"
    from outrider.http.client import is_other_machine
    from outrider.processes.sandbox.proxy import open_proxy

    return await stack.enter_async_context(open_proxy(settings.sandbox.hosts, is_other_machine))


def _delete_old_sessions(settings: Settings, store: Store, stack: AsyncExitStack) -> None:
    """Deletes expired sessions in a background task, if retention is configured."""
    days = settings.retention.days
    if days is None:
        return

    async def forget_all() -> None:
        from outrider.engine.archive import delete_files_of_sessions  # lazy: most runs have no retention
        from outrider.sessions.recovery import delete_inactive_sessions

        async with delete_files_of_sessions(settings.data_folder, store):
            await delete_inactive_sessions(store, inactive_since=now_ms() - days * DAY_MS)

    task = asyncio.create_task(forget_all(), name="delete old sessions")
    stack.push_async_callback(asyncio.wait, [task])


def _delete_old_overlays(data: Path, stack: AsyncExitStack) -> None:
    """Deletes what sandboxed commands of long unused sessions left, in a background task."""
    if not (data / "overlays").is_dir():
        return
    from outrider.outcomes.pending import remove_old_overlays  # lazy: most runs use no command

    unused_since = now_ms() / 1000 - OVERLAY_DAYS * DAY_MS / 1000
    work = asyncio.to_thread(remove_old_overlays, data, unused_since)
    task = asyncio.create_task(work, name="delete old overlays")
    stack.push_async_callback(asyncio.wait, [task])


def create_store(
    file: Path, server: str | None = None, *, outage_seconds: float = 0.0, max_connections: int = 8
) -> Store:
    """Creates an SQLite store at `file`, or a Postgres store for the URL `server`, whose requests wait up to
    `outage_seconds` for an unavailable server. The caller opens it."""
    if server is None:
        return SqliteStore(file)
    from outrider.sessions.postgres.store import PostgresStore

    return PostgresStore(server, outage_seconds=outage_seconds, max_connections=max_connections)
