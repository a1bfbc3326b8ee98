"""The pool of engines of a connection: one per folder, because settings, rules and MCP servers belong to a folder."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec
from acp import RequestError

from outrider.acp.client import ClientBuffers
from outrider.config.settings import Settings
from outrider.engine.engine import Engine
from outrider.engine.factory import standard_engine
from outrider.engine.frontend import AskUser
from outrider.errors import AuthenticationError, ConfigurationError, OutriderError, SessionNotFoundError
from outrider.presentation.formats import replace_surrogates
from outrider.presentation.items import REMEDIES

SettingsLoader = Callable[[Path], Settings]
FindBuffers = Callable[[str], ClientBuffers | None]
"""Returns the client's buffers for a session; None if the client has none."""
AUTHENTICATION_REQUIRED = -32000  # error code
McpServerConfigs = dict[str, dict[str, Any]]
"""MCP servers that a client sends, by name, in the format of configuration files."""


class OpenedEngine(NamedTuple):
    """An engine; `readable` are the folders besides the workspace that the client gave."""

    engine: Engine
    settings: Settings
    readable: tuple[str, ...] = ()


class EnginePool:
    """Opens and closes each engine in a separate task, because an engine's task group must be closed by the task that
    opened it."""

    def __init__(
        self, load_settings: SettingsLoader, tasks: asyncio.TaskGroup, ask: AskUser, find_buffers: FindBuffers
    ) -> None:
        self.load_settings = load_settings
        self._tasks = tasks
        self._ask = ask
        self._find_buffers = find_buffers
        self._opened: dict[tuple[Path, bytes], asyncio.Future[OpenedEngine]] = {}
        self._closing = asyncio.Event()

    async def get_engine(
        self, folder: str, servers: McpServerConfigs, extra_folders: Sequence[str] = ()
    ) -> OpenedEngine:
        """Returns the engine of a folder. `extra_folders` may be read as well. Raises ConfigurationError if a
        folder or the settings are invalid, and RequestError (authentication required) without a key."""
        for path in (folder, *extra_folders):
            if not Path(path).is_absolute():
                raise ConfigurationError(f"the session folder must be an absolute path, not {path!r}")
        key = Path(folder), msgspec.json.encode([servers, list(extra_folders)], order="sorted")
        if key not in self._opened:
            settings = await self.check_credentials(key[0])
            settings = msgspec.structs.replace(settings, mcp={**servers, **settings.mcp})
            self._opened[key] = asyncio.get_running_loop().create_future()
            self._tasks.create_task(self._hold_open(key, settings, _resolve_folders(extra_folders)))
        return await asyncio.shield(self._opened[key])

    async def check_credentials(self, folder: Path) -> Settings:
        """Returns the settings of a folder. Raises RequestError (authentication required) if no model can be
        reached."""
        settings = self.load_settings(folder)
        if settings.missing:
            from outrider.models.local_models import missing_model_message  # lazy: rarely needed

            text = await asyncio.to_thread(missing_model_message, settings.missing)
            raise RequestError(AUTHENTICATION_REQUIRED, replace_surrogates(text), {"type": "ConfigurationError"})
        return settings

    def close(self) -> None:
        """Signals the tasks to close their engines; the owner of the task group waits for them."""
        self._closing.set()

    async def _hold_open(self, key: tuple[Path, bytes], settings: Settings, readable: tuple[str, ...]) -> None:
        opened = self._opened[key]
        try:
            async with standard_engine(
                settings,
                workspace=key[0],
                attended=True,
                ask=self._ask,
                readable=readable,
                editor_buffers=self._find_buffers,
            ) as engine:
                opened.set_result(OpenedEngine(engine, settings, readable))
                await self._closing.wait()
        except OutriderError as error:
            if opened.done():
                raise
            del self._opened[key]
            opened.set_exception(error)


def _resolve_folders(folders: Sequence[str]) -> tuple[str, ...]:
    return tuple(os.path.realpath(folder) for folder in folders)


P = ParamSpec("P")
T = TypeVar("T")


def as_request_error(error: OutriderError) -> RequestError:
    kind, text = type(error).__name__, str(error)
    remedy = REMEDIES.get(kind)
    text = f"{text.rstrip('.')}. {remedy[:1].upper()}{remedy[1:]}" if remedy else text
    return RequestError(_error_code(error), replace_surrogates(text), {"type": kind})


def translate_errors(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Decorates a method so that OutriderError becomes the error of the protocol. The SDK reports other exceptions as
    internal errors."""

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
            return AUTHENTICATION_REQUIRED
        case _:
            return -32603  # internal error
