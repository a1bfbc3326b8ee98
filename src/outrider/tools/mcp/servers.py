"""All MCP servers of an engine: opened together, used side by side, and closed with everything that they started."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Self

from outrider.errors import ConfigurationError
from outrider.processes.guards.spawner import Spawner
from outrider.tools.mcp.config import ServerConfig
from outrider.tools.mcp.definitions import Ledger, accept, has_changed
from outrider.tools.mcp.link import Hold, Host
from outrider.tools.mcp.names import tool_names
from outrider.tools.mcp.owner import Status
from outrider.tools.mcp.server import News, Server
from outrider.tools.mcp.tools import McpTool, resource_tools, tool_of
from outrider.tools.tool import Policy, Tool


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
        return import_module("outrider.tools.mcp.sdk.connection").hold
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"MCP servers need the extra `mcp` ({error.name} is missing): pip install 'outrider[mcp]'"
        ) from error
