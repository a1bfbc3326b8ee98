"""Which MCP servers there are, as values: how to reach each one, and what it may cost."""

import re
from collections.abc import Iterable
from typing import Literal
from urllib.parse import urlsplit

import msgspec

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
