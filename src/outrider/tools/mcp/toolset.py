"""All MCP servers of an engine: opened together, used side by side, and closed with everything that they started."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256
from importlib import import_module
from typing import Annotated, Any, Self

from outrider.errors import ConfigurationError
from outrider.processes.spawner import Spawner
from outrider.tools.context import ToolContext
from outrider.tools.mcp.config import ServerConfig
from outrider.tools.mcp.connection import Definition, Hold, Host, Ledger, ServerFault, accept, has_changed
from outrider.tools.mcp.server import News, Server, Status
from outrider.tools.tool import Policy, Tool, ToolResult


class McpTool(Tool):
    """A tool of a server. It is never taken for read-only on the server's word, and asks again once it `has_changed`
    since somebody last looked at it."""

    definition: Definition
    has_changed: bool

    @property
    def fingerprint(self) -> str:
        return self.definition.fingerprint

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> str | ToolResult:
        return await self.function(self.definition, arguments, context)


def tool_of(
    server: Server, definition: Definition, name: str, *, has_changed: bool, policy: Policy, timeout: float
) -> McpTool:
    def evaluate(base: Policy, arguments: dict[str, Any]) -> Policy:
        return "ask" if tool.has_changed and base == "allow" else base

    tool = McpTool.from_schema(
        name,
        definition.description or definition.title or definition.name,
        definition.parameters,
        server.call,
        policy=policy,
        evaluate_policy=evaluate,
        timeout=timeout,
    )
    tool.definition = definition
    tool.has_changed = has_changed
    return tool


def resource_tools(servers: Mapping[str, Server], policy: Policy) -> list[Tool]:
    """For the model to see and read what servers offer."""

    async def list_mcp_resources(
        server: Annotated[str | None, "the MCP server to ask; all of them if left out"] = None,
    ) -> str:
        """List what MCP servers offer to read: files, records, documents, each with its URI."""
        asked = [_named(servers, server)] if server is not None else list(servers.values())
        lines: list[str] = []
        for one in asked:
            try:
                lines += [_line(found) for found in await one.list_resources()]
            except ServerFault as fault:
                lines.append(f"{one.name}: {fault.message}")
        return "\n".join(lines) or "There are no resources."

    async def read_mcp_resource(
        server: Annotated[str, "the MCP server that offers it"],
        uri: Annotated[str, "as list_mcp_resources gave it; parts in braces filled in"],
    ) -> ToolResult:
        """Read a resource of an MCP server by its URI."""
        return await _named(servers, server).read_resource(uri)

    return [Tool(list_mcp_resources, policy=policy), Tool(read_mcp_resource, policy=policy)]


def _named(servers: Mapping[str, Server], name: str) -> Server:
    if name not in servers:
        raise ServerFault(f"there is no MCP server {name!r}; there are: {', '.join(servers) or 'none'}")
    return servers[name]


def _line(resource: Any) -> str:
    about = " · ".join(word for word in (resource.mime_type, resource.description) if word)
    kind = "template " if resource.is_template else ""
    return f"{resource.server}: {kind}{resource.uri} ({resource.name}){f' {about}' if about else ''}"


LONGEST = 64
_MARK = 8  # letters of a hash, which tells apart what would have one name
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")

Origin = tuple[str, str]
"""A server's name and the tool's own."""


def tool_names(origins: Iterable[Origin]) -> dict[Origin, str]:
    """A name for each, the same whatever the order; what would collide or be too long gets a mark of its own."""
    alike: defaultdict[str, list[Origin]] = defaultdict(list)
    for origin in sorted(set(origins)):
        alike[_plain(origin)].append(origin)
    names: dict[Origin, str] = {}
    for plain, found in alike.items():
        exact = [origin for origin in found if f"mcp__{origin[0]}__{origin[1]}" == plain and len(plain) <= LONGEST]
        keeps = exact[0] if exact else (found[0] if len(found) == 1 and len(plain) <= LONGEST else None)
        names.update((origin, plain if origin == keeps else _marked(plain, origin)) for origin in found)
    return names


def _plain(origin: Origin) -> str:
    server, tool = origin
    return _FOREIGN.sub("_", f"mcp__{server}__{tool}")


def _marked(plain: str, origin: Origin) -> str:
    mark = sha256("\0".join(origin).encode("utf-8", "surrogatepass")).hexdigest()[:_MARK]
    return f"{plain[: LONGEST - _MARK - 1]}_{mark}"


def _tell_nobody(news: News) -> None:
    """For those who look at the states instead."""


class McpServers:
    """Belongs to one event loop. Giving a configuration is consent to start its program or to visit its address:
    whether a workspace's own configuration may count is decided before.

    `ledger` remembers each tool's fingerprint; `policy` is what a tool's calls need unless its definition changed,
    which always asks."""

    def __init__(
        self,
        configs: Iterable[ServerConfig],
        host: Host,
        *,
        ledger: Ledger | None = None,
        policy: Policy = "ask",
        tell: Callable[[News], None] = _tell_nobody,
    ) -> None:
        self._host = host
        self._spawner = Spawner()
        self._ledger: Ledger = {} if ledger is None else ledger
        self._policy: Policy = policy
        self._closing = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self.servers: dict[str, Server] = {}
        for config in configs:
            if config.name in self.servers:
                raise ConfigurationError(f"two MCP servers are called {config.name!r}")
            self.servers[config.name] = Server(config, host, tell)

    async def open(self) -> None:
        """Begin to connect to all of them; `settled` waits for the outcome. Without the SDK, ConfigurationError."""
        if self._owner is None and self.servers:
            hold = partial(await asyncio.to_thread(_load), self._spawner)
            if self._closing.is_set():
                return
            self._owner = asyncio.create_task(self._own(hold), name="MCP servers")

    async def settled(self) -> dict[str, Status]:
        """How each one stands, once none is connecting."""
        return {name: await server.settled() for name, server in self.servers.items()}

    async def close(self) -> None:
        """Returns when every connection is closed and every process has ended."""
        self._closing.set()
        if self._owner is not None:
            await asyncio.shield(self._owner)

    async def __aenter__(self) -> Self:
        await self.open()
        await self.settled()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def tools(self) -> list[McpTool]:
        """Those of every server as they are now, always in the same order."""
        origins = [(server.name, name) for server in self.servers.values() for name in server.definitions]
        names = tool_names(origins)
        return [self._tool(*origin, names[origin]) for origin in sorted(origins)]

    def resource_tools(self) -> list[Tool]:
        return resource_tools(self.servers, self._policy)

    def accept(self, tool: McpTool) -> None:
        """Somebody has looked at the tool as it is now; it counts as changed no more."""
        accept(tool.definition, self._ledger)
        tool.has_changed = False

    def _tool(self, server_name: str, tool_name: str, shown: str) -> McpTool:
        server = self.servers[server_name]
        definition = server.definitions[tool_name]
        changed = has_changed(definition, self._ledger)
        timeout = self._host.limits.call
        return tool_of(server, definition, shown, has_changed=changed, policy=self._policy, timeout=timeout)

    async def _own(self, hold: Hold) -> None:
        """The one task behind all of it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for server in self.servers.values():
                    tasks.create_task(server.own(hold, tasks), name=f"MCP server {server.name}")
                await self._closing.wait()
                for server in self.servers.values():
                    server.close()
        finally:
            await self._spawner.close()


def _load() -> Callable[..., Awaitable[None]]:
    """The SDK takes a second to import, so this is done when it is needed, beside the event loop."""
    try:
        return import_module("outrider.tools.mcp.sdk_session").hold
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"MCP servers need the extra `mcp` ({error.name} is missing): pip install 'outrider[mcp]'"
        ) from error
