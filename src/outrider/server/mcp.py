"""The MCP server: runs agents and reads sessions for other agents, over stdio or at /mcp of the HTTP server."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, assert_never, cast

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError as McpToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import ToolAnnotations
from pydantic import Field
from starlette.routing import BaseRoute

from outrider.config.settings import Settings
from outrider.engine.archive import SessionArchive, SessionTranscript, TurnOutcome, open_archive
from outrider.engine.engine import Engine
from outrider.engine.factory import standard_engine
from outrider.engine.frontend import archive_of
from outrider.errors import ConfigurationError, OutriderError
from outrider.presentation.formats import replace_surrogates
from outrider.presentation.items import (
    CommandItem,
    FileItem,
    NoticeItem,
    ReasoningItem,
    TextItem,
    ToolCallItem,
    TranscriptItem,
    UserItem,
    event_notice,
    message_items,
)
from outrider.types.events import Event, PartUpdatedEvent, ToolExecutionStartedEvent, TurnStartedEvent
from outrider.types.messages import Message
from outrider.types.parts import FilePart, ToolPart, tool_result
from outrider.types.tool_state import ToolError

MAX_OUTPUT_CHARS = 2_000  # characters per tool output


def render_transcript(transcript: SessionTranscript) -> str:
    session = transcript.session
    head = f"# {session.title or 'untitled'}\nsession {session.id}, in {session.workspace_directory or 'no folder'}"
    earlier = [] if transcript.first else ["(earlier messages are left out)"]
    return replace_surrogates(
        "\n\n".join([head, *earlier, *(_render_message(message) for message in transcript.messages)])
    )


def _render_message(message: Message) -> str:
    author = "user" if message.role == "user" else message.agent or "assistant"
    items = cast("Iterable[TranscriptItem]", message_items(message))
    return "\n".join([f"## {author}", *(text for item in items for text in _render_item(item))])


def _render_item(item: TranscriptItem) -> Iterator[str]:
    match item:
        case UserItem():
            yield from [item.text] if item.text.strip() else []
            yield from (_render_file(file) for file in item.files)
        case ReasoningItem():
            pass  # another agent needs the answers, not how they came about
        case TextItem():
            yield item.text
        case ToolCallItem():
            yield _render_call(item.part)
        case FileItem():
            yield _render_file(item.part)
        case NoticeItem():
            if item.level != "detail":
                yield f"[{item.text}]\n{item.body}".rstrip()
        case CommandItem():
            yield f"[the user ran {item.command}]\n{_shorten_output(item.output)}".rstrip()
        case _:
            assert_never(item)


def _render_file(file: FilePart) -> str:
    return f"[file {file.filename or file.mime}]"


def _render_call(call: ToolPart) -> str:
    result = tool_result(call)
    if result is None:
        return f"[{call.tool} {call.state.input}: {call.state.status}]"
    return f"[{call.tool} {call.state.input}: {call.state.status}]\n{_shorten_output(result.content)}"


def _shorten_output(text: str) -> str:
    return text if len(text) <= MAX_OUTPUT_CHARS else f"{text[:MAX_OUTPUT_CHARS]}… ({len(text)} characters)"


RestrictedMode = Literal["chat", "plan"]
ProgressCallback = Callable[[float, str], Awaitable[None]]
MCP_SENDER = "mcp"


@dataclass(frozen=True)  # the MCP SDK derives a JSON schema from it
class RunReport:
    """The result of `run_agent`. `ended` is "completed" or why the turn stopped early; `refused` lists calls that were
    denied because no user can approve them here."""

    session_id: str
    output: str
    ended: str
    refused: list[str]


class McpRunner:
    """Runs prompts in sessions of one workspace."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    async def run_prompt(
        self, prompt: str, session_id: str, mode: RestrictedMode | None, report: ProgressCallback
    ) -> RunReport:
        """Runs a turn and returns its result. Raises OutriderError if the model or the session cannot be used."""
        if not prompt.strip():
            raise ConfigurationError("the prompt is empty")
        session_id = await self._open_session(session_id, mode)
        progress = _RunProgress(session_id, report)
        unsubscribe = self._engine.bus.subscribe_all(progress.handle_event)
        try:
            end = await self._run_turn(session_id, prompt)
            await self._engine.bus.settled()
        finally:
            unsubscribe()
        if end.error is not None:
            raise end.error
        return RunReport(
            session_id=session_id, output=replace_surrogates(end.output), ended=end.reason, refused=progress.refused
        )

    async def _open_session(self, session_id: str, mode: RestrictedMode | None) -> str:
        """Opens a session of this server's workspace in the same mode as a new one, or creates one."""
        effective_mode = mode or self._settings.mode
        if not session_id:
            return await self._engine.create(mode=effective_mode, workspace=self._settings.workspace)
        stored = await self._engine.store.get(session_id)
        if stored.workspace_directory != str(self._settings.workspace):
            raise OutriderError(f"session {session_id} belongs to another folder: {stored.workspace_directory}")
        await self._engine.open(session_id)
        await self._engine.set_mode(session_id, effective_mode)
        return session_id

    async def _run_turn(self, session_id: str, prompt: str) -> TurnOutcome:
        try:
            return await self._engine.prompt(session_id, prompt, sender=MCP_SENDER)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self._engine.abort(session_id)
            raise


class _RunProgress:
    """Reports progress of a run and collects its denied calls."""

    def __init__(self, session_id: str, report: ProgressCallback) -> None:
        self._session_id = session_id
        self._report = report
        self._steps = 0
        self.refused: list[str] = []

    async def handle_event(self, event: Event) -> None:
        if event.session_id != self._session_id:
            return
        match event:
            case TurnStartedEvent():
                await self._report_step("thinking")
            case ToolExecutionStartedEvent():
                await self._report_step(event.tool_name)
            case PartUpdatedEvent(part=ToolPart(tool=tool, state=ToolError(reason="denied", error=error))):
                self.refused.append(f"{tool}: {error}")
            case _:
                await self._report_notice(event)

    async def _report_notice(self, event: Event) -> None:
        notice = event_notice(event)
        if notice is not None and notice.level != "detail":
            await self._report_step(notice.text)

    async def _report_step(self, activity: str) -> None:
        self._steps += 1
        await self._report(self._steps, activity)


INSTRUCTIONS = """\
Outrider is a coding agent that works in one folder of this machine. `run_agent` gives it work and waits for the end; \
it reads, searches, and changes what its user's rules allow. `search_sessions` and `read_session` find what was said \
and done before, in any folder."""
MAX_HITS = 100
MAX_MESSAGES = 200
_READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_DESTRUCTIVE = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)


@dataclass(frozen=True)
class Found:
    session_id: str
    title: str
    kind: str
    snippet: str


class McpTools:
    """The MCP tools. Without a configured model `runner` is None and `missing` states why; stored sessions can still be
    read."""

    def __init__(self, archive: SessionArchive, runs: McpRunner | None, missing: str) -> None:
        self._archive = archive
        self._runner = runs
        self._missing = missing

    async def run_agent(
        self,
        prompt: Annotated[str, Field(description="The work, with all that the agent needs to know.")],
        ctx: Context[Any, Any],
        session_id: Annotated[str, Field(description="Go on with this session of the same folder.")] = "",
        mode: Annotated[
            RestrictedMode | None,
            Field(description="Less than the agent may otherwise do: plan only reads, chat only talks."),
        ] = None,
    ) -> RunReport:
        """Let an agent work on a task, and wait for its answer. Calls that need an approval are refused and named."""
        if self._runner is None:
            raise McpToolError(self._missing)

        async def report(step: float, doing: str) -> None:
            await ctx.report_progress(step, None, doing)

        try:
            return await self._runner.run_prompt(prompt, session_id, mode, report)
        except OutriderError as error:
            raise McpToolError(str(error)) from error

    async def search_sessions(
        self,
        words: Annotated[str, Field(description="Words that stand in a title, in what was said, or in tool output.")],
        limit: Annotated[int, Field(ge=1, le=MAX_HITS)] = 20,
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
        last: Annotated[int, Field(ge=1, le=MAX_MESSAGES, description="How many messages from its end.")] = 20,
    ) -> str:
        """Read a session as text: its messages, and the results of its tool calls."""
        try:
            found = await self._archive.find_session(session_id)
            return render_transcript(await self._archive.load(found.id, last=last))
        except OutriderError as error:
            raise McpToolError(str(error)) from error


async def serve_mcp_stdio(settings: Settings, version: str) -> None:
    """Serves MCP on stdin and stdout until the client closes stdin."""
    async with AsyncExitStack() as stack:
        if settings.missing:
            archive, runner = await stack.enter_async_context(open_archive(settings.folders.store_file)), None
        else:
            engine = await stack.enter_async_context(
                standard_engine(settings, workspace=settings.workspace, attended=False)
            )
            archive, runner = archive_of(engine), McpRunner(engine, settings)
        await create_mcp_server(McpTools(archive, runner, settings.missing), version).run_stdio_async()


def create_mcp_server(tools: McpTools, version: str) -> "MCPServer[Any]":
    server = MCPServer[Any](
        "outrider", title="Outrider", instructions=INSTRUCTIONS, version=version, log_level="WARNING"
    )
    server.add_tool(tools.run_agent, annotations=_DESTRUCTIVE)
    server.add_tool(tools.search_sessions, annotations=_READ_ONLY)
    server.add_tool(tools.read_session, annotations=_READ_ONLY)
    return server


MAX_MCP_SESSIONS = 100  # concurrent MCP sessions
# The request guard checks Host and Origin before every route.
_TRANSPORT_SECURITY = TransportSecuritySettings(enable_dns_rebinding_protection=False)


@asynccontextmanager
async def mcp_routes(engine: Engine, settings: Settings, version: str) -> AsyncGenerator[Sequence[BaseRoute], None]:
    """Yields the routes of /mcp. The engine is unattended: another agent sends the prompts, so no user can answer
    approvals."""
    async with engine.like(attended=False) as alone:
        server = create_mcp_server(McpTools(archive_of(alone), McpRunner(alone, settings), settings.missing), version)
        routes = server.streamable_http_app(
            transport_security=_TRANSPORT_SECURITY, max_sessions=MAX_MCP_SESSIONS
        ).routes
        async with server.session_manager.run():
            yield routes
