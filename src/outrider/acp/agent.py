"""Implements the requests of the Agent Client Protocol with an engine."""

import asyncio
import json
import logging
import os
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import acp
from acp.core import DEFAULT_STDIO_BUFFER_LIMIT_BYTES
from acp.helpers import ContentBlock
from acp.schema import (
    AcpMcpServer,
    AgentCapabilities,
    AuthenticateResponse,
    AuthMethodAgent,
    ClientCapabilities,
    CloseSessionResponse,
    DeleteSessionRequest,
    ForkSessionResponse,
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
    SessionAdditionalDirectoriesCapabilities,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionDeleteCapabilities,
    SessionForkCapabilities,
    SessionInfo,
    SessionListCapabilities,
    SessionResumeCapabilities,
    SetSessionConfigOptionResponse,
    SetSessionModeResponse,
    SseMcpServer,
    StopReason,
    TerminalAuthMethod,
)

from outrider.acp.client import ClientBuffers
from outrider.acp.engines import (
    EnginePool,
    McpServerConfigs,
    OpenedEngine,
    SettingsLoader,
    as_request_error,
    translate_errors,
)
from outrider.acp.session import EditorSession
from outrider.acp.tool_calls import parts_from_prompt, replace_surrogates
from outrider.engine.archive import StoredSession, TurnOutcome, open_archive
from outrider.engine.frontend import ToolContext, UserQuestion
from outrider.errors import ConfigurationError, SessionNotFoundError
from outrider.presentation.formats import format_iso_time
from outrider.presentation.items import next_step

_log = logging.getLogger("outrider.acp")

SESSIONS_PER_PAGE = 50
LOGIN_METHOD, KEY_METHOD = "login", "key"
# Stable methods of the protocol that the SDK does not route. They are handled like extension methods.
UNROUTED_METHODS = frozenset({"session/delete"})
McpServer = HttpMcpServer | SseMcpServer | AcpMcpServer | McpServerStdio


class EditorAgent:
    """The agent of one connection. Sessions stay open until the client closes them or disconnects."""

    def __init__(self, load_settings: SettingsLoader, version: str, tasks: asyncio.TaskGroup) -> None:
        self._version = version
        self._tasks = tasks
        self._engines = EnginePool(load_settings, tasks, self._ask_user, self._find_buffers)
        self._sessions: dict[str, EditorSession] = {}
        self._client: acp.Client | None = None
        self._capabilities = ClientCapabilities()
        self._buffers: dict[str, ClientBuffers] = {}  # by session

    def on_connect(self, conn: acp.Client) -> None:
        self._client = conn

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._engines.close()

    async def initialize(
        self, protocol_version: int, client_capabilities: ClientCapabilities | None = None, **_: Any
    ) -> InitializeResponse:
        """Returns the only protocol version; a client with another one must decide whether to continue."""
        self._capabilities = client_capabilities or ClientCapabilities()
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
                    delete=SessionDeleteCapabilities(),
                    fork=SessionForkCapabilities(),
                    additional_directories=SessionAdditionalDirectoriesCapabilities(),
                ),
            ),
            auth_methods=list(self._auth_methods()),
        )

    def _auth_methods(self) -> Iterator[TerminalAuthMethod | AuthMethodAgent]:
        """Yields the ways to log in: a terminal in which the client starts this program again with an option, if the
        client can do that, and the key that is stored or set when `authenticate` is called. A key is never sent through
        the protocol."""
        if self._capabilities.auth is not None and self._capabilities.auth.terminal:
            yield TerminalAuthMethod(
                type="terminal",
                id=LOGIN_METHOD,
                name="Log in",
                description="Enter the API key of a provider in a terminal; it is checked and stored.",
                args=["--login"],
            )
        yield AuthMethodAgent(
            id=KEY_METHOD,
            name="Use a stored key",
            description="Run `outrider login` in a terminal, or set the provider's key in the editor's environment.",
        )

    @translate_errors
    async def authenticate(self, method_id: str, **_: Any) -> AuthenticateResponse:
        """Checks that a model can be reached now. Raises RequestError (authentication required) if none can."""
        if method_id not in (KEY_METHOD, LOGIN_METHOD):
            raise ConfigurationError(f"unknown authentication method {method_id!r}; there is {KEY_METHOD!r}")
        await self._engines.check_credentials(Path.cwd())
        return AuthenticateResponse()

    @translate_errors
    async def new_session(
        self,
        cwd: str,
        additional_directories: Sequence[str] | None = None,
        mcp_servers: Sequence[McpServer] | None = None,
        **_: Any,
    ) -> NewSessionResponse:
        entry = await self._engines.get_engine(cwd, _mcp_configs(mcp_servers), additional_directories or ())
        session_id = await entry.engine.create(workspace=entry.settings.workspace)
        folders = (cwd, *(additional_directories or ()))
        options = (await self._add_session(session_id, entry, folders, replay=False)).options
        return NewSessionResponse(
            session_id=session_id, modes=options.mode_state(), config_options=list(options.config_options())
        )

    @translate_errors
    async def load_session(
        self,
        cwd: str,
        session_id: str,
        mcp_servers: Sequence[McpServer] | None = None,
        additional_directories: Sequence[str] | None = None,
        **_: Any,
    ) -> LoadSessionResponse:
        folders = additional_directories or ()
        options = (await self._open_session(cwd, session_id, mcp_servers, folders, replay=True)).options
        return LoadSessionResponse(modes=options.mode_state(), config_options=list(options.config_options()))

    @translate_errors
    async def resume_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: Sequence[str] | None = None,
        mcp_servers: Sequence[McpServer] | None = None,
        **_: Any,
    ) -> ResumeSessionResponse:
        folders = additional_directories or ()
        options = (await self._open_session(cwd, session_id, mcp_servers, folders, replay=False)).options
        return ResumeSessionResponse(modes=options.mode_state(), config_options=list(options.config_options()))

    @translate_errors
    async def fork_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: Sequence[str] | None = None,
        mcp_servers: Sequence[McpServer] | None = None,
        **_: Any,
    ) -> ForkSessionResponse:
        """Copies a session with all its messages; a running turn of the original continues."""
        entry = await self._engines.get_engine(cwd, _mcp_configs(mcp_servers), additional_directories or ())
        await _check_folder(entry, session_id, cwd)
        copy_id = await entry.engine.fork(session_id)
        folders = (cwd, *(additional_directories or ()))
        options = (await self._add_session(copy_id, entry, folders, replay=False)).options
        return ForkSessionResponse(
            session_id=copy_id, modes=options.mode_state(), config_options=list(options.config_options())
        )

    @translate_errors
    async def delete_session(self, session_id: str) -> None:
        """Deletes a session and its files; does nothing if the session does not exist."""
        if session_id in self._sessions:
            await self.close_session(session_id)
        settings = self._engines.load_settings(Path.cwd())
        with suppress(SessionNotFoundError):
            async with open_archive(settings.folders.store_file) as archive:
                await archive.delete(session_id)

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Handles the stable methods that the SDK does not route."""
        match method:
            case "session/delete":
                await self.delete_session(DeleteSessionRequest.model_validate(params).session_id)
                return {}
            case _:
                raise acp.RequestError.method_not_found(f"_{method}")

    @translate_errors
    async def list_sessions(self, cwd: str | None = None, cursor: str | None = None, **_: Any) -> ListSessionsResponse:
        folder = Path(cwd) if cwd else Path.cwd()
        settings = self._engines.load_settings(folder)
        async with open_archive(settings.folders.store_file) as archive:
            page = await archive.list_page(SESSIONS_PER_PAGE, after=cursor, workspace=str(folder) if cwd else None)
        # The protocol requires an absolute folder, which sessions created by programs may lack.
        sessions = [
            _session_info(session) for session in page.sessions if Path(session.workspace_directory).is_absolute()
        ]
        return ListSessionsResponse(sessions=sessions, next_cursor=page.next)

    @translate_errors
    async def close_session(self, session_id: str, **_: Any) -> CloseSessionResponse:
        session = self._get_session(session_id)
        await session.cancel()
        self._sessions.pop(session_id).close()
        await session.engine.close(session_id)
        self._buffers.pop(session_id, None)
        return CloseSessionResponse()

    @translate_errors
    async def prompt(self, session_id: str, prompt: Sequence[ContentBlock], **_: Any) -> PromptResponse:
        session = self._get_session(session_id)
        end = await session.run_prompt(parts_from_prompt(prompt))
        if end.reason == "error" and end.error is not None:
            raise as_request_error(end.error)
        meta = {"outrider": {"reason": end.reason, "next_step": next_step(end.reason)}}
        return PromptResponse(stop_reason=_stop_reason(end), usage=session.usage.turn_usage(), field_meta=meta)

    @translate_errors
    async def cancel(self, session_id: str, **_: Any) -> None:
        await self._get_session(session_id).cancel()

    @translate_errors
    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> SetSessionModeResponse:
        await self._get_session(session_id).options.set_mode(mode_id)
        return SetSessionModeResponse()

    @translate_errors
    async def set_config_option(
        self,
        config_id: str,
        session_id: str,
        value: str | bool,  # noqa: FBT001
        **_: Any,
    ) -> SetSessionConfigOptionResponse:
        options = self._get_session(session_id).options
        await options.set_option(config_id, str(value))
        return SetSessionConfigOptionResponse(config_options=list(options.config_options()))

    async def _ask_user(self, question: UserQuestion, context: ToolContext) -> tuple[str, ...] | None:
        for session in self._sessions.values():
            if session.includes_session(context.session_id):
                return await session.ask_model_question(question, context)
        return None

    def _find_buffers(self, session_id: str) -> ClientBuffers | None:
        """Returns the client's buffers for a session, if the client offers them."""
        fs = self._capabilities.fs
        if self._client is None or fs is None or not (fs.read_text_file or fs.write_text_file):
            return None
        return self._buffers.setdefault(session_id, ClientBuffers(session_id, self._client, (), fs))

    async def _open_session(
        self,
        cwd: str,
        session_id: str,
        servers: Sequence[McpServer] | None,
        folders: Sequence[str],
        *,
        replay: bool,
    ) -> EditorSession:
        """Opens a stored session. If it is open with other additional folders or servers, it moves to the engine of the
        new ones."""
        entry = await self._engines.get_engine(cwd, _mcp_configs(servers), folders)
        await _check_folder(entry, session_id, cwd)
        opened = self._sessions.get(session_id)
        if opened is not None and opened.engine is not entry.engine:
            await self.close_session(session_id)
        return await self._add_session(session_id, entry, (cwd, *folders), replay=replay)

    async def _add_session(
        self, session_id: str, entry: OpenedEngine, folders: Sequence[str], *, replay: bool
    ) -> EditorSession:
        """Opens a session. `folders` are its workspace and further folders as the client names them."""
        if (buffers := self._find_buffers(session_id)) is not None:
            buffers.folders = folders
        session = self._sessions.get(session_id)
        if session is None:
            session = EditorSession(session_id, entry, self._connected_client, self._tasks, self._capabilities, buffers)
            self._sessions[session_id] = session
        try:
            await session.open(replay=replay)
        except BaseException:
            self._sessions.pop(session_id).close()
            raise
        self._tasks.create_task(session.send_commands())
        return session

    @property
    def _connected_client(self) -> acp.Client:
        assert self._client is not None, "a request came before the connection"
        return self._client

    def _get_session(self, session_id: str) -> EditorSession:
        if session_id not in self._sessions:
            raise SessionNotFoundError(f"session {session_id!r} is not open in this connection; load it first")
        return self._sessions[session_id]


async def _check_folder(entry: OpenedEngine, session_id: str, cwd: str) -> None:
    """Raises ConfigurationError if the session works in another folder."""
    stored = await entry.engine.store.get(session_id)
    if os.path.realpath(stored.workspace_directory) != os.path.realpath(cwd):  # noqa: ASYNC240
        raise ConfigurationError(f"session {session_id} works in {stored.workspace_directory}, not in {cwd}")


def _session_info(session: StoredSession) -> SessionInfo:
    updated = format_iso_time(session.time.updated, "milliseconds") if session.time else None
    return SessionInfo(
        session_id=session.id,
        cwd=replace_surrogates(session.workspace_directory),
        title=session.title or None,
        updated_at=updated,
    )


def _stop_reason(end: TurnOutcome) -> StopReason:
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


def _mcp_configs(client_servers: Sequence[McpServer] | None) -> McpServerConfigs:
    """Converts the client's MCP servers to our config format. Raises ConfigurationError for a server that cannot be
    reached."""
    servers: McpServerConfigs = {}
    for server in client_servers or ():
        match server:
            case McpServerStdio():
                env = {variable.name: variable.value for variable in server.env}
                servers[server.name] = {"command": server.command, "args": list(server.args), "env": env}
            case HttpMcpServer() | SseMcpServer():
                headers = {header.name: header.value for header in server.headers}
                servers[server.name] = {"type": server.type, "url": server.url, "headers": headers}
            case AcpMcpServer():
                raise ConfigurationError(
                    f"the MCP server {server.name!r} uses the ACP transport, which is not supported"
                )
    return servers


def serve_editor(load_settings: SettingsLoader, version: str) -> None:
    """Serves one client until it disconnects. Calls `load_settings` for each folder that the client names."""
    _check_streams()
    _claim_streams()
    with suppress(asyncio.CancelledError):  # raised by a signal; the sessions are stored
        asyncio.run(_run_agent(load_settings, version))


async def _run_agent(load_settings: SettingsLoader, version: str) -> None:
    reader, writer = await acp.stdio_streams(limit=DEFAULT_STDIO_BUFFER_LIMIT_BYTES)
    sys.stdin, sys.stdout = sys.__stdin__, sys.stderr
    loop, main_task = asyncio.get_running_loop(), asyncio.current_task()
    assert main_task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, main_task.cancel)
    async with asyncio.TaskGroup() as task_group:
        agent = EditorAgent(load_settings, version, task_group)
        try:
            # Closing and resuming sessions are stable in the protocol but marked unstable in the SDK.
            await acp.run_agent(agent, MessageStream(reader, writer), use_unstable_protocol=True)  # type: ignore[arg-type]  an agent need not offer all
        finally:
            agent.close()


class MessageStream:
    """One JSON message per line on two byte streams. Requests that the SDK does not know are renamed to extension
    methods, which it passes to the agent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._write_lock = asyncio.Lock()

    async def send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        async with self._write_lock:
            self._writer.write(line)
            await self._writer.drain()

    async def receive(self) -> dict[str, Any] | None:
        """Returns the next message, None at the end of the stream. Lines that are not JSON objects are skipped."""
        while line := await self._read_line():
            try:
                message = json.loads(line)
            except ValueError:
                _log.error("the client sent a line that is not JSON: %r", line[:200])
                continue
            if isinstance(message, dict):
                if message.get("method") in UNROUTED_METHODS:  # pyright: ignore[reportUnknownMemberType]
                    message["method"] = f"_{message['method']}"
                return message  # pyright: ignore[reportUnknownVariableType]
        return None

    async def close(self) -> None:
        """Does nothing: every message was written, and the process ends after the connection."""

    async def _read_line(self) -> bytes:
        chunks: list[bytes] = []
        while True:
            try:
                return b"".join((*chunks, await self._reader.readuntil(b"\n")))
            except asyncio.LimitOverrunError as error:
                chunks.append(await self._reader.readexactly(error.consumed))
            except asyncio.IncompleteReadError as error:
                return b"".join((*chunks, error.partial))


def _check_streams() -> None:
    """Raises ConfigurationError for files, and for /dev/null as stdin, which the event loop cannot wait for."""
    is_unreadable = stat.S_ISCHR(os.fstat(0).st_mode) and not os.isatty(0)
    if is_unreadable or any(stat.S_ISREG(os.fstat(number).st_mode) for number in (0, 1)):
        raise ConfigurationError("`outrider acp` is started by an editor: its input and output are pipes, not files")


def _claim_streams() -> None:
    """Reserves stdin and stdout for the protocol: the SDK gets duplicates of the descriptors, and descriptors 0 and 1
    are redirected, so that libraries and child processes cannot write into the protocol stream or read from it."""
    protocol_input, protocol_output = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    dev_null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(dev_null, 0)
    os.close(dev_null)
    os.dup2(2, 1)
    sys.stdin, sys.stdout = protocol_input, protocol_output
