"""Configuration of MCP servers: connection parameters, limits, stored credentials and the parser for `.mcp.json`."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import msgspec

from outrider.errors import ConfigurationError
from outrider.permissions.paths.containment import write_private_file
from outrider.types.validate import ArgumentsMeta, is_object

HIDDEN_SECRET = "[hidden]"
_MIN_SECRET_LENGTH = 6  # a shorter value would match ordinary text
_SECRET_NAME = re.compile(r"auth|key|token|secret|cookie|password|credential|signature", re.IGNORECASE)
_SCHEME = re.compile(r"^(?:bearer|basic|token)\s+", re.IGNORECASE)


_LAUNCHERS = frozenset({"npx", "bunx", "uvx", "pipx", "node", "python", "python3", "docker", "deno", "uv"})
_LAUNCHER_FLAGS = frozenset({"-y", "-q", "-m", "--yes", "--quiet"})


class StdioServer(msgspec.Struct, frozen=True, kw_only=True, metaclass=ArgumentsMeta):
    """A server that runs as a child process and communicates over stdin and stdout."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None

    def __post_init__(self) -> None:
        args: Any = self.args
        if not self.name or not self.command:
            raise ConfigurationError(
                "StdioServer() needs a name and a command: StdioServer(name='files', command='npx')"
            )
        if isinstance(args, str):
            raise ConfigurationError(f"StdioServer({self.name!r}): args is a tuple of strings; write args=({args!r},)")
        where, command = f"StdioServer({self.name!r})", cast("Any", self.command)
        if not isinstance(command, str):
            raise ConfigurationError(
                f"{where}: command is one program, got {command!r}; write command='npx', args=('-y', 'server')"
            )
        if not isinstance(args, list | tuple) or not all(isinstance(word, str) for word in cast("list[Any]", args)):
            raise ConfigurationError(f"{where}: args is a tuple of strings; write args=('-y', 'server')")
        _check_texts(f"{where}: env", self.env, "env={'NAME': 'value'}")

    @property
    def display_address(self) -> str:
        """The command without its environment and arguments, which may contain secrets. For a program that starts
        another program, such as npx, it includes the name of that program."""
        if self.command.rpartition("/")[2] not in _LAUNCHERS:
            return self.command
        words = [self.command]
        for word in self.args:
            if word.startswith("-") and word not in _LAUNCHER_FLAGS:
                break
            words.append(word)
            if not word.startswith("-"):
                break
        return " ".join([*words, "…"] if len(words) <= len(self.args) else words)

    def secret_values(self) -> list[str]:
        """Returns values of the environment that must not be shown, longest first."""
        return _longest_first(value for name, value in self.env.items() if _SECRET_NAME.search(name))

    def __repr__(self) -> str:
        return f"StdioServer({self.name!r}, {self.command!r}, env={sorted(self.env)})"


class OAuthClient(msgspec.Struct, frozen=True, kw_only=True, metaclass=ArgumentsMeta):
    """A client that is registered at an authorization server manually, for servers at which Outrider cannot register
    itself.

    - `client_id`: the id of the client.
    - `client_secret`: its secret, if it has one.
    - `issuer`: the authorization server; the client is used at no other one.
    - `scope`: the scope to request.
    - `callback_port`: the port of `http://127.0.0.1:PORT/callback`, to which a login redirects; 0 for a free port.
    - `grant`: with `client_credentials`, no person has to log in.
    """

    client_id: str
    client_secret: str = ""
    issuer: str = ""
    scope: str = ""
    callback_port: int = 0
    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"

    def __repr__(self) -> str:
        return f"OAuthClient({self.client_id!r}, grant={self.grant!r})"


class HttpServer(msgspec.Struct, frozen=True, kw_only=True, metaclass=ArgumentsMeta):
    """A server with a URL. The transport `sse` is the deprecated HTTP transport. Without `oauth`, Outrider registers
    itself at the authorization server of a server that requires a login."""

    name: str
    url: str
    headers: dict[str, str] = {}
    transport: Literal["http", "sse"] = "http"
    oauth: OAuthClient | None = None

    def __post_init__(self) -> None:
        url, where = cast("Any", self.url), f"HttpServer({self.name!r})"
        if not self.name or not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https"):
            # The address may contain a password, so it is not shown.
            raise ConfigurationError(f"{where} needs a name, and a url that begins with http:// or https://")
        _check_texts(f"{where}: headers", self.headers, "headers={'Authorization': 'Bearer …'}")
        if self.oauth is not None and not isinstance(self.oauth, OAuthClient):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"{where}: oauth is an OAuthClient; write oauth=OAuthClient(client_id='…')")

    @property
    def display_address(self) -> str:
        """Returns the URL without credentials and query."""
        address = urlsplit(self.url)
        return f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}"

    def secret_values(self) -> list[str]:
        """Returns values of headers and of the URL that must not be shown, longest first."""
        address = urlsplit(self.url)
        values = [_SCHEME.sub("", value) for value in self.headers.values()]
        values += [address.username or "", address.password or "", address.query]
        values += [pair.partition("=")[2] for pair in address.query.split("&")]
        values += [self.oauth.client_secret] if self.oauth else []
        return _longest_first(values)

    def __repr__(self) -> str:
        return f"HttpServer({self.name!r}, {self.display_address!r}, headers={sorted(self.headers)})"


ServerConfig = StdioServer | HttpServer


def _check_texts(where: str, values: Any, example: str) -> None:
    """Raises ConfigurationError if a value is not a dict of strings. The message omits the values, which may be
    secrets."""
    if not is_object(values) or not all(isinstance(text, str) for pair in values.items() for text in pair):
        raise ConfigurationError(f"{where} is a dict of strings; write {example}")


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True, metaclass=ArgumentsMeta):
    """Resource limits of one server: seconds, bytes and numbers of items."""

    startup: float = 30.0
    call: float = 300.0
    listing: float = 30.0  # one list request, or one read of a resource or prompt
    shutdown: float = 2.0  # before the process is killed
    message: int = 8 << 20
    garbage: int = 1 << 20  # consecutive bytes that are not valid messages
    garbage_lines: int = 1_000
    messages_per_second: float = 1_000.0  # above this rate the reader pauses, and the pipe fills up
    bytes_per_second: float = 32 << 20
    listed: int = 1_000  # items of one list
    definition: int = 100_000  # bytes of one tool's JSON schema
    description: int = 10_000
    log: int = 4_000  # bytes of stderr to store
    reconnects: int = 5
    first_delay: float = 0.5  # doubles with each further attempt
    longest_delay: float = 30.0
    steady: float = 60.0  # seconds of service that reset the failure counter

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
                raise ConfigurationError(f"ServerLimits({name}={value!r}): it is a number of at least 0")


def hide_secrets(text: str, config: ServerConfig) -> str:
    """Replaces the configured secrets of this server in the text."""
    for secret in config.secret_values():
        text = text.replace(secret, HIDDEN_SECRET)
    return text


def _longest_first(values: Iterable[str]) -> list[str]:
    retained = {value.strip() for value in values if len(value.strip()) >= _MIN_SECRET_LENGTH}
    return sorted(retained, key=lambda value: (-len(value), value))


_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
_TRANSPORT_BY_TYPE = {"http": "http", "streamable-http": "http", "streamable_http": "http", "sse": "sse"}
_TYPE_NAMES: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


class McpConfigFile(msgspec.Struct, frozen=True):
    """The valid servers, and one error message per invalid entry; an invalid entry does not affect the others."""

    servers: tuple[ServerConfig, ...] = ()
    problems: tuple[str, ...] = ()


class _EntryError(ValueError):
    """An invalid value in one server entry."""


def parse_config(text: str | bytes, environment: Mapping[str, str], source: str = ".mcp.json") -> McpConfigFile:
    """Parses `.mcp.json`. `source` is the file name for error messages. Raises ConfigurationError for invalid JSON. The
    caller decides whether the file is trusted."""
    try:
        content = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{source}: not valid JSON: {error}") from error
    entries: Any = content.get("mcpServers", {}) if is_object(content) else None
    if not is_object(entries):
        raise ConfigurationError(f"{source}: expected an object with `mcpServers`, an object of servers by name")
    servers: list[ServerConfig] = []
    problems: list[str] = []
    for name, entry in entries.items():
        try:
            servers += _read_entry(name, entry, environment)
        except _EntryError as error:
            problems.append(f"{source}: mcpServers.{name}{error}")
    return McpConfigFile(tuple(servers), tuple(problems))


def _read_entry(name: str, entry: Any, environment: Mapping[str, str]) -> list[ServerConfig]:
    """Returns a list with the server; an empty list if the entry is disabled."""
    if not is_object(entry):
        raise _EntryError(f": expected an object, got {_type_name(entry)}")
    return [] if entry.get("disabled") is True else [_build_server(name, _ConfigEntry(entry, environment))]


def _build_server(name: str, entry: "_ConfigEntry") -> ServerConfig:
    if not name.strip():
        raise _EntryError(": a server needs a name")
    kind = entry.get_text("type", "")
    if kind in _TRANSPORT_BY_TYPE or (not kind and "url" in entry.fields):
        url = entry.get_text("url")
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise _EntryError(".url: expected an address that begins with http:// or https://")
        transport = "sse" if _TRANSPORT_BY_TYPE.get(kind) == "sse" else "http"
        return HttpServer(
            name=name, url=url, headers=entry.get_mapping("headers"), transport=transport, oauth=_read_oauth(entry)
        )
    if kind not in ("", "stdio"):
        raise _EntryError(f".type: {kind!r} is not a kind of server; it is stdio, http or sse")
    command = entry.get_text("command")
    if not command.strip():
        raise _EntryError(".command: is empty")
    cwd = entry.get_text("cwd", "") or None
    return StdioServer(name=name, command=command, args=entry.get_list("args"), env=entry.get_mapping("env"), cwd=cwd)


_OAUTH_KEYS = {
    "clientId": "client_id",
    "clientSecret": "client_secret",
    "issuer": "issuer",
    "scope": "scope",
    "grant": "grant",
    "callbackPort": "callback_port",
}


def _read_oauth(entry: "_ConfigEntry") -> OAuthClient | None:
    """Reads `oauth`, with keys in camelCase or snake_case."""
    fields: Any = entry.fields.get("oauth")
    if fields is None:
        return None
    if not is_object(fields):
        raise _EntryError(f".oauth: expected an object, got {_type_name(fields)}")
    port: Any = fields.get("callbackPort", fields.get("callback_port", 0))
    if not isinstance(port, int) or not 0 <= port < 1 << 16:
        raise _EntryError(".oauth.callbackPort: expected the number of a port")
    texts = {_OAUTH_KEYS.get(key, key): value for key, value in fields.items() if key.lower().count("port") == 0}
    if unknown := texts.keys() - set(_OAUTH_KEYS.values()):
        raise _EntryError(f".oauth.{min(unknown)}: unknown; the keys are {', '.join(_OAUTH_KEYS)}")
    options = entry.expand_texts(texts, ".oauth")
    grant = options.pop("grant", "authorization_code")
    if grant not in ("authorization_code", "client_credentials"):
        raise _EntryError(f".oauth.grant: {grant!r} is not supported; it is authorization_code or client_credentials")
    if not options.get("client_id"):
        raise _EntryError(".oauth.clientId: is missing")
    if grant == "client_credentials" and not options.get("client_secret"):
        raise _EntryError(".oauth.clientSecret: is missing")
    return OAuthClient(callback_port=port, grant=grant, **options)


class _ConfigEntry:
    """One server's object. The getter methods validate types and expand environment variables."""

    def __init__(self, fields: dict[str, Any], environment: Mapping[str, str]) -> None:
        self.fields = fields
        self._environment = environment

    def get_text(self, key: str, default: str | None = None) -> str:
        value = self.fields.get(key, default)
        if value is None:
            raise _EntryError(f".{key}: is missing")
        return self._expand_variables(value, f".{key}")

    def get_list(self, key: str) -> tuple[str, ...]:
        values: Any = self.fields.get(key, [])
        if not isinstance(values, list):
            raise _EntryError(f".{key}: expected a list of strings, got {_type_name(values)}")
        return tuple(self._expand_variables(value, f".{key}[{index}]") for index, value in enumerate(values))  # pyright: ignore

    def get_mapping(self, key: str) -> dict[str, str]:
        values: Any = self.fields.get(key, {})
        if not is_object(values):
            raise _EntryError(f".{key}: expected an object of strings, got {_type_name(values)}")
        return self.expand_texts(values, f".{key}")

    def expand_texts(self, values: Mapping[str, Any], where: str) -> dict[str, str]:
        return {name: self._expand_variables(value, f"{where}.{name}") for name, value in values.items()}

    def _expand_variables(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise _EntryError(f"{where}: expected a string, got {_type_name(value)}")
        if "\0" in value:
            raise _EntryError(f"{where}: contains a NUL character")
        return _VARIABLE.sub(self._variable_resolver(where), value)

    def _variable_resolver(self, where: str) -> Callable[[re.Match[str]], str]:
        def resolve(match: re.Match[str]) -> str:
            value = self._environment.get(match["name"]) or match["default"]
            if value is None and match["name"] not in self._environment:
                raise _EntryError(f"{where}: the variable {match['name']} is not set, and there is no default")
            return value or ""

        return resolve


def _type_name(value: object) -> str:
    return "null" if value is None else _TYPE_NAMES.get(type(value), type(value).__name__)


class StoredLogin(msgspec.Struct, omit_defaults=True):
    """The login at one server. The objects have the formats of OAuth's responses and metadata documents."""

    tokens: dict[str, Any] | None = None
    expires_at: float | None = None  # Unix time
    client: dict[str, Any] | None = None  # the registration of Outrider at the authorization server
    metadata: dict[str, Any] | None = None  # of the authorization server: where tokens are refreshed
    resource: dict[str, Any] | None = None  # of the MCP server: which authorization server it uses
    wanted_scope: str | None = None  # what a call needed that the tokens do not grant; the next login asks for it

    def secret_values(self) -> Iterator[str]:
        for source in (self.tokens or {}, self.client or {}):
            for name in ("access_token", "refresh_token", "id_token", "client_secret"):
                if isinstance(value := source.get(name), str) and value:
                    yield value


class LoginFile:
    """The logins of all servers, by URL. Several processes write the file: each write merges with what is stored, and
    the rename is atomic."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_login(self, url: str) -> StoredLogin:
        """Returns the login at a server; an empty one if there is none."""
        return self._load().get(_login_key(url), StoredLogin())

    def write_login(self, url: str, login: StoredLogin | None) -> None:
        """Stores the login at a server; None removes it."""
        logins = self._load()
        logins.pop(_login_key(url), None)
        if login is not None:
            logins[_login_key(url)] = login
        write_private_file(self.path, msgspec.json.encode(logins))

    def changed_at(self) -> int:
        """Returns the time of the last write, in nanoseconds; 0 if there is no file."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    def _load(self) -> dict[str, StoredLogin]:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=dict[str, StoredLogin])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}


def _login_key(url: str) -> str:
    """Returns the address without credentials, query and fragment: a login applies to a server, not to a single
    request."""
    address = urlsplit(url)
    return f"{address.scheme}://{address.netloc.rpartition('@')[2].lower()}{address.path.rstrip('/')}"
