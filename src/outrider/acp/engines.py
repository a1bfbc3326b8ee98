"""The pool of engines of a connection: one per folder, because settings, rules and MCP servers belong to a folder."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec
from acp import RequestError

from outrider.config.settings import Settings
from outrider.engine.engine import Engine
from outrider.engine.factory import standard_engine
from outrider.engine.frontend import AskUser
from outrider.errors import AuthenticationError, ConfigurationError, OutriderError, SessionNotFoundError
from outrider.presentation.formats import replace_surrogates
from outrider.presentation.items import REMEDIES

SettingsLoader = Callable[[Path], Settings]
McpServerConfigs = dict[str, dict[str, Any]]
"""MCP servers that a client brings along, by their names, as configuration files write them."""


class OpenedEngine(NamedTuple):
    engine: Engine
    settings: Settings


class EnginePool:
    """Opens and closes each engine in a separate task, because an engine's task group must be closed by the task that
    opened it."""

    def __init__(self, load_settings: SettingsLoader, tasks: asyncio.TaskGroup, ask: AskUser) -> None:
        self.load_settings = load_settings
        self._tasks = tasks
        self._ask = ask
        self._opened: dict[tuple[Path, bytes], asyncio.Future[OpenedEngine]] = {}
        self._closing = asyncio.Event()

    async def get_engine(self, folder: str, servers: McpServerConfigs) -> OpenedEngine:
        """Returns the engine of a folder. Raises ConfigurationError if the folder or its settings are invalid."""
        if not Path(folder).is_absolute():
            raise ConfigurationError(f"the session folder must be an absolute path, not {folder!r}")
        key = Path(folder), msgspec.json.encode(servers, order="sorted")
        if key not in self._opened:
            settings = self.load_settings(key[0])
            settings = msgspec.structs.replace(settings, mcp={**servers, **settings.mcp})
            self._opened[key] = asyncio.get_running_loop().create_future()
            self._tasks.create_task(self._hold_open(key, settings))
        return await asyncio.shield(self._opened[key])

    def close(self) -> None:
        """Signals the tasks to close their engines; the owner of the task group waits for them."""
        self._closing.set()

    async def _hold_open(self, key: tuple[Path, bytes], settings: Settings) -> None:
        opened = self._opened[key]
        try:
            async with standard_engine(settings, workspace=key[0], attended=True, ask=self._ask) as engine:
                opened.set_result(OpenedEngine(engine, settings))
                await self._closing.wait()
        except OutriderError as error:
            if opened.done():
                raise
            del self._opened[key]
            opened.set_exception(error)


P = ParamSpec("P")
T = TypeVar("T")


def as_request_error(error: OutriderError) -> RequestError:
    kind, text = type(error).__name__, str(error)
    remedy = REMEDIES.get(kind)
    text = f"{text.rstrip('.')}. {remedy[:1].upper()}{remedy[1:]}" if remedy else text
    return RequestError(_error_code(error), replace_surrogates(text), {"type": kind})


def translate_errors(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Decorator: converts OutriderError into the protocol's error. The SDK reports other exceptions as internal
    errors."""

    @wraps(method)
    async def translated(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except OutriderError as error:
            raise as_request_error(error) from error

    return translated


def _error_code(error: OutriderError) -> int:
    match error:
        case SessionNotFoundError():
            return -32002  # resource not found
        case ConfigurationError():
            return -32602  # invalid params
        case AuthenticationError():
            return -32000  # authentication required
        case _:
            return -32603  # internal error
