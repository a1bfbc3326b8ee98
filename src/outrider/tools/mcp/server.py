"""One MCP server: reconnection, tool list and requests over the current connection."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Literal, TypeVar

import msgspec

from outrider.errors import ToolFailure
from outrider.tools.mcp.config import ServerConfig, ServerLimits, hide_secrets
from outrider.tools.mcp.connection import (
    CURRENT_CALL,
    ConnectionLifetime,
    ConnectionListener,
    ConnectionRunner,
    Elicitation,
    ElicitationReply,
    LinkLost,
    ListKind,
    McpHost,
    McpPrompt,
    McpResource,
    PromptMessage,
    ReportProgress,
    SamplingReply,
    SamplingRequest,
    ServerFault,
    ServerLink,
    SessionForgotten,
    ToolDefinition,
    ValueQuery,
    VisitRequired,
)
from outrider.tools.tool import Progress, ToolContext, ToolResult
from outrider.types.tool_state import WAITED


class ReconnectBackoff:
    """Exponential backoff for reconnects. A server whose first connection failed is not retried."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._failures = 0

    def next_delay(self, served: float | None) -> float | None:
        """Returns the seconds to wait after a connection with this service time; None to give up."""
        if served is None and not self._failures:
            return None
        self._failures = 1 if served is not None and served >= self._limits.steady else self._failures + 1
        if self._failures > self._limits.reconnects:
            return None
        return min(self._limits.longest_delay, self._limits.first_delay * 2 ** (self._failures - 1))


ConnectionState = Literal["connecting", "ready", "failed", "closed"]


class ServerStatus(msgspec.Struct, frozen=True):
    """State of a server. `error` is the cause of a failure or of the last disconnect."""

    state: ConnectionState
    error: str = ""


class ConnectionOwner:
    """Keeps one server connected; `run` returns after `close`.

    The callback `load` is awaited with each new link before the state becomes ready; `notify` is called on each status
    change.
    """

    def __init__(
        self,
        config: ServerConfig,
        host: McpHost,
        load: Callable[[ServerLink], Awaitable[None]],
        stale: Callable[[ListKind], None],
        log: ReportProgress,
        notify: Callable[[], None],
    ) -> None:
        self.status = ServerStatus("connecting")
        self._config = config
        self._host = host
        self._load = load
        self._stale = stale
        self._log = log
        self._notify = notify
        self._link: ServerLink | None = None
        self._life: ConnectionLifetime | None = None
        self._settled = asyncio.Event()  # set in the states ready, failed and closed
        self._wake = asyncio.Event()  # set to reconnect now or to close
        self._closing = False
        self._is_legacy = False

    async def run(self, hold: ConnectionRunner) -> None:
        retries = ReconnectBackoff(self._host.limits)
        while not self._closing:
            self._wake.clear()
            delay = retries.next_delay(await self._serve_once(hold))
            if self._needs_login():
                self._set_status("failed")
                await self._wait_for_login()
                continue
            if delay is None and not self._closing:
                self._set_status("failed")
                retries = ReconnectBackoff(self._host.limits)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()
        self._set_status("closed")

    def _needs_login(self) -> bool:
        return self._life is not None and bool(self._life.login_problem) and not self._closing

    async def _wait_for_login(self) -> None:
        """Waits until the user has logged in, in this process or another one."""
        logins = self._host.logins
        last_change = logins.changed_at() if logins else 0
        while not self._wake.is_set() and logins is not None and logins.changed_at() == last_change:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOGIN_POLL):
                    await self._wake.wait()

    async def wait_settled(self) -> ServerStatus:
        await self._settled.wait()
        return self.status

    def reconnect(self) -> None:
        """Retries a failed server, or skips the remaining backoff delay."""
        if self.status.state == "failed":
            self._set_status("connecting")
        self._wake.set()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        if self._life is not None:
            self._life.end("it was closed")

    async def wait_for_link(self) -> tuple[ServerLink, ConnectionLifetime]:
        """Waits for a connection attempt up to the start-up limit. Raises ServerFault if the server is not
        connected."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._host.limits.startup):
                await self._settled.wait()
        if self._link is None or self._life is None:
            reason = f": {self.status.error}" if self.status.error else ""
            raise ServerFault(f"the MCP server {self._config.name} is not connected ({self.status.state}){reason}")
        return self._link, self._life

    async def _serve_once(self, hold: ConnectionRunner) -> float | None:
        """Runs one connection and returns its service time, or None.

        Some older servers crash on unknown requests of the newer protocol. A server that exits during start-up is
        therefore started again in legacy mode.
        """
        life = await self._run_connection(hold)
        if life.seconds_served is None and life.has_died and not self._is_legacy and not self._closing:
            self._is_legacy = True
            life = await self._run_connection(hold)
            self._is_legacy = life.seconds_served is not None
        return life.seconds_served

    async def _run_connection(self, hold: ConnectionRunner) -> ConnectionLifetime:
        self._set_status("connecting")
        self._life = life = ConnectionLifetime(
            ConnectionListener(self._on_ready, self._on_ended, self._stale, self._log)
        )
        await hold(self._config, self._host, life, legacy=self._is_legacy)
        life.end("the connection ended")
        return life

    async def _on_ready(self, link: ServerLink) -> None:
        await self._load(link)
        self._link = link
        self._set_status("ready", "")

    def _on_ended(self) -> None:
        self._link = None
        if self._closing:
            self._set_status("closed")
        elif self._life is not None:
            self._set_status("connecting", hide_secrets(self._life.reason, self._config))

    def _set_status(self, state: ConnectionState, error: str | None = None) -> None:
        if state == "connecting":
            self._settled.clear()
        else:
            self._settled.set()
        status = ServerStatus(state, self.status.error if error is None else error)
        if status != self.status:
            self.status = status
            self._notify()


_log = logging.getLogger("outrider.mcp")
T = TypeVar("T")
LOSS_REASON_WAIT = 1.0  # seconds
LOGIN_POLL = 2.0  # seconds between looks at the stored logins, while a server needs one
RELIST_DELAY = 0.2  # seconds to wait before a list is read again, to merge several changes into one request


class ServerUpdate(msgspec.Struct, frozen=True):
    """A status or list change of one server."""

    server: str
    what: Literal["state"] | ListKind
    status: ServerStatus


Asked = TypeVar("Asked")
COMPLETION_SECONDS = 5.0  # a user who types does not wait longer
MAX_REQUESTS_PER_CALL = 20  # questions and model answers that a server may ask for during one call


class _OpenCall:
    """A running call and its time limit, which pauses while the user or the model answers."""

    def __init__(self, context: ToolContext, timer: asyncio.Timeout) -> None:
        self.context = context
        self._timer = timer
        self._requests = 0
        self._waiting = 0
        self._seconds_left = 0.0
        self._waited = 0.0

    def is_exhausted(self) -> bool:
        self._requests += 1
        return self._requests > MAX_REQUESTS_PER_CALL

    async def wait_for(self, ask: Callable[[Asked], Awaitable[T]], question: Asked) -> T:
        token, started = CURRENT_CALL.set(self.context), monotonic()
        self._pause()
        try:
            return await ask(question)
        finally:
            CURRENT_CALL.reset(token)
            self._waited += monotonic() - started
            self._resume()
            self.context.report(Progress(metadata={WAITED: round(self._waited * 1000)}))

    def _pause(self) -> None:
        self._waiting += 1
        if self._waiting == 1 and (due := self._timer.when()) is not None:
            self._seconds_left = due - asyncio.get_running_loop().time()
            self._timer.reschedule(None)

    def _resume(self) -> None:
        self._waiting -= 1
        if not self._waiting and self._seconds_left > 0 and not self._timer.expired():
            with contextlib.suppress(RuntimeError):  # the call has ended meanwhile
                self._timer.reschedule(asyncio.get_running_loop().time() + self._seconds_left)


class McpServer:
    """One configured server. `run` returns after `close`; other methods can be called from any task of the same event
    loop."""

    def __init__(self, config: ServerConfig, host: McpHost, tell: Callable[[ServerUpdate], None]) -> None:
        self.config = config
        self.definitions: dict[str, ToolDefinition] = {}
        self.instructions = ""
        self._limits = host.limits
        self._ask_user = host.ask
        self._listener = tell
        self._sample = host.sample
        asking = msgspec.structs.replace(
            host,
            ask=self._answer_elicitation if host.ask else None,
            sample=self._answer_sampling if host.sample else None,
        )
        self._owner = ConnectionOwner(
            config, asking, self._load_server, self._list_changed, self._forward_log, lambda: self._notify("state")
        )
        self._tasks: asyncio.TaskGroup | None = None
        self._open_requests = 0  # requests without a response
        self._is_stale = False
        self._reload: asyncio.Task[None] | None = None  # reads the list of tools again
        self._calls: list[_OpenCall] = []

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def status(self) -> ServerStatus:
        return self._owner.status

    async def run(self, hold: ConnectionRunner, tasks: asyncio.TaskGroup) -> None:
        """Runs until `close`. Requests run as tasks in the same task group."""
        self._tasks = tasks
        await self._owner.run(hold)

    async def wait_settled(self) -> ServerStatus:
        return await self._owner.wait_settled()

    async def wait_listed(self) -> None:
        """Waits until the tools are read again, if the server has reported a change."""
        if self._reload is not None and not self._reload.done():
            await asyncio.wait([self._reload])

    def reconnect(self) -> None:
        """Retries a failed server, or skips the remaining backoff delay."""
        self._owner.reconnect()

    def close(self) -> None:
        self._owner.close()

    async def call_tool(
        self, definition: ToolDefinition, arguments: dict[str, Any], context: ToolContext, *, limit: float | None = None
    ) -> ToolResult:
        """Calls the tool. Raises ServerFault if the definition has changed since it was shown for approval, and
        ToolFailure after `limit` seconds, not counting the time in which the user answers."""

        async def question(link: ServerLink) -> ToolResult:
            current = self.definitions.get(definition.name)
            if current is None:
                raise ServerFault(f"the MCP server {self.name} no longer has the tool {definition.name}")
            if current.fingerprint != definition.fingerprint:
                raise ServerFault(f"the MCP server {self.name} has changed {definition.name}; nothing was run")
            return await link.call_tool(definition.name, arguments, context.report)

        timer = asyncio.timeout(limit)
        call = _OpenCall(context, timer)
        self._calls.append(call)
        token = CURRENT_CALL.set(context)
        try:
            async with timer:
                try:
                    return await self._request(question)
                except VisitRequired as required:
                    await self._ask_visits(required, call)
                    return await self._request(question)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise ToolFailure(f"timed out after {limit:g} s", reason="timeout") from error
        finally:
            CURRENT_CALL.reset(token)
            self._calls.remove(call)

    async def _ask_visits(self, required: VisitRequired, call: "_OpenCall") -> None:
        """Asks the user to visit the addresses. Raises the error again if the user declines."""
        for visit in required.visits:
            if self._ask_user is None or (await call.wait_for(self._ask_user, visit)).action != "accept":
                raise required

    async def list_resources(self) -> list[McpResource]:
        return await self._request(lambda link: link.list_resources(), self._limits.listing)

    async def read_resource(self, uri: str) -> ToolResult:
        return await self._request(lambda link: link.read_resource(uri), self._limits.listing)

    async def list_prompts(self) -> list[McpPrompt]:
        return await self._request(lambda link: link.list_prompts(), self._limits.listing)

    async def get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> tuple[PromptMessage, ...]:
        return await self._request(lambda link: link.get_prompt(name, arguments or {}), self._limits.listing)

    async def complete_value(self, query: ValueQuery) -> Sequence[str]:
        """Returns values that an argument can have; none if the server does not complete arguments."""
        return await self._request(lambda link: link.complete_value(query), COMPLETION_SECONDS)

    async def _request(self, question: Callable[[ServerLink], Awaitable[T]], limit: float | None = None) -> T:
        try:
            async with asyncio.timeout(limit):
                try:
                    return await self._request_once(question)
                except SessionForgotten:  # nothing was executed, so a retry is safe
                    return await self._request_once(question)
        except TimeoutError:
            if limit is None:
                raise
            raise ServerFault(f"the MCP server {self.name} did not answer within {limit:g} s") from None

    async def _request_once(self, question: Callable[[ServerLink], Awaitable[T]]) -> T:
        link, life = await self._owner.wait_for_link()
        assert self._tasks is not None
        self._open_requests += 1
        try:
            return await _run_in_task(self._tasks, question(link))
        except SessionForgotten:
            raise
        except LinkLost as lost:
            raise ServerFault(await self._loss_message(life, lost)) from lost
        finally:
            self._open_requests -= 1

    async def _answer_elicitation(self, question: Elicitation) -> ElicitationReply:
        """Asks the user. Declines without an open request, since the server has no reason to ask then."""
        call = self._find_call()
        if self._ask_user is None or not self._open_requests or (call is not None and call.is_exhausted()):
            return ElicitationReply("decline")
        return await (call.wait_for(self._ask_user, question) if call else self._ask_user(question))

    async def _answer_sampling(self, request: SamplingRequest) -> SamplingReply:
        """Lets the model answer. Refuses without an open call, since the server has no reason to ask then."""
        call = self._find_call()
        if self._sample is None or call is None or call.is_exhausted():
            raise ServerFault("it was refused: no call of this server needs it")
        return await call.wait_for(self._sample, request)

    def _find_call(self) -> "_OpenCall | None":
        """Returns the call in whose task a request arrived. Older protocols do not name the call; the
        newest one is used then."""
        current = CURRENT_CALL.get()
        exact = (call for call in self._calls if call.context is current)
        return next(exact, self._calls[-1] if self._calls else None)

    async def _loss_message(self, life: ConnectionLifetime, lost: LinkLost) -> str:
        """Returns the cause of a lost connection. The exit status may arrive shortly after the loss, so this waits for
        it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOSS_REASON_WAIT):
                await life.ended.wait()
        life.end(lost.message)
        reason = hide_secrets(life.reason, self.config)
        return f"the MCP server {self.name} was lost during the call, whose effect is not known: {reason}"

    async def _load_server(self, link: ServerLink) -> None:
        self._update_tools(await link.list_tools())
        self.instructions = link.instructions

    def _notify(self, kind: Literal["state"] | ListKind) -> None:
        try:
            self._listener(ServerUpdate(self.name, kind, self.status))
        except Exception:  # noqa: BLE001  an exception in a callback must not affect the server
            _log.exception("a listener failed on an update of the MCP server %s", self.name)

    def _forward_log(self, progress: Progress) -> None:
        """Sends a log message to all open calls, because the protocol does not name the call."""
        for call in self._calls:
            call.context.report(progress)

    def _list_changed(self, kind: ListKind) -> None:
        if kind != "tools":
            self._notify(kind)
        elif not self._is_stale and self._tasks is not None:
            self._is_stale = True
            self._reload = self._tasks.create_task(self._reload_tools())

    async def _reload_tools(self) -> None:
        await asyncio.sleep(RELIST_DELAY)
        self._is_stale = False
        with contextlib.suppress(ServerFault):  # the former tools stay until the server reports another change
            self._update_tools(await self._request(lambda link: link.list_tools(), self._limits.listing))

    def _update_tools(self, definitions: list[ToolDefinition]) -> None:
        by_name = {definition.name: definition for definition in definitions}
        if by_name != self.definitions:
            self.definitions = by_name
            self._notify("tools")


async def _run_in_task(tasks: asyncio.TaskGroup, question: Awaitable[T]) -> T:
    """Runs the request in a separate task, so that a cancelled caller returns at once while the SDK cleans up."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    task = tasks.create_task(_resolve_answer(question, answer))
    try:
        return await answer
    finally:
        task.cancel()


async def _resolve_answer(question: Awaitable[T], answer: asyncio.Future[T]) -> None:
    try:
        value = await question
    except asyncio.CancelledError:
        if not answer.done():
            answer.set_exception(LinkLost("the connection was closed"))
        raise
    except Exception as error:  # noqa: BLE001  it is raised in the caller
        if not answer.done():
            answer.set_exception(error)
    else:
        if not answer.done():
            answer.set_result(value)
