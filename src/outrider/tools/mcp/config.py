"""Which MCP servers there are, as values: how to reach each one, and what it may cost."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from outrider.errors import ConfigurationError
from outrider.types.validate import is_object

HIDDEN = "[hidden]"
_SHORTEST_SECRET = 6  # a shorter one is part of too many words
_SECRET_NAME = re.compile(r"auth|key|token|secret|cookie|password|credential|signature", re.IGNORECASE)
_SCHEME = re.compile(r"^(?:bearer|basic|token)\s+", re.IGNORECASE)


class StdioServer(msgspec.Struct, frozen=True, kw_only=True):
    """A program that speaks MCP on its standard input and output."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None

    @property
    def place(self) -> str:
        return self.command

    def secrets(self) -> list[str]:
        return _long_first(value for name, value in self.env.items() if _SECRET_NAME.search(name))

    def __repr__(self) -> str:
        return f"StdioServer({self.name!r}, {self.command!r}, env={sorted(self.env)})"


class HttpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server at an address. `sse` is the older manner of speaking over HTTP."""

    name: str
    url: str
    headers: dict[str, str] = {}
    transport: Literal["http", "sse"] = "http"

    @property
    def place(self) -> str:
        """The address without what may be secret in it."""
        address = urlsplit(self.url)
        return f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path}"

    def secrets(self) -> list[str]:
        address = urlsplit(self.url)
        values = [_SCHEME.sub("", value) for value in self.headers.values()]
        values += [address.username or "", address.password or "", address.query]
        values += [pair.partition("=")[2] for pair in address.query.split("&")]
        return _long_first(values)

    def __repr__(self) -> str:
        return f"HttpServer({self.name!r}, {self.place!r}, headers={sorted(self.headers)})"


ServerConfig = StdioServer | HttpServer


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one server may take: seconds, bytes, counts."""

    startup: float = 30.0
    call: float = 300.0
    listing: float = 30.0  # one list of tools, resources or prompts, or one of its members
    shutdown: float = 2.0  # to end by itself, before it is made to
    message: int = 8 << 20
    garbage: int = 1 << 20  # bytes in a row that are no messages
    garbage_lines: int = 1_000
    messages_per_second: float = 1_000.0  # what comes faster waits in the pipe
    bytes_per_second: float = 32 << 20
    listed: int = 1_000  # members of one list
    definition: int = 100_000  # characters of one tool's schema
    description: int = 10_000
    log: int = 4_000  # characters of what the server last wrote to its error stream
    reconnects: int = 5
    first_delay: float = 0.5  # before the first new attempt; each further one waits twice as long
    longest_delay: float = 30.0
    steady: float = 60.0  # after so many seconds of service, deaths are counted anew


def hide(text: str, config: ServerConfig) -> str:
    """The text without the keys that this server was given."""
    for secret in config.secrets():
        text = text.replace(secret, HIDDEN)
    return text


def _long_first(values: Iterable[str]) -> list[str]:
    kept = {value.strip() for value in values if len(value.strip()) >= _SHORTEST_SECRET}
    return sorted(kept, key=lambda value: (-len(value), value))


_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
_KINDS = {"http": "http", "streamable-http": "http", "streamable_http": "http", "sse": "sse"}
_NAMES: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


class ConfigFile(msgspec.Struct, frozen=True):
    """The servers that can be used, and a sentence for each one that cannot: one bad entry costs only itself."""

    servers: tuple[ServerConfig, ...] = ()
    problems: tuple[str, ...] = ()


class _Wrong(ValueError):
    """Something about one key of one server."""


def read_config(text: str | bytes, environment: Mapping[str, str], source: str = ".mcp.json") -> ConfigFile:
    """`source` is what errors call the file. Whether the file may count at all is the caller's decision."""
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
            servers += _servers(name, entry, environment)
        except _Wrong as error:
            problems.append(f"{source}: mcpServers.{name}{error}")
    return ConfigFile(tuple(servers), tuple(problems))


def _servers(name: str, entry: Any, environment: Mapping[str, str]) -> list[ServerConfig]:
    """One, or none if it is switched off."""
    if not is_object(entry):
        raise _Wrong(f": expected an object, got {_kind(entry)}")
    return [] if entry.get("disabled") is True else [_server(name, _Entry(entry, environment))]


def _server(name: str, entry: "_Entry") -> ServerConfig:
    if not name.strip():
        raise _Wrong(": a server needs a name")
    kind = entry.text("type", "")
    if kind in _KINDS or (not kind and "url" in entry.fields):
        url = entry.text("url")
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise _Wrong(".url: expected an address that begins with http:// or https://")
        transport = "sse" if _KINDS.get(kind) == "sse" else "http"
        return HttpServer(name=name, url=url, headers=entry.texts("headers"), transport=transport)
    if kind not in ("", "stdio"):
        raise _Wrong(f".type: {kind!r} is not a kind of server; it is stdio, http or sse")
    command = entry.text("command")
    if not command.strip():
        raise _Wrong(".command: is empty")
    cwd = entry.text("cwd", "") or None
    return StdioServer(name=name, command=command, args=entry.list("args"), env=entry.texts("env"), cwd=cwd)


class _Entry:
    """One server's object, read key by key with variables put in."""

    def __init__(self, fields: dict[str, Any], environment: Mapping[str, str]) -> None:
        self.fields = fields
        self._environment = environment

    def text(self, key: str, default: str | None = None) -> str:
        value = self.fields.get(key, default)
        if value is None:
            raise _Wrong(f".{key}: is missing")
        return self._expanded(value, f".{key}")

    def list(self, key: str) -> tuple[str, ...]:
        values: Any = self.fields.get(key, [])
        if not isinstance(values, list):
            raise _Wrong(f".{key}: expected a list of strings, got {_kind(values)}")
        return tuple(self._expanded(value, f".{key}[{at}]") for at, value in enumerate(values))  # pyright: ignore

    def texts(self, key: str) -> dict[str, str]:
        values: Any = self.fields.get(key, {})
        if not is_object(values):
            raise _Wrong(f".{key}: expected an object of strings, got {_kind(values)}")
        return {name: self._expanded(value, f".{key}.{name}") for name, value in values.items()}

    def _expanded(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise _Wrong(f"{where}: expected a string, got {_kind(value)}")
        if "\0" in value:
            raise _Wrong(f"{where}: contains a NUL character")
        return _VARIABLE.sub(self._variable(where), value)

    def _variable(self, where: str) -> Callable[[re.Match[str]], str]:
        def found(match: re.Match[str]) -> str:
            value = self._environment.get(match["name"]) or match["default"]
            if value is None and match["name"] not in self._environment:
                raise _Wrong(f"{where}: the variable {match['name']} is not set, and there is no default")
            return value or ""

        return found


def _kind(value: object) -> str:
    return "null" if value is None else _NAMES.get(type(value), type(value).__name__)
