"""Interfaces between a server's connection owner and the SDK adapter; this module does not import the SDK."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from outrider.errors import ToolFailure
from outrider.http.transport import ProxySelector
from outrider.tools.mcp.config import LoginFile, ServerConfig, ServerLimits
from outrider.tools.tool import Progress, ToolContext, ToolResult


class ToolDefinition(msgspec.Struct, frozen=True):
    """A tool definition from a server. `hints` are unverified claims of the server (such as read-only): they are
    displayed, but no decision depends on them."""

    server: str
    name: str
    description: str
    parameters: dict[str, Any]
    title: str | None = None
    hints: dict[str, Any] = {}

    @property
    def fingerprint(self) -> str:
        """Returns a hash of everything the model reads. The key order of the schema does not matter."""
        visible = [self.name, self.description, self.parameters]
        return sha256(msgspec.json.encode(visible, order="sorted")).hexdigest()


class McpResource(msgspec.Struct, frozen=True):
    """A readable resource. In the `uri` of a template, parts in braces are parameters."""

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


class McpPrompt(msgspec.Struct, frozen=True):
    server: str
    name: str
    description: str = ""
    arguments: tuple[PromptArgument, ...] = ()


FingerprintLedger = MutableMapping[str, str]
"""Maps `server/tool` to a fingerprint. The caller stores it, so that a changed definition is detected in a later
session."""


def has_changed(definition: ToolDefinition, ledger: FingerprintLedger) -> bool:
    """Returns True if the fingerprint differs from the stored one. Stores the fingerprint of a new tool."""
    return ledger.setdefault(_ledger_key(definition), definition.fingerprint) != definition.fingerprint


def accept_definition(definition: ToolDefinition, ledger: FingerprintLedger) -> None:
    """Stores the current fingerprint after a user has reviewed the tool."""
    ledger[_ledger_key(definition)] = definition.fingerprint


def _ledger_key(definition: ToolDefinition) -> str:
    return f"{definition.server}/{definition.name}"


ReportProgress = Callable[[Progress], None]
ListKind = Literal["tools", "resources", "prompts"]


class Elicitation(msgspec.Struct, frozen=True):
    """A server's request for user input during a call: values for a schema, or a URL to visit."""

    server: str
    message: str
    schema: dict[str, Any] | None = None
    url: str | None = None


class ElicitationReply(msgspec.Struct, frozen=True):
    """The user's answer to a question of a server; `content` has the requested fields if it was accepted."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None


AskUser = Callable[[Elicitation], Awaitable[ElicitationReply]]
CURRENT_CALL: ContextVar[ToolContext | None] = ContextVar("current_mcp_call", default=None)
"""The call during which a server sends a request."""


class SamplingRequest(msgspec.Struct, frozen=True):
    """A server's request for an answer of the model, during a call."""

    server: str
    messages: "tuple[PromptMessage, ...]"
    system_prompt: str = ""
    max_tokens: int = 1_000
    temperature: float | None = None


class SamplingReply(msgspec.Struct, frozen=True):
    """The answer of the model, and the name of the model."""

    text: str
    model: str


SampleAnswer = Callable[[SamplingRequest], Awaitable[SamplingReply]]
"""Returns an answer of the model. Raises ServerFault if the user refuses it."""


class McpHost(msgspec.Struct, frozen=True):
    """What the client side provides to servers.

    - `workspace`: the folder of the session.
    - `environment`: the variables from which the environment of a server process is filtered.
    - `limits`: resource limits of each server.
    - `ask`: asks the user; None if no front end can ask.
    - `proxy`: returns the HTTP proxy for a URL.
    - `logins`: stored logins of servers with a URL. Without it, a server that requires a login cannot be used.
    - `redirect`: the `LoginRedirect` of a login in this process. Without it, an error asks for a login.
    - `sample`: lets the model answer for a server; None if no user can allow it.
    """

    workspace: Path
    environment: Mapping[str, str]
    limits: ServerLimits = ServerLimits()
    ask: AskUser | None = None
    proxy: ProxySelector | None = None
    logins: LoginFile | None = None
    redirect: Any = None
    sample: SampleAnswer | None = None


class ValueQuery(msgspec.Struct, frozen=True):
    """A request for values of an argument that begin with `value`. `target` is the name of a prompt, or the template of
    a resource; `given` has the other arguments."""

    kind: Literal["prompt", "resource"]
    target: str
    argument: str
    value: str
    given: dict[str, str] = {}


class PromptMessage(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant"]
    content: ToolResult


class ServerLink(Protocol):
    """An open connection. Each method raises ServerFault, or LinkLost if the connection ends during the request."""

    @property
    def instructions(self) -> str: ...
    async def list_tools(self) -> list[ToolDefinition]: ...
    async def list_resources(self) -> list[McpResource]: ...
    async def list_prompts(self) -> list[McpPrompt]: ...
    async def call_tool(self, name: str, arguments: dict[str, Any], report: ReportProgress) -> ToolResult: ...
    async def read_resource(self, uri: str) -> ToolResult: ...
    async def get_prompt(self, name: str, arguments: dict[str, str]) -> tuple[PromptMessage, ...]: ...
    async def complete_value(self, query: ValueQuery) -> Sequence[str]: ...


class ConnectionListener(msgspec.Struct, frozen=True):
    """Callbacks for the connection's owner."""

    ready: Callable[[ServerLink], Awaitable[None]]  # awaited as part of the start-up
    ended: Callable[[], None]
    stale: Callable[[ListKind], None]  # a list changed on the server
    log: ReportProgress


class ConnectionLifetime:
    """State of one connection from start to end, shared by the owner and the SDK adapter."""

    def __init__(self, listener: ConnectionListener) -> None:
        self.listener = listener
        self.ended = asyncio.Event()
        self.reason = ""
        self.has_died = False  # the server ended the connection
        self.last_problem = ""  # last transport error, which the SDK does not report
        self.login_problem = ""  # why a login is needed; another attempt without one does not help
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None

    async def start_serving(self, link: ServerLink) -> None:
        await self.listener.ready(link)
        self._since = self._loop.time()

    @property
    def seconds_served(self) -> float | None:
        """Returns the seconds since the connection was ready; None if it never was."""
        return None if self._since is None else self._loop.time() - self._since

    def end(self, reason: str, *, has_died: bool = False) -> None:
        """Ends the connection. Only the first reason is stored, since later ones are consequences."""
        if not self.ended.is_set():
            self.reason = self.login_problem or reason
            self.has_died = has_died
            self.ended.set()
            self.listener.ended()


class ConnectionRunner(Protocol):
    """Opens a connection, calls `start_serving`, and returns after the connection has ended and is cleaned up.
    `life.reason` contains the cause.

    `legacy` disables protocol features that older servers do not support.
    """

    def __call__(
        self, config: ServerConfig, host: McpHost, life: ConnectionLifetime, *, legacy: bool
    ) -> Awaitable[None]: ...


class ServerFault(ToolFailure):
    """The server is not available or returned an error."""


class VisitRequired(ServerFault):
    """The call works only after the user has visited addresses, for example to let the server use a service."""

    def __init__(self, message: str, visits: "tuple[Elicitation, ...]") -> None:
        super().__init__(message)
        self.visits = visits


class LinkLost(ServerFault):
    """The connection ended during a request."""


class SessionForgotten(LinkLost):
    """The server does not know the session any more; it did not execute the request."""


def truncate_text(text: str, max_chars: int) -> str:
    """Truncates the text to `max_chars` characters and appends the number of omitted ones."""
    return text if len(text) <= max_chars else f"{text[:max_chars]}… ({len(text) - max_chars:,} more characters)"
