"""One server and its owner: the task that connects, connects again after a death, and says how things stand."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import msgspec

from outrider.tools.context import Progress, ToolContext
from outrider.tools.mcp.config import ServerConfig, hide
from outrider.tools.mcp.definitions import Definition, Prompt, Resource
from outrider.tools.mcp.faults import LinkLost, ServerFault, SessionForgotten
from outrider.tools.mcp.link import Hold, Host, Life, Link, Listed, Listener, PromptMessage, Report
from outrider.tools.mcp.retries import Retries
from outrider.tools.tool import ToolResult

_log = logging.getLogger("outrider.mcp")
T = TypeVar("T")
State = Literal["connecting", "ready", "failed", "closed"]
LATE_NEWS = 1.0  # seconds
CALM = 0.2  # seconds between a change of a list and its reading, in which further changes come for free


class Status(msgspec.Struct, frozen=True):
    """`error` says why the server failed, or why its last connection ended."""

    state: State
    error: str = ""


class News(msgspec.Struct, frozen=True):
    """Something about a server is different: its state, or one of its lists."""

    server: str
    what: Literal["state"] | Listed
    status: Status


class Server:
    """`own` runs until `close`; everything else may be called from any task of the same loop."""

    def __init__(self, config: ServerConfig, host: Host, tell: Callable[[News], None]) -> None:
        self.config = config
        self.status = Status("connecting")
        self.definitions: dict[str, Definition] = {}
        self.instructions = ""
        self._host = host
        self._listener = tell
        self._link: Link | None = None
        self._life: Life | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._settled = asyncio.Event()  # ready, failed or closed: nothing comes by waiting
        self._asked = asyncio.Event()  # for a new attempt, or for the end
        self._closing = False
        self._is_legacy = False
        self._is_stale = False
        self._reports: list[Report] = []

    @property
    def name(self) -> str:
        return self.config.name

    async def own(self, hold: Hold, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
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
        return await self._ask(lambda link: link.list_resources(), self._host.limits.listing)

    async def read_resource(self, uri: str) -> ToolResult:
        return await self._ask(lambda link: link.read_resource(uri), self._host.limits.listing)

    async def list_prompts(self) -> list[Prompt]:
        return await self._ask(lambda link: link.list_prompts(), self._host.limits.listing)

    async def get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> tuple[PromptMessage, ...]:
        return await self._ask(lambda link: link.get_prompt(name, arguments or {}), self._host.limits.listing)

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
        link = await self._ready_link()
        assert self._tasks is not None
        assert self._life is not None
        life = self._life
        try:
            return await _apart(self._tasks, question(link))
        except SessionForgotten:
            raise
        except LinkLost as lost:
            raise ServerFault(await self._epitaph(life, lost)) from lost

    async def _epitaph(self, life: Life, lost: LinkLost) -> str:
        """The news of a death may come a little later than the loss; what is asked next must find it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATE_NEWS):
                await life.over.wait()
        life.end(lost.message)
        reason = hide(life.reason, self.config)
        return f"the MCP server {self.name} was lost during the call, whose effect is not known: {reason}"

    async def _ready_link(self) -> Link:
        """Waits for a connection that is being made, as long as a start may take."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._host.limits.startup):
                await self._settled.wait()
        if self._link is None:
            why = f": {self.status.error}" if self.status.error else ""
            raise ServerFault(f"the MCP server {self.name} is not there ({self.status.state}){why}")
        return self._link

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
        self._life = life = Life(Listener(self._ready, self._ended, self._list_changed, self._logged))
        await hold(self.config, self._host, life, legacy=self._is_legacy)
        life.end("the connection ended")
        return life

    async def _ready(self, link: Link) -> None:
        self._learn(await link.list_tools())
        self.instructions = link.instructions
        self._link = link
        self._change("ready", "")

    def _ended(self) -> None:
        self._link = None
        if self._closing:
            self._change("closed")
        elif self._life is not None:
            self._change("connecting", hide(self._life.reason, self.config))

    def _change(self, state: State, error: str | None = None) -> None:
        if state == "connecting":
            self._settled.clear()
        else:
            self._settled.set()
        status = Status(state, self.status.error if error is None else error)
        if status != self.status:
            self.status = status
            self._tell("state")

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
            self._learn(await self._ask(lambda link: link.list_tools(), self._host.limits.listing))

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
