"""The agent that a client talks to: every request of the protocol, answered by an engine."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import acp
from acp.core import DEFAULT_STDIO_BUFFER_LIMIT_BYTES
from acp.helpers import ContentBlock
from acp.schema import (
    AcpMcpServer,
    AgentCapabilities,
    CloseSessionResponse,
    HttpMcpServer,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    McpCapabilities,
    McpServerStdio,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionResumeCapabilities,
    SetSessionConfigOptionResponse,
    SetSessionModeResponse,
    SseMcpServer,
    StopReason,
)

from outrider.acp.engines import Engines, Servers, SettingsOf, as_request_error, said_plainly
from outrider.acp.session import Conversation
from outrider.acp.tool_calls import parts_of, valid
from outrider.engine.archive import StoredSession, TurnEnd, open_archive
from outrider.engine.frontend import Question, ToolContext
from outrider.errors import ConfigurationError, SessionNotFoundError

PAGE = 50
McpServer = HttpMcpServer | SseMcpServer | AcpMcpServer | McpServerStdio


class EditorAgent:
    """One for each connection. Sessions stay open until the client closes them, or goes away."""

    def __init__(self, settings_of: SettingsOf, version: str, tasks: asyncio.TaskGroup) -> None:
        self._version = version
        self._tasks = tasks
        self._engines = Engines(settings_of, tasks, self._ask)
        self._conversations: dict[str, Conversation] = {}
        self._client: acp.Client | None = None

    def on_connect(self, conn: acp.Client) -> None:
        self._client = conn

    def close(self) -> None:
        for conversation in self._conversations.values():
            conversation.close()
        self._engines.close()

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        """There is one version so far; a client that speaks another hears which one it is."""
        return InitializeResponse(
            protocol_version=acp.PROTOCOL_VERSION,
            agent_info=Implementation(name="outrider", title="Outrider", version=self._version),
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(image=True, audio=False, embedded_context=True),
                mcp_capabilities=McpCapabilities(http=True, sse=True),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(),
                    resume=SessionResumeCapabilities(),
                    close=SessionCloseCapabilities(),
                ),
            ),
            auth_methods=[],
        )

    @said_plainly
    async def new_session(
        self, cwd: str, mcp_servers: Sequence[McpServer] | None = None, **_: Any
    ) -> NewSessionResponse:
        opened = await self._engines.at(cwd, _servers(mcp_servers))
        session_id = await opened.engine.create(workspace=opened.settings.workspace)
        conversation = self._follow(session_id, Conversation(session_id, opened, self._connected, self._tasks))
        await conversation.open(replay=False)
        self._tasks.create_task(conversation.tell_commands())
        choices = conversation.choices
        return NewSessionResponse(session_id=session_id, modes=choices.modes(), config_options=list(choices.options()))

    @said_plainly
    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[McpServer] | None = None, **_: Any
    ) -> LoadSessionResponse:
        choices = (await self._opened(cwd, session_id, mcp_servers, replay=True)).choices
        return LoadSessionResponse(modes=choices.modes(), config_options=list(choices.options()))

    @said_plainly
    async def resume_session(
        self, session_id: str, cwd: str, mcp_servers: Sequence[McpServer] | None = None, **_: Any
    ) -> ResumeSessionResponse:
        choices = (await self._opened(cwd, session_id, mcp_servers, replay=False)).choices
        return ResumeSessionResponse(modes=choices.modes(), config_options=list(choices.options()))

    @said_plainly
    async def list_sessions(self, cwd: str | None = None, cursor: str | None = None, **_: Any) -> ListSessionsResponse:
        folder = Path(cwd) if cwd else Path.cwd()
        settings = self._engines.settings_of(folder)
        async with open_archive(settings.folders.store) as archive:
            page = await archive.page(PAGE, after=cursor, workspace=str(folder) if cwd else None)
        # Sessions of programs may have no folder, and those the protocol cannot name.
        sessions = [_listed(found) for found in page.sessions if Path(found.workspace_directory).is_absolute()]
        return ListSessionsResponse(sessions=sessions, next_cursor=page.next)

    @said_plainly
    async def close_session(self, session_id: str, **_: Any) -> CloseSessionResponse:
        conversation = self._conversation(session_id)
        await conversation.cancel()
        self._conversations.pop(session_id).close()
        await conversation.engine.close(session_id)
        return CloseSessionResponse()

    @said_plainly
    async def prompt(self, session_id: str, prompt: Sequence[ContentBlock], **_: Any) -> PromptResponse:
        conversation = self._conversation(session_id)
        end = await conversation.say(parts_of(prompt))
        if end.reason == "error" and end.error is not None:
            raise as_request_error(end.error)
        meta = {"outrider": {"reason": end.reason}}
        return PromptResponse(stop_reason=_stop_reason(end), usage=conversation.spending.turn(), field_meta=meta)

    @said_plainly
    async def cancel(self, session_id: str, **_: Any) -> None:
        await self._conversation(session_id).cancel()

    @said_plainly
    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> SetSessionModeResponse:
        await self._conversation(session_id).choices.set_mode(mode_id)
        return SetSessionModeResponse()

    @said_plainly
    async def set_config_option(
        self,
        config_id: str,
        session_id: str,
        value: str | bool,  # noqa: FBT001
        **_: Any,
    ) -> SetSessionConfigOptionResponse:
        choices = self._conversation(session_id).choices
        await choices.choose(config_id, str(value))
        return SetSessionConfigOptionResponse(config_options=list(choices.options()))

    async def _ask(self, question: Question, context: ToolContext) -> tuple[str, ...] | None:
        for conversation in self._conversations.values():
            if conversation.concerns(context.session_id):
                return await conversation.questions.ask_model_question(question)
        return None

    async def _opened(
        self, cwd: str, session_id: str, servers: Sequence[McpServer] | None, *, replay: bool
    ) -> Conversation:
        known = self._conversations.get(session_id)
        if known is None:
            opened = await self._engines.at(cwd, _servers(servers))
            stored = await opened.engine.store.get(session_id)
            if os.path.realpath(stored.workspace_directory) != os.path.realpath(cwd):  # noqa: ASYNC240
                raise ConfigurationError(f"session {session_id} works in {stored.workspace_directory}, not in {cwd}")
            known = self._follow(session_id, Conversation(session_id, opened, self._connected, self._tasks))
        try:
            await known.open(replay=replay)
        except BaseException:
            self._conversations.pop(session_id).close()
            raise
        self._tasks.create_task(known.tell_commands())
        return known

    @property
    def _connected(self) -> acp.Client:
        assert self._client is not None, "a request came before the connection"
        return self._client

    def _follow(self, session_id: str, conversation: Conversation) -> Conversation:
        self._conversations[session_id] = conversation
        return conversation

    def _conversation(self, session_id: str) -> Conversation:
        if session_id not in self._conversations:
            raise SessionNotFoundError(f"session {session_id!r} is not open here; load it first")
        return self._conversations[session_id]


def _listed(session: StoredSession) -> SessionInfo:
    at = datetime.fromtimestamp(session.time.updated / 1000, UTC).isoformat() if session.time else None
    return SessionInfo(
        session_id=session.id, cwd=valid(session.workspace_directory), title=session.title or None, updated_at=at
    )


def _stop_reason(end: TurnEnd) -> StopReason:
    match end.reason:
        case "aborted":
            return "cancelled"
        case "length":
            return "max_tokens"
        case "limit":
            return "max_turn_requests"
        case "refusal":
            return "refusal"
        case "completed" | "repetition" | "empty_answers" | "error":
            return "end_turn"


def _servers(given: Sequence[McpServer] | None) -> Servers:
    """As the user's own configuration would name them. Raises ConfigurationError for one that cannot be reached."""
    servers: Servers = {}
    for server in given or ():
        match server:
            case McpServerStdio():
                env = {variable.name: variable.value for variable in server.env}
                servers[server.name] = {"command": server.command, "args": list(server.args), "env": env}
            case HttpMcpServer() | SseMcpServer():
                headers = {header.name: header.value for header in server.headers}
                servers[server.name] = {"type": server.type, "url": server.url, "headers": headers}
            case AcpMcpServer():
                raise ConfigurationError(f"the MCP server {server.name!r} cannot be reached through the client")
    return servers


def serve_editor(settings_of: SettingsOf, version: str) -> None:
    """Settings are read for each folder that the client names."""
    _claim_streams()
    with suppress(asyncio.CancelledError):  # a signal: what was said is kept
        asyncio.run(_serve(settings_of, version))


async def _serve(settings_of: SettingsOf, version: str) -> None:
    reader, writer = await acp.stdio_streams(limit=DEFAULT_STDIO_BUFFER_LIMIT_BYTES)
    sys.stdin, sys.stdout = sys.__stdin__, sys.stderr
    loop, work = asyncio.get_running_loop(), asyncio.current_task()
    assert work is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, work.cancel)
    async with asyncio.TaskGroup() as tasks:
        agent = EditorAgent(settings_of, version, tasks)
        try:
            # Closing and resuming sessions are stable in the protocol, and not yet in the SDK.
            await acp.run_agent(agent, writer, reader, use_unstable_protocol=True)  # type: ignore[arg-type]  an agent need not offer all
        finally:
            agent.close()


def _claim_streams() -> None:
    """Nobody else may write a word to stdout, nor read one from stdin: not a library, not a program that is started.
    What the SDK finds as stdin and stdout are copies that belong to the protocol alone."""
    heard, said = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdin, sys.stdout = heard, said
