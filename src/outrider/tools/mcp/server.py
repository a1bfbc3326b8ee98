"""One server: its tools, resources and prompts, and what is asked of it over whichever connection it has."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import msgspec

from outrider.tools.context import Progress, ToolContext
from outrider.tools.mcp.config import Limits, ServerConfig, hide
from outrider.tools.mcp.connection import (
    Definition,
    Hold,
    Host,
    Life,
    Link,
    LinkLost,
    Listed,
    Listener,
    Prompt,
    PromptMessage,
    Question,
    Reply,
    Report,
    Resource,
    ServerFault,
    SessionForgotten,
)
from outrider.tools.tool import ToolResult


class Retries:
    """A server that never served has failed at once; one that died gets its chances, each later
    than the one before."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._deaths = 0

    def after(self, served: float | None) -> float | None:
        """Seconds to wait after a connection that served so long; None to give up."""
        if served is None and not self._deaths:
            return None
        self._deaths = 1 if served is not None and served >= self._limits.steady else self._deaths + 1
        if self._deaths > self._limits.reconnects:
            return None
        return min(self._limits.longest_delay, self._limits.first_delay * 2 ** (self._deaths - 1))


State = Literal["connecting", "ready", "failed", "closed"]


class Status(msgspec.Struct, frozen=True):
    """`error` says why the server failed, or why its last connection ended."""

    state: State
    error: str = ""


class Owner:
    """`own` runs until `close`. `learn` is awaited with each new link before the server counts as ready; `tell` hears
    of every status."""

    def __init__(
        self,
        config: ServerConfig,
        host: Host,
        learn: Callable[[Link], Awaitable[None]],
        stale: Callable[[Listed], None],
        log: Report,
        tell: Callable[[], None],
    ) -> None:
        self.status = Status("connecting")
        self._config = config
        self._host = host
        self._learn = learn
        self._stale = stale
        self._log = log
        self._tell = tell
        self._link: Link | None = None
        self._life: Life | None = None
        self._settled = asyncio.Event()  # ready, failed or closed: nothing comes by waiting
        self._asked = asyncio.Event()  # for a new attempt, or for the end
        self._closing = False
        self._is_legacy = False

    async def own(self, hold: Hold) -> None:
        retries = Retries(self._host.limits)
        while not self._closing:
            self._asked.clear()
            delay = retries.after(await self._live(hold))
            if delay is None and not self._closing:
                self._change("failed")
                retries = Retries(self._host.limits)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._asked.wait()
        self._change("closed")

    async def settled(self) -> Status:
        await self._settled.wait()
        return self.status

    def reconnect(self) -> None:
        """Try a failed server again, or at once what would be tried later."""
        if self.status.state == "failed":
            self._change("connecting")
        self._asked.set()

    def close(self) -> None:
        self._closing = True
        self._asked.set()
        if self._life is not None:
            self._life.end("it was closed")

    async def link(self) -> tuple[Link, Life]:
        """Waits for a connection that is being made, as long as a start may take."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._host.limits.startup):
                await self._settled.wait()
        if self._link is None or self._life is None:
            why = f": {self.status.error}" if self.status.error else ""
            raise ServerFault(f"the MCP server {self._config.name} is not there ({self.status.state}){why}")
        return self._link, self._life

    async def _live(self, hold: Hold) -> float | None:
        """For how many seconds one connection served, or None. Some older servers do not bear to be asked for what is
        new and die of it, so those that die at the start get another one without."""
        life = await self._connect(hold)
        if life.served is None and life.has_died and not self._is_legacy and not self._closing:
            self._is_legacy = True
            life = await self._connect(hold)
            self._is_legacy = life.served is not None
        return life.served

    async def _connect(self, hold: Hold) -> Life:
        self._change("connecting")
        self._life = life = Life(Listener(self._ready, self._ended, self._stale, self._log))
        await hold(self._config, self._host, life, legacy=self._is_legacy)
        life.end("the connection ended")
        return life

    async def _ready(self, link: Link) -> None:
        await self._learn(link)
        self._link = link
        self._change("ready", "")

    def _ended(self) -> None:
        self._link = None
        if self._closing:
            self._change("closed")
        elif self._life is not None:
            self._change("connecting", hide(self._life.reason, self._config))

    def _change(self, state: State, error: str | None = None) -> None:
        if state == "connecting":
            self._settled.clear()
        else:
            self._settled.set()
        status = Status(state, self.status.error if error is None else error)
        if status != self.status:
            self.status = status
            self._tell()


_log = logging.getLogger("outrider.mcp")
T = TypeVar("T")
LATE_NEWS = 1.0  # seconds
CALM = 0.2  # seconds between a change of a list and its reading, in which further changes come for free


class News(msgspec.Struct, frozen=True):
    """Something about a server is different: its state, or one of its lists."""

    server: str
    what: Literal["state"] | Listed
    status: Status


class Server:
    """`own` runs until `close`; everything else may be called from any task of the same event loop."""

    def __init__(self, config: ServerConfig, host: Host, tell: Callable[[News], None]) -> None:
        self.config = config
        self.definitions: dict[str, Definition] = {}
        self.instructions = ""
        self._limits = host.limits
        self._ask_user = host.ask
        self._listener = tell
        asking = msgspec.structs.replace(host, ask=self._question if host.ask else None)
        self._owner = Owner(config, asking, self._meet, self._list_changed, self._logged, lambda: self._tell("state"))
        self._tasks: asyncio.TaskGroup | None = None
        self._open = 0  # questions that await an answer
        self._is_stale = False
        self._reports: list[Report] = []

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def status(self) -> Status:
        return self._owner.status

    async def own(self, hold: Hold, tasks: asyncio.TaskGroup) -> None:
        """Until `close`; what is asked of the server runs in the same group of tasks."""
        self._tasks = tasks
        await self._owner.own(hold)

    async def settled(self) -> Status:
        return await self._owner.settled()

    def reconnect(self) -> None:
        """Try a failed server again, or at once what would be tried later."""
        self._owner.reconnect()

    def close(self) -> None:
        self._owner.close()

    async def call(self, definition: Definition, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        """What was shown for approval is what runs: a tool that has changed meanwhile does not."""

        async def question(link: Link) -> ToolResult:
            current = self.definitions.get(definition.name)
            if current is None:
                raise ServerFault(f"the MCP server {self.name} no longer has the tool {definition.name}")
            if current.fingerprint != definition.fingerprint:
                raise ServerFault(f"the MCP server {self.name} has changed {definition.name}; nothing was run")
            return await link.call_tool(definition.name, arguments, context.report)

        self._reports.append(context.report)
        try:
            return await self._ask(question)
        finally:
            self._reports.remove(context.report)

    async def list_resources(self) -> list[Resource]:
        return await self._ask(lambda link: link.list_resources(), self._limits.listing)

    async def read_resource(self, uri: str) -> ToolResult:
        return await self._ask(lambda link: link.read_resource(uri), self._limits.listing)

    async def list_prompts(self) -> list[Prompt]:
        return await self._ask(lambda link: link.list_prompts(), self._limits.listing)

    async def get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> tuple[PromptMessage, ...]:
        return await self._ask(lambda link: link.get_prompt(name, arguments or {}), self._limits.listing)

    async def _ask(self, question: Callable[[Link], Awaitable[T]], limit: float | None = None) -> T:
        try:
            async with asyncio.timeout(limit):
                try:
                    return await self._ask_once(question)
                except SessionForgotten:  # nothing was done, so it can be asked again
                    return await self._ask_once(question)
        except TimeoutError:
            if limit is None:
                raise
            raise ServerFault(f"the MCP server {self.name} did not answer within {limit:g} s") from None

    async def _ask_once(self, question: Callable[[Link], Awaitable[T]]) -> T:
        link, life = await self._owner.link()
        assert self._tasks is not None
        self._open += 1
        try:
            return await _apart(self._tasks, question(link))
        except SessionForgotten:
            raise
        except LinkLost as lost:
            raise ServerFault(await self._epitaph(life, lost)) from lost
        finally:
            self._open -= 1

    async def _question(self, question: Question) -> Reply:
        """A server may ask when it was asked for something; out of the blue it would only be a nuisance."""
        if self._ask_user is None or not self._open:
            return Reply("decline")
        return await self._ask_user(question)

    async def _epitaph(self, life: Life, lost: LinkLost) -> str:
        """The news of a death may come a little later than the loss; what is asked next must find it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATE_NEWS):
                await life.over.wait()
        life.end(lost.message)
        reason = hide(life.reason, self.config)
        return f"the MCP server {self.name} was lost during the call, whose effect is not known: {reason}"

    async def _meet(self, link: Link) -> None:
        self._learn(await link.list_tools())
        self.instructions = link.instructions

    def _tell(self, what: Literal["state"] | Listed) -> None:
        try:
            self._listener(News(self.name, what, self.status))
        except Exception:  # noqa: BLE001  what a listener does wrong stays with the listener
            _log.exception("a listener failed on news of the MCP server %s", self.name)

    def _logged(self, progress: Progress) -> None:
        """Nothing says which call a server's log belongs to, so every open one gets it."""
        for report in self._reports:
            report(progress)

    def _list_changed(self, what: Listed) -> None:
        if what != "tools":
            self._tell(what)
        elif not self._is_stale and self._tasks is not None:
            self._is_stale = True
            self._tasks.create_task(self._relist())

    async def _relist(self) -> None:
        await asyncio.sleep(CALM)
        self._is_stale = False
        with contextlib.suppress(ServerFault):
            self._learn(await self._ask(lambda link: link.list_tools(), self._limits.listing))

    def _learn(self, definitions: list[Definition]) -> None:
        found = {definition.name: definition for definition in definitions}
        if found != self.definitions:
            self.definitions = found
            self._tell("tools")


async def _apart(tasks: asyncio.TaskGroup, question: Awaitable[T]) -> T:
    """In a task of its own, so that who asks can stop waiting at once, also while the SDK takes its leave."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    task = tasks.create_task(_settle(question, answer))
    try:
        return await answer
    finally:
        task.cancel()


async def _settle(question: Awaitable[T], answer: asyncio.Future[T]) -> None:
    try:
        value = await question
    except asyncio.CancelledError:
        if not answer.done():
            answer.set_exception(LinkLost("the connection was closed"))
        raise
    except Exception as error:  # noqa: BLE001  it belongs to who asked
        if not answer.done():
            answer.set_exception(error)
    else:
        if not answer.done():
            answer.set_result(value)
