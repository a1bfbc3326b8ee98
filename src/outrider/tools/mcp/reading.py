"""Reads `.mcp.json`: a pure function from its text and an environment to servers, and to words on what is wrong."""

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from outrider.errors import ConfigurationError
from outrider.tools.mcp.config import HttpServer, ServerConfig, StdioServer
from outrider.types.validate import is_object

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
