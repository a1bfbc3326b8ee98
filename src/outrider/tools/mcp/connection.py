"""The contract between a server's owner and what connects to it, without a word of the SDK."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from outrider.errors import ToolFailure
from outrider.tools.context import Progress
from outrider.tools.mcp.config import Limits, ServerConfig
from outrider.tools.tool import ToolResult


class Definition(msgspec.Struct, frozen=True):
    """One tool as its server describes it. `hints` are the server's own claims (read-only and the like): they are
    shown, and nothing is decided by them."""

    server: str
    name: str
    description: str
    parameters: dict[str, Any]
    title: str | None = None
    hints: dict[str, Any] = {}

    @property
    def fingerprint(self) -> str:
        """Of all that a model reads; the order of a schema's keys is no change."""
        seen = [self.name, self.description, self.parameters]
        return sha256(msgspec.json.encode(seen, order="sorted")).hexdigest()


class Resource(msgspec.Struct, frozen=True):
    """Something to read. In a template's `uri`, parts in braces stand for what the reader chooses."""

    server: str
    uri: str
    name: str
    description: str = ""
    mime_type: str | None = None
    size: int | None = None
    is_template: bool = False


class PromptArgument(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    required: bool = False


class Prompt(msgspec.Struct, frozen=True):
    server: str
    name: str
    description: str = ""
    arguments: tuple[PromptArgument, ...] = ()


Ledger = MutableMapping[str, str]
"""Fingerprints by `server/tool`. The caller keeps it, so that a change is noticed from one session to the next."""


def has_changed(definition: Definition, ledger: Ledger) -> bool:
    """Whether the tool is another than the one that is in the ledger. One that was never seen is entered."""
    return ledger.setdefault(_entry(definition), definition.fingerprint) != definition.fingerprint


def accept(definition: Definition, ledger: Ledger) -> None:
    """Somebody has looked at the tool as it is now."""
    ledger[_entry(definition)] = definition.fingerprint


def _entry(definition: Definition) -> str:
    return f"{definition.server}/{definition.name}"


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


class ServerFault(ToolFailure):
    """The server cannot be used, or did not do what was asked."""


class LinkLost(ServerFault):
    """The connection ended while an answer was awaited."""


class SessionForgotten(LinkLost):
    """The server no longer knows this connection; it has done nothing of what was asked."""


def cut(text: str, most: int) -> str:
    """A text in no more than so many characters; its end is left out."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"
