"""Lists, adds, removes, imports and tries the user's MCP servers, and logs in to them."""

import asyncio
import contextlib
import re
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from outrider.config.file import read_servers_file
from outrider.config.providers import KEY_VARIABLES, proxy_for
from outrider.config.settings import Settings
from outrider.errors import ConfigurationError, OutriderError
from outrider.permissions.paths.containment import write_private_file
from outrider.processes.launch import child_environment
from outrider.project.mcp import ChosenServers, choose_servers
from outrider.project.trust import SERVERS_FILE, WorkspaceTrust, find_project
from outrider.tools.mcp.config import HttpServer, LoginFile, ServerConfig, ServerLimits, StoredLogin, parse_config
from outrider.tools.mcp.connection import McpHost
from outrider.tools.mcp.toolset import McpServers
from outrider.types.validate import is_object

if TYPE_CHECKING:
    from outrider.tools.mcp.sdk_oauth import LoginRedirect


class ConfiguredServer(msgspec.Struct, frozen=True):
    """A server with the file that configures it (`origin`) and the state of its login: "", "none", "stored", "by
    header" or "more rights needed"."""

    name: str
    address: str
    origin: str
    login: str


class ServerReport(msgspec.Struct, frozen=True):
    """What a server offers, or the error why it cannot be used."""

    name: str
    error: str = ""
    tools: tuple[tuple[str, str], ...] = ()  # names and descriptions
    prompts: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()


class EndedLogin(msgspec.Struct, frozen=True):
    """A login that was deleted. `problem` is the reason why its tokens were not revoked, "" if they were."""

    problem: str = ""

    @property
    def text(self) -> str:
        return f"its tokens were not revoked: {self.problem}" if self.problem else "its tokens were revoked"


def list_configured(settings: Settings) -> tuple[list[ConfiguredServer], tuple[str, ...]]:
    """Returns the servers of the user and of the folder, and notices about those that are not used."""
    chosen, logins = _choose(settings), LoginFile(settings.folders.logins_file)
    servers = [
        ConfiguredServer(server.name, server.display_address, chosen.origins[server.name], _login_state(server, logins))
        for server in chosen.servers
    ]
    return servers, chosen.notices


def add_entry(
    file: Path, name: str, entry: dict[str, Any], environ: Mapping[str, str], *, replace: bool = False
) -> None:
    """Adds a server to a file in the format of `.mcp.json`. `environ` has the variables that the entry names. Raises
    ConfigurationError if the entry is invalid, or if the name is taken and `replace` is False."""
    document = _read_document(file)
    servers: dict[str, Any] = document.setdefault("mcpServers", {})
    if name in servers and not replace:
        raise ConfigurationError(f"{file} has a server {name!r} already; --force replaces it")
    parsed = parse_config(msgspec.json.encode({"mcpServers": {name: entry}}), environ, "the new server")
    if parsed.problems:
        raise ConfigurationError(parsed.problems[0])
    servers[name] = entry
    _write_document(file, document)


async def remove_entry(settings: Settings, file: Path, name: str) -> "EndedLogin | None":
    """Removes a server from a file. If it is the user's file, also deletes the login and returns how that ended."""
    document = _read_document(file)
    entry = document.get("mcpServers", {}).pop(name, None)
    if entry is None:
        where = f"; it is in {settings.folders.config_file}" if name in settings.mcp else ""
        raise ConfigurationError(f"{file} has no server {name!r}{where}")
    _write_document(file, document)
    if not isinstance(url := entry.get("url"), str) or file != settings.folders.servers_file:
        return None
    parsed = parse_config(msgspec.json.encode({"mcpServers": {name: entry}}), settings.environ, str(file)).servers
    ended = await _end_login(settings, parsed[0]) if parsed else None
    LoginFile(settings.folders.logins_file).write_login(url, None)
    return ended


def project_file(workspace: Path) -> Path:
    return workspace / SERVERS_FILE


async def try_servers(
    settings: Settings, name: str = "", *, limits: ServerLimits | None = None
) -> AsyncIterator[ServerReport]:
    """Connects to one server or to all, and reports on each."""
    host = msgspec.structs.replace(_make_host(settings), limits=limits or ServerLimits())
    async with McpServers(_select(settings, name), host) as servers:
        for server_name, status in (await servers.wait_settled()).items():
            if status.state != "ready":
                yield ServerReport(server_name, status.error or status.state)
                continue
            server = servers.servers[server_name]
            definitions = [tool.definition for tool in servers.tools() if tool.definition.server == server_name]
            prompts: tuple[str, ...] = ()
            resources: tuple[str, ...] = ()
            with contextlib.suppress(OutriderError):
                prompts = tuple(prompt.name for prompt in await server.list_prompts())
            with contextlib.suppress(OutriderError):
                resources = tuple(resource.name for resource in await server.list_resources())
            tools = tuple((definition.name, definition.description) for definition in definitions)
            yield ServerReport(server_name, "", tools, prompts, resources)


async def log_in(settings: Settings, name: str, show: Callable[[str], Awaitable[None]]) -> bool:
    """Logs in to a server. `show` receives the address that the user visits. Returns False if the server needs no
    login."""
    from outrider.tools.mcp.sdk_oauth import LoginRedirect  # lazy: the SDK is large

    async with LoginRedirect(show, _callback_port(settings, name)) as redirect:
        return await _log_in_with(settings, name, redirect)


def _callback_port(settings: Settings, name: str) -> int:
    """Returns the port at which a login must end, 0 for any."""
    (server,) = _select(settings, name)
    return server.oauth.callback_port if isinstance(server, HttpServer) and server.oauth else 0


async def _log_in_with(settings: Settings, name: str, redirect: "LoginRedirect") -> bool:
    from outrider.tools.mcp.sdk_oauth import LOGIN_TIMEOUT, check_login_kind

    (server,) = _select(settings, name)
    address = check_login_kind(server).url
    logins = LoginFile(settings.folders.logins_file)
    before, is_ready = logins.read_login(address), False
    # A login starts from the beginning even if there are tokens: the user may want another account or more rights, and
    # the authorization server may have deleted the registration of Outrider.
    logins.write_login(address, StoredLogin(wanted_scope=before.wanted_scope))
    try:
        limits = ServerLimits(startup=LOGIN_TIMEOUT + 60, reconnects=0)
        host = msgspec.structs.replace(_make_host(settings), limits=limits, redirect=redirect)
        async with McpServers([server], host) as servers:
            status = (await servers.wait_settled())[server.name]
        is_ready = status.state == "ready"
    finally:
        if not is_ready:  # for example because the user cancelled the login
            logins.write_login(address, before if before.tokens else None)
    if not is_ready:
        raise OutriderError(f"{server.name}: {status.error or status.state}")
    return bool(logins.read_login(address).tokens)


LOGIN_PAGE_SECONDS = 30.0  # until a server has named the page of its login


class ServerLogins:
    """Logins at MCP servers for a front end that shows their pages in a browser. Close it with the front end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open: dict[str, tuple[LoginRedirect, asyncio.Task[None]]] = {}  # logins that are not finished
        self._lock = asyncio.Lock()
        self.errors: dict[str, str] = {}
        """Why the last login at a server failed, by name."""

    @property
    def open_names(self) -> tuple[str, ...]:
        return tuple(self._open)

    def list_servers(self) -> list[ConfiguredServer]:
        """Returns the servers with the states of their logins."""
        return list_configured(self._settings)[0]

    async def start(self, name: str) -> str:
        """Starts a login, in place of one that is not finished, and returns the address of the page on which the user
        logs in; it is empty if the server needs no login. Raises OutriderError if the server fails."""
        _select(self._settings, name)
        await asyncio.to_thread(import_module, "outrider.tools.mcp.sdk_oauth")  # the SDK takes a second to load
        from outrider.tools.mcp.sdk_oauth import LoginRedirect

        page: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def show(address: str) -> None:
            if not page.done():
                page.set_result(address)

        redirect = LoginRedirect(show, _callback_port(self._settings, name))
        async with self._lock:
            await self._cancel(name)
            task = asyncio.create_task(self._finish(name, redirect), name=f"login at the MCP server {name}")
            self._open[name] = redirect, task
        await asyncio.wait([page, task], timeout=LOGIN_PAGE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if page.done():
            return page.result()
        if not task.done():
            await self._cancel(name)
            raise OutriderError(f"{name}: the server named no login page within {LOGIN_PAGE_SECONDS:g} s")
        if name in self.errors:
            raise OutriderError(self.errors[name])
        return ""

    def take_address(self, name: str, address: str) -> None:
        """Finishes a login with the address that the user's browser was redirected to. A browser on another machine
        cannot open this address itself. Raises OutriderError if no login is open or the address is another one."""
        if name not in self._open:
            raise OutriderError(f"no login at {name} is open; start it again")
        self._open[name][0].take_address(address)

    async def log_out(self, name: str) -> EndedLogin | None:
        """Deletes the login at a server and revokes its tokens. Returns None if there is none."""
        self.errors.pop(name, None)
        return await log_out(self._settings, name)

    async def aclose(self) -> None:
        for name in self.open_names:
            await self._cancel(name)

    async def _finish(self, name: str, redirect: "LoginRedirect") -> None:
        self.errors.pop(name, None)
        try:
            async with redirect:
                await _log_in_with(self._settings, name, redirect)
        except OutriderError as error:
            self.errors[name] = error.message
        finally:
            self._open.pop(name, None)

    async def _cancel(self, name: str) -> None:
        if name in self._open:
            _, task = self._open.pop(name)
            task.cancel()
            await asyncio.wait([task])


async def log_out(settings: Settings, name: str) -> EndedLogin | None:
    """Deletes the login at a server and revokes its tokens at the authorization server. Returns None if there is
    none."""
    (server,) = _select(settings, name)
    return await _end_login(settings, server)


async def _end_login(settings: Settings, server: ServerConfig) -> EndedLogin | None:
    logins = LoginFile(settings.folders.logins_file)
    if not isinstance(server, HttpServer) or not logins.read_login(server.url).tokens:
        return None
    if any(name.lower() == "authorization" for name in server.headers):
        logins.write_login(server.url, None)
        return EndedLogin("the server has another login in its configuration now")
    try:
        await asyncio.to_thread(import_module, "outrider.tools.mcp.sdk_http")  # the SDK takes a second to load
        from outrider.tools.mcp.sdk_http import end_login
    except ImportError:
        logins.write_login(server.url, None)
        return EndedLogin("the extra `mcp` is not installed")
    return EndedLogin(await end_login(server, _make_host(settings)))


def _make_host(settings: Settings) -> McpHost:
    return McpHost(
        settings.workspace,
        child_environment(settings.environ),
        proxy=proxy_for,
        logins=LoginFile(settings.folders.logins_file),
    )


def _choose(settings: Settings) -> ChosenServers:
    trust = WorkspaceTrust(find_project(settings.workspace, settings.home_folder), settings.folders.trust_file)
    return choose_servers(settings.mcp, str(settings.folders.config_file), trust, settings.environ, KEY_VARIABLES)


def _select(settings: Settings, name: str) -> list[ServerConfig]:
    chosen = _choose(settings)
    selected = [server for server in chosen.servers if name in ("", server.name)]
    if selected:
        return selected
    if not name:
        raise ConfigurationError("there are no MCP servers; add one with `outrider mcp add`")
    named = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
    reasons = [notice for notice in (*chosen.notices, *settings.notices) if named.search(notice)]
    names = ", ".join(server.name for server in chosen.servers) or "none"
    raise ConfigurationError(reasons[0] if reasons else f"there is no MCP server {name!r}; configured: {names}")


def _login_state(server: ServerConfig, logins: LoginFile) -> str:
    if not isinstance(server, HttpServer):
        return ""
    if any(name.lower() == "authorization" for name in server.headers):
        return "by header"
    stored = logins.read_login(server.url)
    if stored.wanted_scope:
        return "more rights needed"
    return "stored" if stored.tokens else "none"


def _read_document(file: Path) -> dict[str, Any]:
    read_servers_file(file)  # raises ConfigurationError for a file that must not be overwritten
    try:
        return msgspec.json.decode(file.read_bytes() or b"{}", type=dict[str, Any])
    except FileNotFoundError:
        return {}


def _write_document(file: Path, document: dict[str, Any]) -> None:
    write_private_file(file, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


FOREIGN_FILES = (
    ".claude.json",
    ".claude/settings.json",
    ".config/Claude/claude_desktop_config.json",
    "Library/Application Support/Claude/claude_desktop_config.json",
    "AppData/Roaming/Claude/claude_desktop_config.json",
    ".cursor/mcp.json",
    ".codeium/windsurf/mcp_config.json",
    ".codex/config.toml",
    ".gemini/settings.json",
    ".config/opencode/opencode.json",
    ".config/Code/User/mcp.json",
    ".config/zed/settings.json",
)
"""Files below the home folder: Claude Code, Claude Desktop, Cursor, Windsurf, Codex, Gemini CLI, opencode, VS Code and
Zed."""
_TABLES = ("mcpServers", "mcp_servers", "servers", "context_servers", "mcp")
_MAX_BYTES = 16_000_000  # Claude Code stores much else in its file


def import_servers(settings: Settings, file: str = "", *, dry_run: bool = False) -> list[str]:
    """Adds the servers of other tools' files to the user's. Returns a line for each server that was found."""
    target = settings.folders.servers_file
    document = _read_document(target)
    servers: dict[str, Any] = document.setdefault("mcpServers", {})
    candidates = [settings.home_folder / name for name in FOREIGN_FILES]
    lines: list[str] = []
    for path in [Path(file)] if file else [path for path in candidates if path.is_file()]:
        try:
            entries = read_foreign_file(path, settings.workspace)
        except ConfigurationError as error:
            if file:
                raise
            lines.append(f"not imported: {error.message}")
            continue
        for name, entry in entries.items():
            if servers.get(name) == entry:
                lines.append(f"{name} of {path} is there already")
            elif name in servers:
                lines.append(f"{name} of {path} is not imported: another server has that name")
            else:
                servers[name] = entry
                lines.append(f"{name} was imported from {path}{_missing_inputs(entry)}")
    if lines and not dry_run:
        _write_document(target, document)
    return lines


def read_foreign_file(path: Path, workspace: Path | None = None) -> dict[str, dict[str, Any]]:
    """Returns the servers of a file in the format of `.mcp.json`, including those that Claude Code stores for the
    folder `workspace`. Raises ConfigurationError if it cannot be read."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigurationError(f"{path}: is too large")
        content = path.read_bytes()
        document: Any = (
            tomllib.loads(content.decode())
            if path.suffix == ".toml"
            else msgspec.json.decode(_without_comments(content))
        )
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path}: is not valid: {error}") from error
    tables = [document.get(name) for name in _TABLES] if is_object(document) else []
    empty: dict[str, Any] = {}
    table = dict(next((table for table in tables if is_object(table)), empty))
    projects: Any = document.get("projects") if is_object(document) else None
    if workspace is not None and is_object(projects) and is_object(project := projects.get(str(workspace))):
        table |= project.get("mcpServers") or {}
    servers = {str(name): _convert_entry(entry) for name, entry in table.items() if is_object(entry)}
    return {name: entry for name, entry in servers.items() if entry}


def _convert_entry(entry: dict[str, Any]) -> dict[str, Any]:
    command: Any = entry.get("command")
    arguments: Any = entry.get("args", [])
    if is_object(command):  # Zed
        command, arguments, entry = command.get("path"), command.get("args", []), {**entry, **command}
    if isinstance(command, list):  # opencode
        command_line = cast("list[Any]", command)
        command, arguments = (command_line[0] if command_line else None), command_line[1:]
    converted: dict[str, Any] = {}
    if isinstance(command, str) and command:
        converted = {"command": command, "args": [_convert_variables(str(argument)) for argument in arguments]}
        if is_object(env := entry.get("env") or entry.get("environment")):
            converted["env"] = {str(name): _convert_variables(str(value)) for name, value in env.items()}
    elif isinstance(url := entry.get("httpUrl") or entry.get("url") or entry.get("serverUrl"), str):
        converted = {"type": "sse" if entry.get("type") == "sse" else "http", "url": url}
        if is_object(headers := entry.get("headers") or entry.get("http_headers")):
            converted["headers"] = {str(name): _convert_variables(str(value)) for name, value in headers.items()}
        if isinstance(variable := entry.get("bearer_token_env_var"), str):  # Codex
            converted.setdefault("headers", {})["Authorization"] = f"Bearer ${{{variable}}}"
    if converted and (entry.get("disabled") is True or entry.get("enabled") is False):
        converted["disabled"] = True
    return converted


_FOREIGN_VARIABLE = re.compile(r"\$?\{env:(\w+)\}")
_FOREIGN_INPUT = re.compile(r"\$\{input:[^}]*\}")


def _convert_variables(text: str) -> str:
    """Returns the text with variables of VS Code and opencode in our syntax. Servers run in the workspace."""
    return _FOREIGN_VARIABLE.sub(r"${\1}", text).replace("${workspaceFolder}", ".")


def _missing_inputs(entry: dict[str, Any]) -> str:
    inputs = _FOREIGN_INPUT.findall(msgspec.json.encode(entry).decode())
    return f"; write values or variables in place of {', '.join(sorted(set(inputs)))}" if inputs else ""


_COMMENT_OR_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_COMMA_OR_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)


def _without_comments(content: bytes) -> bytes:
    """Removes comments and trailing commas, which editors allow in JSON files."""

    def strip(match: re.Match[bytes]) -> bytes:
        return match[0] if match[0].startswith(b'"') else b""

    return _COMMA_OR_STRING.sub(strip, _COMMENT_OR_STRING.sub(strip, content))
