"""The MCP servers of an engine: those of the user, and those of a trusted workspace whose exact configuration was
approved.

Servers connect in a background task. The first turn waits some seconds for them; later turns use the tools
that are available then.
"""

import asyncio
import contextlib
import re
import shlex
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from outrider.errors import OutriderError
from outrider.http.transport import ProxySelector
from outrider.permissions.paths.containment import lock_file, write_private_file
from outrider.processes.launch import child_environment
from outrider.project.mcp_completion import (
    PROMPT_ARGUMENTS,
    RESOURCE_WORD,
    InputCompletion,
    complete_argument,
    complete_resource,
)
from outrider.project.trust import SERVERS_FILE, WorkspaceTrust, server_items
from outrider.tools.mcp.catalog import McpToolCatalog, summarize_servers
from outrider.tools.mcp.config import LoginFile, McpConfigFile, ServerConfig, parse_config
from outrider.tools.mcp.connection import McpHost, McpPrompt, McpResource, PromptMessage, truncate_text
from outrider.tools.mcp.requests import ServerRequests
from outrider.tools.mcp.server import McpServer, ServerStatus
from outrider.tools.mcp.toolset import McpServers, McpTool
from outrider.tools.tool import Tool
from outrider.types.messages import Message
from outrider.types.origins import make_origin
from outrider.types.parts import FilePart, TextPart, attachment_part
from outrider.types.request import ServerOverview

USER_ORIGIN = "the user"


class ChosenServers(msgspec.Struct, frozen=True):
    """The servers to start.

    - `servers`: their configurations.
    - `origins`: the origin of each server by name.
    - `notices`: the servers of the workspace that are not started, with the reason.
    - `problems`: invalid servers of the user, which the settings report too.
    """

    servers: tuple[ServerConfig, ...] = ()
    origins: dict[str, str] = {}
    notices: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def choose_servers(
    user_entries: Mapping[str, dict[str, Any]],
    source: str,
    trust: WorkspaceTrust,
    environ: Mapping[str, str],
    keys: Collection[str],
) -> ChosenServers:
    """Chooses the servers to start. `user_entries` are the user's servers from the file `source`. `keys` are
    environment variables with model API keys; a workspace server gets an error instead of their values if its
    configuration references them."""
    users = user_servers(user_entries, source, environ)
    entries, notices = _workspace_entries(trust, set(user_entries))
    visible = {name: value for name, value in environ.items() if name not in keys}
    workspace = parse_config(msgspec.json.encode({"mcpServers": entries}), visible, str(SERVERS_FILE))
    root = str(trust.project.root)
    return ChosenServers(
        servers=(*users.servers, *workspace.servers),
        origins={server.name: USER_ORIGIN for server in users.servers}
        | {server.name: root for server in workspace.servers},
        notices=(*workspace.problems, *notices),
        problems=tuple(text.removeprefix(f"{source}: ") for text in users.problems),
    )


def user_servers(user_entries: Mapping[str, dict[str, Any]], source: str, environ: Mapping[str, str]) -> McpConfigFile:
    """Parses the `mcp` table of the user's configuration, which has the format of `.mcp.json`."""
    parsed = parse_config(msgspec.json.encode({"mcpServers": user_entries}), environ, source)
    return msgspec.structs.replace(
        parsed, problems=tuple(text.replace(": mcpServers.", ": mcp.") for text in parsed.problems)
    )


def _workspace_entries(trust: WorkspaceTrust, user_names: set[str]) -> tuple[dict[str, Any], list[str]]:
    """Returns the configuration entries of approved workspace servers, and notices about the other ones."""
    entries: dict[str, Any] = {}
    notices: list[str] = []
    trusted = trust.trusted
    for item in server_items(trust.project):
        if not trusted:
            notices.append(f"{item.name} is not started: this workspace is not trusted")
        elif not trust.is_approved(item):
            notices.append(f"{item.name} is not started: it is new or has changed, and was not approved as it is now")
        elif item.key in user_names:
            notices.append(f"{item.name} is not started: your own configuration has a server with that name")
        else:
            entries[item.key] = msgspec.json.decode(item.approved_as)
    return entries, notices


MAX_LEDGER_ENTRIES = 10_000


class FileToolLedger(MutableMapping[str, str]):
    """Stores fingerprints of tool definitions in a JSON file, so that a changed tool is detected. The key is
    `server/tool` with the origin of the server, since server names are not unique."""

    def __init__(self, file: Path, origins: dict[str, str]) -> None:
        self._file = file
        self._origins = origins
        self._entries = _load_file(file)

    def __getitem__(self, entry: str) -> str:
        return self._entries[self._storage_key(entry)]

    def __setitem__(self, entry: str, fingerprint: str) -> None:
        with self._change() as entries:
            entries[self._storage_key(entry)] = fingerprint

    def __delitem__(self, entry: str) -> None:
        with self._change() as entries:
            del entries[self._storage_key(entry)]

    def __iter__(self) -> Iterator[str]:
        """Yields the entries of the own servers; the file has those of other workspaces too."""
        prefixes = [f"{origin}: " for origin in dict.fromkeys(("", *self._origins.values()))]
        for key in self._entries:
            for prefix in prefixes:
                entry = key.removeprefix(prefix)
                if key.startswith(prefix) and self._storage_key(entry) == key:
                    yield entry

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _storage_key(self, entry: str) -> str:
        server = max((name for name in self._origins if entry.startswith(f"{name}/")), key=len, default="")
        return f"{self._origins.get(server, '')}: {entry}"

    @contextlib.contextmanager
    def _change(self) -> Generator[dict[str, str]]:
        """Yields the entries of the file for a change, and writes them. Other processes change the file too: their
        entries replace those that this process has read before."""
        with lock_file(self._file):
            entries = {**self._entries, **_load_file(self._file)}
            yield entries
            for oldest in list(entries)[:-MAX_LEDGER_ENTRIES]:
                del entries[oldest]
            write_private_file(self._file, msgspec.json.format(msgspec.json.encode(entries)))
            self._entries = entries


def _load_file(file: Path) -> dict[str, str]:
    """Returns the entries; a missing or damaged file is empty. Then all tools are new, and the mode's rules decide
    about them."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


MAX_MENTIONS = 20  # resources that one input may name
MAX_EXPANSION = 200_000  # characters of a prompt or resource
_PROMPT_COMMAND = re.compile(r"/(?P<server>[\w.-]+):(?P<name>[\w./-]+)(?:\s+(?P<rest>.*))?\s*$", re.DOTALL)
_MENTION = re.compile(r"(?:^|(?<=\s))@(?P<server>[\w.-]+):(?P<uri>\S+)")


class ServerOffers(msgspec.Struct, frozen=True):
    """The prompts of MCP servers, which are commands `/SERVER:PROMPT`, and their resources, mentioned as
    `@SERVER:URI`."""

    prompts: tuple[McpPrompt, ...] = ()
    resources: tuple[McpResource, ...] = ()


def parse_prompt_arguments(prompt: McpPrompt, text: str) -> dict[str, str]:
    """Returns the arguments of a prompt: `NAME=VALUE` words, and other words in order; the last argument takes the
    rest. Raises OutriderError if a required one is missing or there are too many."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    names = [argument.name for argument in prompt.arguments]
    arguments: dict[str, str] = {}
    loose: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in names:
            arguments[name] = value
        else:
            loose.append(word)
    free = [name for name in names if name not in arguments]
    if len(loose) > len(free) and free:
        loose = [*loose[: len(free) - 1], " ".join(loose[len(free) - 1 :])]
    arguments |= dict(zip(free, loose, strict=False))
    missing_names = [
        argument.name for argument in prompt.arguments if argument.required and argument.name not in arguments
    ]
    if missing_names or (loose and not free):
        usage = " ".join(argument.name if argument.required else f"[{argument.name}]" for argument in prompt.arguments)
        problem = f"needs {', '.join(missing_names)}" if missing_names else "takes no further arguments"
        raise OutriderError(
            f"/{prompt.server}:{prompt.name} {problem}; usage: /{prompt.server}:{prompt.name} {usage}".rstrip()
        )
    return arguments


def _result_parts(server: str, messages: Sequence[PromptMessage], title: str) -> Iterator[TextPart | FilePart]:
    """Yields the messages of a server as parts of an input, marked with their origin."""
    origins = (make_origin("mcp", server),)
    several = len({message.role for message in messages}) > 1
    texts = [
        f"{message.role}: {message.content.content}" if several else message.content.content for message in messages
    ]
    text = truncate_text("\n\n".join(texts), MAX_EXPANSION)
    yield TextPart(f"{title} of the MCP server {server}:\n{text}", synthetic=True, origins=origins)
    for message in messages:
        for file in message.content.attachments:
            yield msgspec.structs.replace(attachment_part(file), origins=origins)


CONNECT_WAIT_SECONDS = 5.0  # how long the first turn waits for servers that are still connecting
UNATTENDED_WAIT_SECONDS = 30.0  # how long it waits without a user, because the first turn is often the only one
WAIT_NOTICE_SECONDS = 2.0  # a shorter wait is not reported
LISTING_WAIT_SECONDS = 2.0  # how long a turn waits for a list of tools that a server has changed


class McpServerManager:
    """Starts and stops the MCP servers of an engine. A server that crashes, hangs or floods loses its own tools only.
    With `asks`, servers may ask the users of sessions that register for it. The first turn waits `wait_seconds` for
    servers that are still connecting."""

    def __init__(
        self,
        chosen: ChosenServers,
        workspace: Path,
        ledger: Path,
        *,
        asks: bool = False,
        proxy: ProxySelector | None = None,
        logins: LoginFile | None = None,
        wait_seconds: float = CONNECT_WAIT_SECONDS,
    ) -> None:
        self._logins = logins
        self._wait_seconds = wait_seconds
        self.notices = [*chosen.problems, *chosen.notices]
        self._chosen = chosen
        self._workspace = workspace
        self._ledger = ledger
        self.requests = ServerRequests() if asks else None
        self._proxy = proxy
        self._servers: McpServers | None = None
        self._opening: asyncio.Task[None] | None = None
        self._has_opened = False  # False also if the MCP SDK is not installed
        self._has_waited = False
        self._first_tools: dict[str, frozenset[str]] = {}  # of each server, when it was first ready
        self._failure = ""  # why no server can be used
        self.switched_off: set[str] = set()  # by the user, until the engine is closed

    def open(self, environ: Mapping[str, str]) -> None:
        """Starts to connect in a background task. The mode's rules decide about calls; a changed tool needs an approval
        in addition."""
        if not self._chosen.servers:
            return
        host = McpHost(
            self._workspace,
            child_environment(environ),
            ask=self.requests.elicit if self.requests else None,
            sample=self.requests.sample if self.requests else None,
            proxy=self._proxy,
            logins=self._logins,
        )
        ledger = FileToolLedger(self._ledger, self._chosen.origins)
        self._servers = McpServers(self._chosen.servers, host, ledger=ledger, policy="allow")
        self._opening = asyncio.create_task(self._connect_all(self._servers), name="connect MCP servers")

    async def close(self) -> None:
        if self._opening is not None and self._servers is not None:
            await self._servers.close()
            await asyncio.wait([self._opening])

    async def refresh_catalog(
        self, catalog: McpToolCatalog, workspace: Path, report_wait: Callable[[float], None] | None = None
    ) -> bool:
        """Updates the tools of a session in a workspace: those of the user's servers, and those of the workspace's own
        servers. Returns whether they changed. The first call waits for connecting servers; if that takes long,
        `report_wait` is called with the seconds that are left. Later calls wait shortly for changed lists of tools."""
        if self._servers is None:
            return False
        if not self._has_waited:
            self._has_waited = True
            await self._wait_for_first_turn(report_wait)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTING_WAIT_SECONDS):
                await self._servers.wait_listed()
        return catalog.update(self._list_tools(workspace), self._servers.resource_tools())

    async def _wait_for_first_turn(self, report_wait: Callable[[float], None] | None) -> None:
        seconds_left = self._wait_seconds - WAIT_NOTICE_SECONDS
        reporter = None
        if report_wait is not None and seconds_left > 0:
            reporter = asyncio.get_running_loop().call_later(WAIT_NOTICE_SECONDS, report_wait, seconds_left)
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self.wait_until_settled()
        except TimeoutError:
            pass
        finally:
            if reporter is not None:
                reporter.cancel()

    @staticmethod
    def create_catalog(messages: Sequence[Message]) -> McpToolCatalog:
        """Creates the tool catalog of a session, with what its transcript stores."""
        return McpToolCatalog(messages)

    def describe_servers(self, workspace: Path | None = None) -> list[ServerOverview]:
        """Returns the state of each server, of all or of those for sessions in a workspace."""
        if self._servers is None:
            return []
        status = self.connection_status()
        if workspace is not None:
            status = {
                name: server_status for name, server_status in status.items() if self._serves_workspace(name, workspace)
            }
        return summarize_servers(status, self._list_tools(workspace), self._first_tools)

    def _list_tools(self, workspace: Path | None) -> list[McpTool]:
        tools = self._servers.tools() if self._servers else []
        return [
            tool
            for tool in tools
            if tool.definition.server not in self.switched_off
            and (workspace is None or self._serves_workspace(tool.definition.server, workspace))
        ]

    def accept_change(self, tool: Tool | None) -> None:
        """Records that the user approved a call of a changed tool, so that it is not reported as changed again."""
        if isinstance(tool, McpTool) and tool.has_changed and self._servers is not None:
            self._servers.accept(tool)

    def connection_status(self) -> dict[str, ServerStatus]:
        """Returns the connection status of each server by name."""
        if self._failure and self._servers:
            return dict.fromkeys(self._servers.servers, ServerStatus("failed", self._failure))
        return {name: server.status for name, server in self._servers.servers.items()} if self._servers else {}

    def reconnect(self, server: str) -> None:
        """Connects to a failed server again. Raises OutriderError for an unknown server."""
        if self._servers is None or server not in self._servers.servers:
            raise OutriderError(f"there is no MCP server {server!r}")
        self._servers.servers[server].reconnect()

    def switch_server(self, server: str, *, on: bool) -> None:
        """Switches a server on or off: its tools, prompts and resources are offered from the next turn on, or no
        longer. It stays connected. Raises OutriderError for an unknown server."""
        if self._servers is None or server not in self._servers.servers:
            raise OutriderError(f"there is no MCP server {server!r}")
        if on:
            self.switched_off.discard(server)
        else:
            self.switched_off.add(server)

    async def list_offers(self, workspace: Path | None = None) -> ServerOffers:
        """Returns the prompts and resources of all servers that are ready; a server that fails has none."""
        prompts: list[McpPrompt] = []
        resources: list[McpResource] = []
        for server in self._offered_servers(workspace):
            if server.status.state != "ready":
                continue
            with contextlib.suppress(OutriderError):
                prompts += await server.list_prompts()
            with contextlib.suppress(OutriderError):
                resources += await server.list_resources()
        return ServerOffers(tuple(prompts), tuple(resources))

    def _offered_servers(self, workspace: Path | None) -> list[McpServer]:
        """Returns the servers that are switched on, of all or of those for sessions in a workspace."""
        return [
            server
            for name, server in (self._servers.servers if self._servers else {}).items()
            if name not in self.switched_off and (workspace is None or self._serves_workspace(name, workspace))
        ]

    async def complete_input(self, text: str, workspace: Path | None = None) -> InputCompletion:
        """Completes the end of an input: an argument of `/SERVER:PROMPT`, or a value in `@SERVER:URI`. A server that
        fails has no completions."""
        servers = {server.name: server for server in self._offered_servers(workspace) if server.status.state == "ready"}
        with contextlib.suppress(OutriderError):
            if (word := RESOURCE_WORD.search(text)) and (server := servers.get(word["server"])):
                templates = [resource for resource in await server.list_resources() if resource.is_template]
                choices = await complete_resource(server.name, word["uri"], templates, server.complete_value)
                return InputCompletion(word.start(), tuple(choices))
            if (command := PROMPT_ARGUMENTS.fullmatch(text)) and (server := servers.get(command["server"])):
                prompt = next((entry for entry in await server.list_prompts() if entry.name == command["name"]), None)
                if prompt is not None:
                    completion = await complete_argument(prompt, command["rest"], server.complete_value)
                    return InputCompletion(command.start("rest") + completion.start, completion.choices)
        return InputCompletion()

    async def expand_input(self, message: Message, workspace: Path) -> None:
        """Adds the prompt of `/SERVER:PROMPT ARGUMENTS` and the resources of `@SERVER:URI` to an input that names them.
        Raises OutriderError if a server does not return one of them."""
        text = next((part.text for part in message.get_parts_by_type(TextPart) if not part.synthetic), "")
        if self._servers is None or not ("/" in text or "@" in text):
            return
        names = [server.name for server in self._offered_servers(workspace)]
        command = _PROMPT_COMMAND.match(text)
        if command is not None and command["server"] in names:
            messages = await self._get_prompt(command["server"], command["name"], command["rest"] or "")
            for part in _result_parts(command["server"], messages, "Prompt"):
                message.add_part(part)
        mentions = dict.fromkeys((match["server"], match["uri"].rstrip(".,;!?")) for match in _MENTION.finditer(text))
        for server, uri in list(mentions)[:MAX_MENTIONS]:
            if server in names:
                result = await self._servers.servers[server].read_resource(uri)
                for part in _result_parts(server, [PromptMessage("user", result)], f"Resource {uri}"):
                    message.add_part(part)

    async def _get_prompt(self, server: str, name: str, argument_text: str) -> Sequence[PromptMessage]:
        assert self._servers is not None
        connection = self._servers.servers[server]
        prompts = {prompt.name: prompt for prompt in await connection.list_prompts()}
        if name not in prompts:
            commands = ", ".join(f"/{server}:{prompt_name}" for prompt_name in sorted(prompts)) or "none"
            raise OutriderError(f"the MCP server {server} has no prompt {name!r}; it has: {commands}")
        return await connection.get_prompt(name, parse_prompt_arguments(prompts[name], argument_text))

    def _serves_workspace(self, server: str, workspace: Path) -> bool:
        origin = self._chosen.origins[server]
        return origin == USER_ORIGIN or workspace.resolve().is_relative_to(origin)

    async def _connect_all(self, servers: McpServers) -> None:
        try:
            await servers.open()
            self._has_opened = True
        except OutriderError as error:
            self._failure = error.message

    async def wait_until_settled(self) -> None:
        """Waits until no server is connecting."""
        if self._opening is not None and self._servers is not None:
            await asyncio.wait([self._opening])
            if self._has_opened:
                await self._servers.wait_settled()
