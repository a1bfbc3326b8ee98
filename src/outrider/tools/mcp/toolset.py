"""The MCP servers of an engine: opened, used and closed together."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256
from importlib import import_module
from typing import Annotated, Any, Self

from outrider.errors import ConfigurationError
from outrider.processes.process import ProcessSpawner
from outrider.tools.definitions import Policy
from outrider.tools.mcp.config import ServerConfig
from outrider.tools.mcp.connection import (
    ConnectionRunner,
    FingerprintLedger,
    McpHost,
    ServerFault,
    ToolDefinition,
    accept_definition,
    has_changed,
)
from outrider.tools.mcp.server import McpServer, ServerStatus, ServerUpdate
from outrider.tools.tool import OnDemandTool, Tool, ToolContext, ToolResult
from outrider.types.origins import make_origin
from outrider.types.request import ToolSpec


class McpTool(OnDemandTool):
    """A tool of an MCP server. The server's read-only claim is ignored, and calls need approval after the definition
    has changed (`has_changed`)."""

    definition: ToolDefinition
    has_changed: bool
    sent_spec: ToolSpec | None = None
    """The definition that the model has received first; it is sent again if the server changes the tool."""

    @property
    def spec_differs(self) -> bool:
        """Whether the model has received another definition than the current one."""
        return self.sent_spec is not None and self.sent_spec != super().spec()

    def spec(self) -> ToolSpec:
        return self.sent_spec or super().spec()

    @property
    def fingerprint(self) -> str:
        """A hash of the definition; it changes when the server changes the tool."""
        return self.definition.fingerprint

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> str | ToolResult:
        return await self.function(self.definition, arguments, context)


def make_mcp_tool(
    server: McpServer, definition: ToolDefinition, name: str, *, has_changed: bool, policy: Policy, timeout: float
) -> McpTool:
    def evaluate(base: Policy, arguments: dict[str, Any]) -> Policy:
        return "ask" if tool.has_changed and base == "allow" else base

    tool = McpTool.from_schema(
        name,
        definition.description or definition.title or definition.name,
        definition.parameters,
        partial(server.call_tool, limit=timeout),  # not as an option: the time limit pauses while the user answers
        policy=policy,
        evaluate_policy=evaluate,
        origins=(make_origin("mcp", definition.server),),
        destination=f"mcp:{definition.server}",
    )
    tool.definition = definition
    tool.has_changed = has_changed
    return tool


def resource_tools(servers: Mapping[str, McpServer], policy: Policy) -> list[Tool]:
    """Returns the tools with which a model lists and reads resources."""

    async def list_mcp_resources(
        server: Annotated[str | None, "the MCP server to ask; all of them if left out"] = None,
    ) -> str:
        """List what MCP servers offer to read: files, records, documents, each with its URI."""
        selected = [_find_server(servers, server)] if server is not None else list(servers.values())
        lines: list[str] = []
        for mcp_server in selected:
            try:
                lines += [_format_resource(resource) for resource in await mcp_server.list_resources()]
            except ServerFault as fault:
                lines.append(f"{mcp_server.name}: {fault.message}")
        return "\n".join(lines) or "There are no resources."

    async def read_mcp_resource(
        server: Annotated[str, "the MCP server that offers it"],
        uri: Annotated[str, "as list_mcp_resources gave it; parts in braces filled in"],
    ) -> ToolResult:
        """Read a resource of an MCP server by its URI."""
        return await _find_server(servers, server).read_resource(uri)

    options: dict[str, Any] = {"policy": policy, "origins": ("mcp",), "destination": "mcp:"}
    return [Tool(list_mcp_resources, **options), Tool(read_mcp_resource, **options)]


def _find_server(servers: Mapping[str, McpServer], name: str) -> McpServer:
    if name not in servers:
        raise ServerFault(f"there is no MCP server {name!r}; there are: {', '.join(servers) or 'none'}")
    return servers[name]


def _format_resource(resource: Any) -> str:
    about = " · ".join(word for word in (resource.mime_type, resource.description) if word)
    kind = "template " if resource.is_template else ""
    return f"{resource.server}: {kind}{resource.uri} ({resource.name}){f' {about}' if about else ''}"


MAX_NAME_LENGTH = 64
_HASH_LENGTH = 8  # hash characters that make a name unique
_INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")

ToolOrigin = tuple[str, str]
"""Server name and tool name."""


def tool_names(origins: Iterable[ToolOrigin], prefix: str | None = None) -> dict[ToolOrigin, str]:
    """Returns a unique name per tool, independent of the order. Names that collide or are too long get a hash
    suffix. `prefix` replaces "mcp__SERVER__"."""
    by_plain_name: defaultdict[str, list[ToolOrigin]] = defaultdict(list)
    for origin in sorted(set(origins)):
        by_plain_name[_INVALID_CHARACTERS.sub("_", _full_name(origin, prefix))].append(origin)
    names: dict[ToolOrigin, str] = {}
    for plain, same_name in by_plain_name.items():
        exact = [
            origin for origin in same_name if _full_name(origin, prefix) == plain and len(plain) <= MAX_NAME_LENGTH
        ]
        owner = exact[0] if exact else (same_name[0] if len(same_name) == 1 and len(plain) <= MAX_NAME_LENGTH else None)
        names.update((origin, plain if origin == owner else _name_with_hash(plain, origin)) for origin in same_name)
    return names


def _full_name(origin: ToolOrigin, prefix: str | None) -> str:
    server, tool = origin
    return f"mcp__{server}__{tool}" if prefix is None else f"{prefix}{tool}"


def _name_with_hash(plain: str, origin: ToolOrigin) -> str:
    mark = sha256("\0".join(origin).encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{plain[: MAX_NAME_LENGTH - _HASH_LENGTH - 1]}_{mark}"


def _ignore_update(news: ServerUpdate) -> None:
    """Discards the update: the default callback."""


class McpServers:
    """All configured servers; belongs to one event loop.

    - `configs`: the servers. Passing a configuration permits starting its program or connecting to its URL, so the
      caller first checks whether the workspace is trusted.
    - `host`: what the client side provides to the servers.
    - `ledger`: stores the fingerprint of each tool.
    - `policy`: applies to calls of unchanged tools; a changed tool always needs an approval.
    - `notify`: is called with each status or list change of a server.
    """

    def __init__(
        self,
        configs: Iterable[ServerConfig],
        host: McpHost,
        *,
        ledger: FingerprintLedger | None = None,
        policy: Policy = "ask",
        notify: Callable[[ServerUpdate], None] = _ignore_update,
    ) -> None:
        self._host = host
        self._spawner = ProcessSpawner()
        self._ledger: FingerprintLedger = {} if ledger is None else ledger
        self._policy: Policy = policy
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.servers: dict[str, McpServer] = {}
        for config in configs:
            if config.name in self.servers:
                raise ConfigurationError(f"two MCP servers are called {config.name!r}")
            self.servers[config.name] = McpServer(config, host, notify)

    async def open(self) -> None:
        """Starts connecting in the background; `wait_settled` waits for the result. Raises ConfigurationError if the
        SDK is not installed."""
        if self._task is None and self.servers:
            hold = partial(await asyncio.to_thread(_load_sdk), self._spawner)
            if self._closing.is_set():
                return
            self._task = asyncio.create_task(self._run_servers(hold), name="MCP servers")

    async def wait_settled(self) -> dict[str, ServerStatus]:
        """Waits until no server is connecting and returns the status of each."""
        return {name: await server.wait_settled() for name, server in self.servers.items()}

    async def wait_listed(self) -> None:
        """Waits until the tools of all servers that have reported a change are read again."""
        for server in self.servers.values():
            await server.wait_listed()

    async def close(self) -> None:
        """Returns after all connections are closed and all processes have ended."""
        self._closing.set()
        if self._task is not None:
            await asyncio.shield(self._task)

    async def __aenter__(self) -> Self:
        await self.open()
        await self.wait_settled()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def tools(self) -> list[McpTool]:
        """Returns the current tools of all servers in a stable order."""
        origins = [(server.name, name) for server in self.servers.values() for name in server.definitions]
        names = tool_names(origins)
        return [self._make_tool(*origin, names[origin]) for origin in sorted(origins)]

    def resource_tools(self) -> list[Tool]:
        return resource_tools(self.servers, self._policy)

    def accept(self, tool: McpTool) -> None:
        """Marks the current definition as reviewed; its calls no longer need an approval because of a
        change."""
        accept_definition(tool.definition, self._ledger)
        tool.has_changed = False

    def _make_tool(self, server_name: str, tool_name: str, name: str) -> McpTool:
        server = self.servers[server_name]
        definition = server.definitions[tool_name]
        changed = has_changed(definition, self._ledger)
        timeout = self._host.limits.call
        return make_mcp_tool(server, definition, name, has_changed=changed, policy=self._policy, timeout=timeout)

    async def _run_servers(self, hold: ConnectionRunner) -> None:
        """Runs all servers in one task group until `close`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for server in self.servers.values():
                    tasks.create_task(server.run(hold, tasks), name=f"MCP server {server.name}")
                await self._closing.wait()
                for server in self.servers.values():
                    server.close()
        finally:
            await self._spawner.close()


def _load_sdk() -> Callable[..., Awaitable[None]]:
    """Imports the SDK adapter; called in a thread, because the import takes about one second."""
    try:
        return import_module("outrider.tools.mcp.sdk_session").run_connection
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"MCP servers need the extra `mcp` ({error.name} is missing): pip install 'outrider[mcp]'"
        ) from error
