"""The MCP servers of an engine: the user's own, and those of a trusted workspace that were approved as they are.

They connect beside everything else: the first turn waits a moment for them, later ones find what has come since."""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

from outrider.app.workspace.choice import USERS, ChosenServers
from outrider.app.workspace.definitions import KeptLedger
from outrider.errors import OutriderError
from outrider.processes.environment import child_environment
from outrider.tools.mcp.definitions import Prompt
from outrider.tools.mcp.link import Ask, Host, PromptMessage
from outrider.tools.mcp.owner import Status
from outrider.tools.mcp.servers import McpServers
from outrider.tools.mcp.tools import McpTool
from outrider.tools.tool import Tool

PATIENCE = 5.0  # seconds that the first turn waits for servers that are still connecting


class Servers:
    """Open it with the engine. A server that dies, hangs or floods costs its own tools and nothing else."""

    def __init__(self, chosen: ChosenServers, workspace: Path, ledger: Path, ask: Ask | None = None) -> None:
        self.notices = list(chosen.notices)
        self._chosen = chosen
        self._workspace = workspace
        self._ledger = ledger
        self._ask = ask
        self._all: McpServers | None = None
        self._opening: asyncio.Task[None] | None = None
        self._has_opened = False  # the SDK is there
        self._has_waited = False

    def open(self, environ: Mapping[str, str]) -> None:
        """Begin to connect; nobody waits for it. The mode's rules decide about calls; a changed tool asks besides."""
        if not self._chosen.servers:
            return
        host = Host(self._workspace, child_environment(environ), ask=self._ask)
        ledger = KeptLedger(self._ledger, self._chosen.origins)
        self._all = McpServers(self._chosen.servers, host, ledger=ledger, policy="allow")
        self._opening = asyncio.create_task(self._open(self._all), name="MCP servers begin")

    async def close(self) -> None:
        if self._opening is not None and self._all is not None:
            await self._all.close()
            await asyncio.wait([self._opening])

    async def tools(self, workspace: Path) -> list[Tool]:
        """What the servers offer now to sessions in a workspace: the user's to all, its own to each. Who comes first
        waits for them, though not for long."""
        if self._all is None:
            return []
        if not self._has_waited:
            self._has_waited = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await self.settled()
        tools: list[Tool] = [tool for tool in self._all.tools() if self._serves(tool.definition.server, workspace)]
        return [*tools, *self._all.resource_tools()] if tools else tools

    def accept(self, tool: Tool | None) -> None:
        """Somebody let a tool run as it is now: it counts as changed no more."""
        if isinstance(tool, McpTool) and tool.has_changed and self._all is not None:
            self._all.accept(tool)

    def status(self) -> dict[str, Status]:
        return {name: server.status for name, server in self._all.servers.items()} if self._all else {}

    async def prompts(self) -> list[Prompt]:
        """Of every server that has some; one that fails has none."""
        found: list[Prompt] = []
        for server in self._all.servers.values() if self._all else ():
            with contextlib.suppress(OutriderError):
                found += await server.list_prompts()
        return found

    async def prompt(self, server: str, name: str, arguments: dict[str, str]) -> tuple[PromptMessage, ...]:
        if self._all is None or server not in self._all.servers:
            raise OutriderError(f"there is no MCP server {server!r}")
        return await self._all.servers[server].get_prompt(name, arguments)

    def _serves(self, server: str, workspace: Path) -> bool:
        origin = self._chosen.origins[server]
        return origin == USERS or workspace.resolve().is_relative_to(origin)

    async def _open(self, servers: McpServers) -> None:
        try:
            await servers.open()
            self._has_opened = True
        except OutriderError as error:
            self.notices.append(error.message)

    async def settled(self) -> None:
        """Returns when none is connecting any more."""
        if self._opening is not None and self._all is not None:
            await asyncio.wait([self._opening])
            if self._has_opened:
                await self._all.settled()
