"""Holds one connection through the SDK: made, used and closed in one task, whatever the server does."""

import logging
import math
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import cast

import anyio
import mcp_types as wire
from mcp import Client, MCPError
from mcp.client import ClientRequestContext, IncomingMessage, Transport
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from outrider.processes.guards.spawner import Spawner
from outrider.tools.context import Progress
from outrider.tools.mcp.config import HttpServer, Limits, ServerConfig, StdioServer
from outrider.tools.mcp.faults import cut
from outrider.tools.mcp.link import Host, Life, Listed, Question
from outrider.tools.mcp.sdk.asking import CLOSED, SdkLink, words_of
from outrider.tools.mcp.sdk.http import http_transport
from outrider.tools.mcp.sdk.stdio import stdio_transport

_CHANGES: dict[type[object], Listed] = {
    wire.ToolListChangedNotification: "tools",
    wire.ResourceListChangedNotification: "resources",
    wire.PromptListChangedNotification: "prompts",
}
_LONGEST_LOG = 2_000
_log = logging.getLogger("outrider.mcp")

# The SDK logs what goes wrong inside it, which is told as faults here; without listeners it would be printed.
for _name in ("mcp", "client"):
    logging.getLogger(_name).addHandler(logging.NullHandler())


async def hold(spawner: Spawner, config: ServerConfig, host: Host, life: Life, *, legacy: bool) -> None:
    """See `Hold`. One scope spans the whole life: first it is the start-up limit, at last the limit for closing."""
    scope = anyio.CancelScope(deadline=anyio.current_time() + host.limits.startup)
    client = _client(config, host, life, _transport(config, host, spawner, life), legacy=legacy)
    try:
        with scope:
            await _serve(client, scope, SdkLink(client, config, host.limits, life), life, host.limits)
    except Exception as error:  # noqa: BLE001  a fault of one server, whatever it is, stays with that server
        if not scope.cancel_called:
            life.end(life.trouble or "; ".join(dict.fromkeys(_causes(error))))
    life.end(f"it did not answer within {host.limits.startup:g} s")


async def _serve(client: Client, scope: anyio.CancelScope, link: SdkLink, life: Life, limits: Limits) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_close_with, life, scope, limits.shutdown)
        async with client:
            await life.begin(link)
            scope.deadline = math.inf
            tasks.start_soon(_listen, client, life)
            await life.over.wait()
        tasks.cancel_scope.cancel()


async def _close_with(life: Life, scope: anyio.CancelScope, grace: float) -> None:
    """A start-up is broken off; a connection in use may take its leave."""
    await life.over.wait()
    scope.deadline = anyio.current_time() + (0 if life.served is None else grace)


def _client(config: ServerConfig, host: Host, life: Life, transport: Transport, *, legacy: bool) -> Client:
    callbacks = _Callbacks(config, host, life)
    return Client(
        transport,
        mode="legacy" if legacy else "auto",
        client_info=wire.Implementation(name="outrider", version=_version()),
        list_roots_callback=callbacks.roots,
        elicitation_callback=callbacks.question if host.ask else None,
        logging_callback=callbacks.log,
        log_level="info",
        message_handler=callbacks.message,
        cache=None,
    )


def _transport(config: ServerConfig, host: Host, spawner: Spawner, life: Life) -> Transport:
    match config:
        case StdioServer():
            return stdio_transport(config, host, spawner, life)
        case HttpServer():
            return http_transport(config, host.limits, life)


async def _listen(client: Client, life: Life) -> None:
    """Newer servers tell of changes only to those who ask; older ones tell `_Callbacks.message`."""
    offered = client.server_capabilities
    tools = bool(offered.tools and offered.tools.list_changed)
    resources = bool(offered.resources and offered.resources.list_changed)
    prompts = bool(offered.prompts and offered.prompts.list_changed)
    if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (tools or resources or prompts):
        return
    try:
        async with client.listen(
            tools_list_changed=tools, resources_list_changed=resources, prompts_list_changed=prompts
        ) as changes:
            async for _ in changes:
                """The session passes each one to `_Callbacks.message` as well."""
    except Exception as error:  # noqa: BLE001  news are a convenience; the connection serves without them
        _log.debug("no news of changes: %s", type(error).__name__)


class _Callbacks:
    """What a server may ask of this side, and what it tells. Sampling is not offered, and so refused by the SDK."""

    def __init__(self, config: ServerConfig, host: Host, life: Life) -> None:
        self._server = config.name
        self._host = host
        self._life = life

    async def roots(self, context: ClientRequestContext) -> wire.ListRootsResult:
        folder = self._host.workspace.absolute()
        return wire.ListRootsResult(roots=[wire.Root.model_validate({"uri": folder.as_uri(), "name": folder.name})])

    async def question(
        self, context: ClientRequestContext, params: wire.ElicitRequestParams
    ) -> wire.ElicitResult | wire.ErrorData:
        if self._host.ask is None:
            return wire.ErrorData(code=wire.INVALID_REQUEST, message="there is nobody to ask")
        is_form = isinstance(params, wire.ElicitRequestFormParams)
        schema = dict(params.requested_schema) if is_form else None
        url = None if is_form else params.url
        reply = await self._host.ask(Question(self._server, params.message, schema, url))
        return wire.ElicitResult(action=reply.action, content=reply.content)

    async def log(self, params: wire.LoggingMessageNotificationParams) -> None:
        text = params.data if isinstance(params.data, str) else repr(params.data)
        self._life.listener.log(Progress(output=f"[{params.level}] {cut(text, _LONGEST_LOG)}\n"))

    async def message(self, message: IncomingMessage) -> None:
        if (changed := _CHANGES.get(type(message))) is not None:
            self._life.listener.stale(changed)


def _causes(error: BaseException) -> Iterator[str]:
    """What really happened, out of the groups that task groups make."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _causes(inner)
    elif isinstance(error, MCPError) and error.error.message == CLOSED:
        yield "it closed the connection"
    else:
        yield words_of(error)


def _version() -> str:
    try:
        return version("outrider")
    except PackageNotFoundError:
        return "0"
