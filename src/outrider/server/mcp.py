"""The MCP server beside the API, at /mcp: the same tools and the same rules as on standard input and output."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError as McpToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import ToolAnnotations
from pydantic import Field
from starlette.routing import BaseRoute

from outrider.config.settings import Settings
from outrider.engine.archive import Archive, Transcript, TurnEnd, open_archive
from outrider.engine.engine import Engine
from outrider.engine.factory import standard_engine
from outrider.engine.frontend import archive_of
from outrider.errors import ConfigurationError, OutriderError
from outrider.types.events import Event, PartUpdatedEvent, ToolExecutionStartedEvent, TurnStartedEvent
from outrider.types.messages import Message
from outrider.types.parts import FilePart, TextPart, ToolPart, tool_result
from outrider.types.tool_state import ToolError

LONGEST_OUTPUT = 2_000  # characters of one call's output


def as_text(transcript: Transcript) -> str:
    session = transcript.session
    head = f"# {session.title or 'untitled'}\nsession {session.id}, in {session.workspace_directory or 'no folder'}"
    earlier = [] if transcript.first else ["(earlier messages are left out)"]
    return valid("\n\n".join([head, *earlier, *(_told(message) for message in transcript.messages)]))


def _told(message: Message) -> str:
    who = "user" if message.role == "user" else message.agent or "assistant"
    return "\n".join([f"## {who}", *_lines(message)])


def _lines(message: Message) -> Iterable[str]:
    for part in message.parts:
        match part:
            case TextPart(synthetic=False, text=text) if text.strip():
                yield text
            case FilePart():
                yield f"[file {part.filename or part.mime}]"
            case ToolPart():
                yield _call(part)
            case _:
                pass
    if message.error is not None:
        yield f"[broke off: {message.error.message}]"


def _call(call: ToolPart) -> str:
    result = tool_result(call)
    if result is None:
        return f"[{call.tool} {call.state.input}: {call.state.status}]"
    text = result.content
    shown = text if len(text) <= LONGEST_OUTPUT else f"{text[:LONGEST_OUTPUT]}… ({len(text)} characters)"
    return f"[{call.tool} {call.state.input}: {call.state.status}]\n{shown}"


def valid(text: str) -> str:
    """Half a surrogate pair is no text."""
    return text.encode("utf-8", "replace").decode()


Less = Literal["chat", "plan"]
Report = Callable[[float, str], Awaitable[None]]
BY = "mcp"


@dataclass(frozen=True)  # the SDK makes a schema of it
class RunReport:
    """`ended` is completed, or why the work stopped early; `refused` are calls that nobody could approve."""

    session_id: str
    output: str
    ended: str
    refused: list[str]


class Runs:
    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    async def run(self, prompt: str, session_id: str, mode: Less | None, report: Report) -> RunReport:
        """Raises OutriderError where the model or the session cannot be reached."""
        if not prompt.strip():
            raise ConfigurationError("the prompt is empty")
        session_id = await self._session(session_id, mode)
        watching = _Watching(session_id, report)
        stop = self._engine.bus.subscribe_all(watching.hear)
        try:
            end = await self._turn(session_id, prompt)
            await self._engine.bus.settled()
        finally:
            stop()
        if end.error is not None:
            raise end.error
        return RunReport(session_id=session_id, output=valid(end.output), ended=end.reason, refused=watching.refused)

    async def _session(self, session_id: str, mode: Less | None) -> str:
        """One that goes on does so in the folder of this server, and with no more rights than a new one has."""
        wanted = mode or self._settings.mode
        if not session_id:
            return await self._engine.create(mode=wanted, workspace=self._settings.workspace)
        stored = await self._engine.store.get(session_id)
        if stored.workspace_directory != str(self._settings.workspace):
            raise OutriderError(f"session {session_id} works in another folder: {stored.workspace_directory}")
        await self._engine.open(session_id)
        await self._engine.set_mode(session_id, wanted)
        return session_id

    async def _turn(self, session_id: str, prompt: str) -> TurnEnd:
        try:
            return await self._engine.prompt(session_id, prompt, sender=BY)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self._engine.abort(session_id)
            raise


class _Watching:
    """Tells what a run is doing, and keeps what it was not allowed to do."""

    def __init__(self, session_id: str, report: Report) -> None:
        self._session_id = session_id
        self._report = report
        self._steps = 0
        self.refused: list[str] = []

    async def hear(self, event: Event) -> None:
        if event.session_id != self._session_id:
            return
        match event:
            case TurnStartedEvent():
                await self._tell("thinking")
            case ToolExecutionStartedEvent():
                await self._tell(event.tool_name)
            case PartUpdatedEvent(part=ToolPart(tool=tool, state=ToolError(reason="denied", error=error))):
                self.refused.append(f"{tool}: {error}")
            case _:
                pass

    async def _tell(self, doing: str) -> None:
        self._steps += 1
        await self._report(self._steps, doing)


INSTRUCTIONS = """\
Outrider is a coding agent that works in one folder of this machine. `run_agent` gives it work and waits for the end; \
it reads, searches, and changes what its user's rules allow. `search_sessions` and `read_session` find what was said \
and done before, in any folder."""
MOST_HITS = 100
MOST_MESSAGES = 200
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_WORKS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)


@dataclass(frozen=True)
class Found:
    session_id: str
    title: str
    kind: str
    snippet: str


class OtherAgents:
    """The tools. Without a model there is nobody to run, and `missing` says why; what was kept can still be read."""

    def __init__(self, archive: Archive, runs: Runs | None, missing: str) -> None:
        self._archive = archive
        self._runs = runs
        self._missing = missing

    async def run_agent(
        self,
        prompt: Annotated[str, Field(description="The work, with all that the agent needs to know.")],
        ctx: Context[Any, Any],
        session_id: Annotated[str, Field(description="Go on with this session of the same folder.")] = "",
        mode: Annotated[
            Less | None, Field(description="Less than the agent may otherwise do: plan only reads, chat only talks.")
        ] = None,
    ) -> RunReport:
        """Let an agent work on a task, and wait for its answer. Calls that need an approval are refused and named."""
        if self._runs is None:
            raise McpToolError(self._missing)

        async def report(step: float, doing: str) -> None:
            await ctx.report_progress(step, None, doing)

        try:
            return await self._runs.run(prompt, session_id, mode, report)
        except OutriderError as error:
            raise McpToolError(str(error)) from error

    async def search_sessions(
        self,
        words: Annotated[str, Field(description="Words that stand in a title, in what was said, or in tool output.")],
        limit: Annotated[int, Field(ge=1, le=MOST_HITS)] = 20,
    ) -> list[Found]:
        """Find earlier sessions. In a snippet, « and » stand around the words."""
        try:
            hits = await self._archive.search(words, limit=limit)
        except OutriderError as error:
            raise McpToolError(str(error)) from error
        return [Found(session_id=hit.session_id, title=hit.title, kind=hit.kind, snippet=hit.snippet) for hit in hits]

    async def read_session(
        self,
        session_id: Annotated[str, Field(description="An id, the end of one, or `last`.")],
        last: Annotated[int, Field(ge=1, le=MOST_MESSAGES, description="How many messages from its end.")] = 20,
    ) -> str:
        """Read a session as text: what was said, and how the calls of tools ended."""
        try:
            found = await self._archive.find(session_id)
            return as_text(await self._archive.load(found.id, last=last))
        except OutriderError as error:
            raise McpToolError(str(error)) from error


async def serve_agents(settings: Settings, version: str) -> None:
    """Serves until the client closes stdin."""
    async with AsyncExitStack() as opened:
        if settings.missing:
            archive, runs = await opened.enter_async_context(open_archive(settings.folders.store)), None
        else:
            engine = await opened.enter_async_context(
                standard_engine(settings, workspace=settings.workspace, attended=False)
            )
            archive, runs = archive_of(engine), Runs(engine, settings)
        await mcp_server(OtherAgents(archive, runs, settings.missing), version).run_stdio_async()


def mcp_server(agents: OtherAgents, version: str) -> "MCPServer[Any]":
    server = MCPServer[Any](
        "outrider", title="Outrider", instructions=INSTRUCTIONS, version=version, log_level="WARNING"
    )
    server.add_tool(agents.run_agent, annotations=_WORKS)
    server.add_tool(agents.search_sessions, annotations=_READS)
    server.add_tool(agents.read_session, annotations=_READS)
    return server


SESSIONS = 100  # of the protocol, at once
# Hosts and origins are the guard's matter, which stands before every route.
_GUARDED = TransportSecuritySettings(enable_dns_rebinding_protection=False)


@asynccontextmanager
async def mcp_routes(engine: Engine, settings: Settings, version: str) -> AsyncGenerator[Sequence[BaseRoute], None]:
    """Another agent gives its orders here, so nobody is asked: its engine has the same parts and no one beside it."""
    async with engine.like(attended=False) as alone:
        server = mcp_server(OtherAgents(archive_of(alone), Runs(alone, settings), settings.missing), version)
        routes = server.streamable_http_app(transport_security=_GUARDED, max_sessions=SESSIONS).routes
        async with server.session_manager.run():
            yield routes
