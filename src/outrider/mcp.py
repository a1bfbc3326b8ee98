"""Public module of the MCP client: the tools of MCP servers for `run` and `Engine`, with filters, prefixes and
approvals.

It needs the extra `mcp`.
"""

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Never, Self, cast

from outrider._sync import describe_exception
from outrider.config.providers import proxy_for
from outrider.errors import CallbackError, ConfigurationError, OutriderError
from outrider.processes.launch import child_environment
from outrider.tools.definitions import Policy
from outrider.tools.mcp.config import HttpServer, OAuthClient, ServerConfig, ServerLimits, StdioServer, parse_config
from outrider.tools.mcp.connection import AskUser, Elicitation, ElicitationReply, McpHost, ServerFault, has_changed
from outrider.tools.mcp.server import McpServer, ServerStatus
from outrider.tools.mcp.toolset import McpServers, McpTool, make_mcp_tool, resource_tools, tool_names
from outrider.tools.tool import Tool
from outrider.types.validate import check_names

__all__ = [
    "Elicitation",
    "ElicitationReply",
    "HttpServer",
    "McpTool",
    "McpToolset",
    "OAuthClient",
    "ServerFault",
    "ServerLimits",
    "ServerStatus",
    "StdioServer",
    "read_mcp_config",
]

ToolFilter = Collection[str] | Callable[[str], bool]
"""Names of tools, which may have the wildcards * and ?, or a function that takes a name."""


class McpToolset:
    """The tools of one MCP server, for as long as the toolset is open. Open it with `async with`, and pass `tools` to
    `run` or `Engine`.

    - `server`: the server. Passing it to a toolset permits starting its program or connecting to its URL.
    - `include`, `exclude`: select tools by their names on the server.
    - `prefix`: what the model sees before a name: "mcp__SERVER__" by default, "" for none.
    - `approval`: True if every call needs approval, or a filter of the tools whose calls do. A tool whose definition
      changed while the toolset was open always needs it.
    - `limits`: time and size limits of the connection.
    - `environment`: the environment of the program; by default the variables of this process without keys and tokens.
    - `workspace`: the folder in which the program runs; by default the current folder.
    - `ask`: answers questions of the server.
    """

    def __init__(
        self,
        server: ServerConfig,
        *,
        include: ToolFilter | None = None,
        exclude: ToolFilter = (),
        prefix: str | None = None,
        approval: bool | ToolFilter = False,
        limits: ServerLimits | None = None,
        environment: Mapping[str, str] | None = None,
        workspace: str | Path | None = None,
        ask: AskUser | None = None,
        **unknown: Never,
    ) -> None:
        check_names("McpToolset()", unknown, _TOOLSET_ARGUMENTS)
        if not isinstance(server, StdioServer | HttpServer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"McpToolset takes one server, StdioServer(…) or HttpServer(…), got {type(server).__name__}"
            )
        for name, value in (("include", include), ("exclude", exclude), ("approval", approval)):
            if isinstance(value, str):
                raise ConfigurationError(f"McpToolset({name}={value!r}): write a list of names, [{value!r}]")
            if not _is_filter(value):
                raise ConfigurationError(f"McpToolset({name}={value!r}): write a list of names, or a function of one")
        if prefix is not None and not isinstance(prefix, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"McpToolset(prefix={prefix!r}): write a string, such as prefix='files_'")
        if limits is not None and not isinstance(limits, ServerLimits):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"McpToolset(limits={limits!r}): write limits=ServerLimits(call=60)")
        if environment is not None and not isinstance(environment, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError("McpToolset(environment=…): write a dict of strings, such as {'PATH': '/usr/bin'}")
        if not isinstance(workspace, str | Path | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"McpToolset(workspace={workspace!r}): write the path of a folder")
        if ask is not None and not callable(ask):
            raise ConfigurationError(f"McpToolset(ask={ask!r}): write a function that takes an Elicitation")
        self.server = server
        self._include = include
        self._exclude = exclude
        self._prefix = prefix
        self._approval = approval
        self._ledger: dict[str, str] = {}
        self._limits = limits or ServerLimits()
        self._environment = child_environment(os.environ) if environment is None else environment
        self._workspace = Path(workspace or Path.cwd())
        self._ask = ask
        self._servers: McpServers | None = None

    async def __aenter__(self) -> Self:
        host = McpHost(self._workspace, self._environment, self._limits, self._ask, proxy=proxy_for)
        servers = McpServers([self.server], host, ledger=self._ledger)
        await servers.open()
        self._servers = servers
        status = (await servers.wait_settled())[self.server.name]
        if status.state != "ready":
            await self.__aexit__()
            raise OutriderError(f"the MCP server {self.server.name!r} cannot be used: {status.error or status.state}")
        try:
            self._check_filters()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    def _check_filters(self) -> None:
        """Raises ConfigurationError for the name of a tool that the server does not have: a misspelled name would
        select no tools, or let a tool run without approval. Patterns may match nothing, because programs share them
        between servers."""
        available = sorted(self._connection.definitions)
        for argument, chosen in (("include", self._include), ("exclude", self._exclude), ("approval", self._approval)):
            if isinstance(chosen, bool) or chosen is None or callable(chosen):
                continue
            for name in chosen:
                if name not in available and not any(sign in name for sign in "*?["):
                    raise ConfigurationError(
                        f"McpToolset({argument}=…): the server {self.server.name!r} has no tool {name!r}; it has "
                        f"{', '.join(available) or 'none'}"
                    )
        has_choice = self._include is None or callable(self._include) or bool(self._include)  # else resources only
        if available and has_choice and not any(map(self._is_selected, available)):
            raise ConfigurationError(
                f"McpToolset(include=…, exclude=…) selects no tool of the server {self.server.name!r}; it has "
                f"{', '.join(available)}"
            )

    async def __aexit__(self, *_: object) -> None:
        servers, self._servers = self._servers, None
        if servers is not None:
            await servers.close()

    @property
    def tools(self) -> list[Tool]:
        """The selected tools of those that the server lists now."""
        selected = [name for name in sorted(self._connection.definitions) if self._is_selected(name)]
        names = self._name_tools(selected)
        return [self._make_tool(name, names[name]) for name in selected]

    @property
    def resource_tools(self) -> list[Tool]:
        """Two tools with which a model lists and reads the resources of the server."""
        connection = self._connection
        return resource_tools({connection.name: connection}, "ask" if self._approval is True else "allow")

    @property
    def status(self) -> ServerStatus:
        """The state of the connection, and the cause of its last failure."""
        return self._connection.status

    @property
    def _connection(self) -> McpServer:
        if self._servers is None:
            raise ConfigurationError(f"the toolset of {self.server.name!r} is not open; use it inside `async with`")
        return self._servers.servers[self.server.name]

    def _is_selected(self, name: str) -> bool:
        included = self._include is None or _matches("include", self._include, name)
        return included and not _matches("exclude", self._exclude, name)

    def _name_tools(self, selected: Collection[str]) -> dict[str, str]:
        names = tool_names([(self.server.name, name) for name in selected], self._prefix)
        return {name: full_name for (_, name), full_name in names.items()}

    def _make_tool(self, name: str, full_name: str) -> McpTool:
        definition = self._connection.definitions[name]
        return make_mcp_tool(
            self._connection,
            definition,
            full_name,
            has_changed=has_changed(definition, self._ledger),
            policy=self._policy(name),
            timeout=self._limits.call,
        )

    def _policy(self, name: str) -> Policy:
        asks = self._approval if isinstance(self._approval, bool) else _matches("approval", self._approval, name)
        return "ask" if asks else "allow"


_TOOLSET_ARGUMENTS = ("include", "exclude", "prefix", "approval", "limits", "environment", "workspace", "ask")


def _is_filter(value: Any) -> bool:
    if value is None or isinstance(value, bool) or callable(value):
        return True
    return isinstance(value, Collection) and all(isinstance(name, str) for name in cast("Collection[Any]", value))


def _matches(argument: str, chosen: ToolFilter, name: str) -> bool:
    if not callable(chosen):
        return any(fnmatchcase(name, pattern) for pattern in chosen)
    where = f"the function {argument} of McpToolset"
    try:
        selected: object = chosen(name)
    except Exception as error:
        raise CallbackError(where, f"failed for {name!r} ({describe_exception(error)})") from error
    if inspect.iscoroutine(selected):  # it would be true for every tool
        selected.close()
        raise CallbackError(where, "is async; it must be a plain function, because `tools` is read at once")
    return bool(selected)


def read_mcp_config(path: str | Path, environment: Mapping[str, str] | None = None) -> list[ServerConfig]:
    """Reads the servers of a `.mcp.json`. Raises ConfigurationError if the file or one of its entries is invalid."""
    if not isinstance(path, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"read_mcp_config() takes the path of a file, such as '.mcp.json', got {path!r}")
    file = Path(path)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror or error}") from error
    config = parse_config(content, os.environ if environment is None else environment, str(file))
    if config.problems:
        raise ConfigurationError("; ".join(config.problems))
    return list(config.servers)
