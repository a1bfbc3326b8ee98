"""Outrider as an MCP server on standard input and output, which belong to the protocol alone."""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from outrider.app.archive.archive import Archive, open_archive
from outrider.app.config.settings import Settings
from outrider.app.standard import standard_engine
from outrider.app.views.sessions import archive_of
from outrider.errors import OutriderError
from outrider.server.mcp.runs import Less, RunReport, Runs
from outrider.server.mcp.transcript import as_text

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
            raise ToolError(self._missing)

        async def report(step: float, doing: str) -> None:
            await ctx.report_progress(step, None, doing)

        try:
            return await self._runs.run(prompt, session_id, mode, report)
        except OutriderError as error:
            raise ToolError(str(error)) from error

    async def search_sessions(
        self,
        words: Annotated[str, Field(description="Words that stand in a title, in what was said, or in tool output.")],
        limit: Annotated[int, Field(ge=1, le=MOST_HITS)] = 20,
    ) -> list[Found]:
        """Find earlier sessions. In a snippet, « and » stand around the words."""
        try:
            hits = await self._archive.search(words, limit=limit)
        except OutriderError as error:
            raise ToolError(str(error)) from error
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
            raise ToolError(str(error)) from error


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
