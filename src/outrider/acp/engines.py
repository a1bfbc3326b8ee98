"""One engine for each folder that a client works in: settings, rules and servers belong to a folder."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec
from acp import RequestError

from outrider.acp.tool_calls import valid
from outrider.config.settings import Settings
from outrider.engine.engine import Engine
from outrider.engine.factory import standard_engine
from outrider.engine.frontend import Ask
from outrider.errors import AuthenticationError, ConfigurationError, OutriderError, SessionNotFoundError

SettingsOf = Callable[[Path], Settings]
Servers = dict[str, dict[str, Any]]
"""MCP servers that a client brings along, by their names, as configuration files write them."""


class Opened(NamedTuple):
    engine: Engine
    settings: Settings


class Engines:
    """Every engine is opened and closed by a task of its own."""

    def __init__(self, settings_of: SettingsOf, tasks: asyncio.TaskGroup, ask: Ask) -> None:
        self.settings_of = settings_of
        self._tasks = tasks
        self._ask = ask
        self._opened: dict[tuple[Path, bytes], asyncio.Future[Opened]] = {}
        self._closing = asyncio.Event()

    async def at(self, folder: str, servers: Servers) -> Opened:
        """Raises ConfigurationError where the folder or its settings cannot work."""
        if not Path(folder).is_absolute():
            raise ConfigurationError(f"the folder to work in is an absolute path, not {folder!r}")
        key = Path(folder), msgspec.json.encode(servers, order="sorted")
        if key not in self._opened:
            settings = self.settings_of(key[0])
            settings = msgspec.structs.replace(settings, mcp={**servers, **settings.mcp})
            self._opened[key] = asyncio.get_running_loop().create_future()
            self._tasks.create_task(self._keep(key, settings))
        return await asyncio.shield(self._opened[key])

    def close(self) -> None:
        """Whoever waits for the task group waits for the engines."""
        self._closing.set()

    async def _keep(self, key: tuple[Path, bytes], settings: Settings) -> None:
        opened = self._opened[key]
        try:
            async with standard_engine(settings, workspace=key[0], attended=True, ask=self._ask) as engine:
                opened.set_result(Opened(engine, settings))
                await self._closing.wait()
        except OutriderError as error:
            if opened.done():
                raise
            del self._opened[key]
            opened.set_exception(error)


P = ParamSpec("P")
T = TypeVar("T")


def as_request_error(error: OutriderError) -> RequestError:
    return RequestError(_code(error), valid(str(error)), {"type": type(error).__name__})


def said_plainly(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The engine's errors become the protocol's; others are ours, and the SDK tells them as such."""

    @wraps(method)
    async def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except OutriderError as error:
            raise as_request_error(error) from error

    return whole


def _code(error: OutriderError) -> int:
    match error:
        case SessionNotFoundError():
            return -32002  # resource not found
        case ConfigurationError():
            return -32602  # invalid params
        case AuthenticationError():
            return -32000  # authentication required
        case _:
            return -32603  # internal error
