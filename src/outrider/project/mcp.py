"""The MCP servers of an engine: the user's own, and those of a trusted workspace that were approved as they are.

They connect beside everything else: the first turn waits a moment for them, later ones find what has come since."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import msgspec

from outrider.errors import OutriderError
from outrider.processes.launch import child_environment
from outrider.project.trust import SERVERS, WorkspaceTrust, server_items
from outrider.tools.mcp.config import ConfigFile, ServerConfig, read_config
from outrider.tools.mcp.connection import Ask, Host, Prompt, PromptMessage
from outrider.tools.mcp.server import Status
from outrider.tools.mcp.toolset import McpServers, McpTool
from outrider.tools.tool import Tool

USERS = "the user"


class ChosenServers(msgspec.Struct, frozen=True):
    """`origins` says where each server comes from, by its name; `notices` why others may not be started."""

    servers: tuple[ServerConfig, ...] = ()
    origins: dict[str, str] = {}
    notices: tuple[str, ...] = ()


def choose_servers(
    own: Mapping[str, dict[str, Any]],
    source: str,
    trust: WorkspaceTrust,
    environ: Mapping[str, str],
    keys: Collection[str],
) -> ChosenServers:
    """`own` are the user's, from `source`. `keys` are variables that hold keys for models: a workspace's server does
    not get to see them, whatever it writes."""
    users = users_servers(own, source, environ)
    entries, notices = _workspaces(trust, set(own))
    visible = {name: value for name, value in environ.items() if name not in keys}
    theirs = read_config(msgspec.json.encode({"mcpServers": entries}), visible, str(SERVERS))
    place = str(trust.project.root)
    return ChosenServers(
        servers=(*users.servers, *theirs.servers),
        origins={one.name: USERS for one in users.servers} | {one.name: place for one in theirs.servers},
        notices=(*theirs.problems, *notices),
    )


def users_servers(own: Mapping[str, dict[str, Any]], source: str, environ: Mapping[str, str]) -> ConfigFile:
    """The user's own configuration, which has the form of `.mcp.json` under another name."""
    found = read_config(msgspec.json.encode({"mcpServers": own}), environ, source)
    return msgspec.structs.replace(
        found, problems=tuple(text.replace(": mcpServers.", ": mcp.") for text in found.problems)
    )


def _workspaces(trust: WorkspaceTrust, taken: set[str]) -> tuple[dict[str, Any], list[str]]:
    entries: dict[str, Any] = {}
    notices: list[str] = []
    trusted = trust.trusted
    for item in server_items(trust.project):
        if not trusted:
            notices.append(f"{item.name} is not started: this workspace is not trusted")
        elif not trust.approves(item):
            notices.append(f"{item.name} is not started: it is new or has changed, and was not approved as it is now")
        elif item.key in taken:
            notices.append(f"{item.name} is not started: a server of your own has that name")
        else:
            entries[item.key] = msgspec.json.decode(item.approved_as)
    return entries, notices


MOST = 10_000


class KeptLedger(MutableMapping[str, str]):
    """Entries are `server/tool`; each is kept under where its server comes from, since names are not unique."""

    def __init__(self, file: Path, origins: dict[str, str]) -> None:
        self._file = file
        self._origins = origins
        self._kept = _read(file)

    def __getitem__(self, entry: str) -> str:
        return self._kept[self._place(entry)]

    def __setitem__(self, entry: str, fingerprint: str) -> None:
        self._kept[self._place(entry)] = fingerprint
        self._write()

    def __delitem__(self, entry: str) -> None:
        del self._kept[self._place(entry)]
        self._write()

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def _place(self, entry: str) -> str:
        server = max((name for name in self._origins if entry.startswith(f"{name}/")), key=len, default="")
        return f"{self._origins.get(server, '')}: {entry}"

    def _write(self) -> None:
        """Others may write at the same time: what they entered stays, unless it is about the same tool."""
        self._kept = {**_read(self._file), **self._kept}
        for oldest in list(self._kept)[:-MOST]:
            del self._kept[oldest]
        temporary = self._file.with_name(f".{self._file.name}.{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self._kept)))
        temporary.replace(self._file)


def _read(file: Path) -> dict[str, str]:
    """A file that is missing or damaged is empty: every tool counts as new then, and is asked about by its mode."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


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
