"""The contract between a server's owner and what connects to it, without a word of the SDK."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from outrider.tools.context import Progress
from outrider.tools.mcp.config import Limits, ServerConfig
from outrider.tools.mcp.definitions import Definition, Prompt, Resource
from outrider.tools.tool import ToolResult

Report = Callable[[Progress], None]
Listed = Literal["tools", "resources", "prompts"]


class Question(msgspec.Struct, frozen=True):
    """What a server wants to know from the user during a call: values for a schema, or a visit to an address."""

    server: str
    message: str
    schema: dict[str, Any] | None = None
    url: str | None = None


class Reply(msgspec.Struct, frozen=True):
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


Ask = Callable[[Question], Awaitable[Reply]]


class Host(msgspec.Struct, frozen=True):
    """What servers get of this side. `ask` is None where nobody can be asked."""

    workspace: Path
    environment: Mapping[str, str]
    limits: Limits = Limits()
    ask: Ask | None = None


class PromptMessage(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant"]
    content: ToolResult


class Link(Protocol):
    """A connection in use. Every method raises ServerFault, and LinkLost when the connection ends meanwhile."""

    @property
    def instructions(self) -> str: ...
    async def list_tools(self) -> list[Definition]: ...
    async def list_resources(self) -> list[Resource]: ...
    async def list_prompts(self) -> list[Prompt]: ...
    async def call_tool(self, name: str, arguments: dict[str, Any], report: Report) -> ToolResult: ...
    async def read_resource(self, uri: str) -> ToolResult: ...
    async def get_prompt(self, name: str, arguments: dict[str, str]) -> tuple[PromptMessage, ...]: ...


class Listener(msgspec.Struct, frozen=True):
    """What the owner of a connection wants to hear."""

    ready: Callable[[Link], Awaitable[None]]  # awaited, and counts as a part of the start-up
    ended: Callable[[], None]
    stale: Callable[[Listed], None]  # a list has changed at the server
    log: Report


class Life:
    """One connection from its start to its end, as both sides of the contract see it."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.over = asyncio.Event()
        self.reason = ""
        self.has_died = False  # of itself, not by our doing
        self.trouble = ""  # what the transport saw last and the SDK does not tell
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None

    async def begin(self, link: Link) -> None:
        await self.listener.ready(link)
        self._since = self._loop.time()

    @property
    def served(self) -> float | None:
        """For how many seconds; None if it never did."""
        return None if self._since is None else self._loop.time() - self._since

    def end(self, reason: str, *, has_died: bool = False) -> None:
        """The first reason counts; the others follow from it."""
        if not self.over.is_set():
            self.reason = reason
            self.has_died = has_died
            self.over.set()
            self.listener.ended()


class Hold(Protocol):
    """Connects, begins the life, stays until it is over, and leaves nothing behind; `life.reason` says why it ended.
    `legacy` skips what only newer servers understand."""

    def __call__(self, config: ServerConfig, host: Host, life: Life, *, legacy: bool) -> Awaitable[None]: ...
