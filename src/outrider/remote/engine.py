"""The engine of a server with the interface of a local engine: sends user actions as requests and publishes the
server's events on a local bus; connects the terminal UI to it."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec

from outrider.agents.turn_state import TurnEnd
from outrider.config.settings import Settings
from outrider.engine.archive import ImportResult, SessionArchive
from outrider.engine.frontend import ContextShare, last_shares
from outrider.engine.plans import ProposedPlan
from outrider.engine.questions import AskedQuestion
from outrider.engine.undo_history import RestoreResult
from outrider.errors import ConfigurationError, OutriderError, ServerAwayError, StoreError, ToolFailure
from outrider.event_bus import EventBus, EventStream
from outrider.http.transport import HttpResponse, ServerEvent, ServerEventReader
from outrider.processes.output import OutputSlice
from outrider.processes.supervisor import ProcessStatus
from outrider.remote.client import (
    ServerAddress,
    ServerClient,
    foreign_server_error,
    version_mismatch_error,
)
from outrider.remote.followed_session import (
    RemoteSession,
    RemoteSessionStatus,
    RemoteTurns,
    ServerConnection,
    SessionFollower,
    fetch_messages,
    fetch_recent,
    fetch_session,
    fetch_transcript,
    session_path,
)
from outrider.sessions.records import (
    Approval,
    ApprovalScope,
    Delivery,
    Grouping,
    InboxItem,
    SearchHit,
    SessionFilter,
    SessionPage,
    SessionTranscript,
    SessionUpdate,
    StoredSession,
    UsageRow,
)
from outrider.sessions.session import Session
from outrider.sessions.snapshots.restore import Direction
from outrider.types.agents import Agent, Mode
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.modes import ApprovalLevel
from outrider.types.outcomes import OutcomeChoice
from outrider.types.parts import ModelRef, PartBase, TextPart, ToolPart
from outrider.types.request import ServerOverview

if TYPE_CHECKING:
    from outrider.project.mcp import ServerOffers
    from outrider.project.mcp_completion import InputCompletion
    from outrider.sessions.store import Store


class _CommandOutput(msgspec.Struct, frozen=True):
    text: str


class _CommandEnd(msgspec.Struct, frozen=True):
    words: str


async def run_remote_command(
    client: ServerClient, session_id: str, command: str, on_output: Callable[[str], object]
) -> str:
    """Runs a shell command on the server and returns a sentence about how it ended. Cancelling the call ends the
    command."""
    async with client.open_response("POST", f"{session_path(session_id)}/commands", {"command": command}) as response:
        async for name, raw in _read_events(response):
            if name == "output":
                on_output(msgspec.json.decode(raw, type=_CommandOutput).text)
            elif name == "ended":
                return msgspec.json.decode(raw, type=_CommandEnd).words
    raise ServerAwayError(f"{client.server.url} closed the connection while the command ran")


async def _read_events(response: HttpResponse) -> AsyncGenerator[ServerEvent, None]:
    reader = ServerEventReader()
    while chunk := await response.read():
        for event in reader.feed(chunk):
            yield event


class RemoteFileChanges:
    """Undo and redo of file changes in a session on the server."""

    def __init__(self, client: ServerClient, session_id: str) -> None:
        self._client = client
        self._path = f"{session_path(session_id)}/files"

    async def preview(self, direction: Direction = "undo") -> RestoreResult:
        return await self._client.get(self._path, RestoreResult, direction=direction)

    async def undo(self) -> RestoreResult:
        return await self._client.post(self._path, {"direction": "undo"}, RestoreResult)

    async def redo(self) -> RestoreResult:
        return await self._client.post(self._path, {"direction": "redo"}, RestoreResult)


MAX_FOLLOWED_SESSIONS = 8


class CompactionResult(msgspec.Struct, frozen=True):
    """Number of tokens before and after a compaction."""

    tokens_before: int | None = None
    tokens_after: int | None = None


class CompactionUndoResult(msgspec.Struct, frozen=True):
    """Whether a compaction was undone."""

    undone: bool = False


class _QueuedInput(msgspec.Struct, frozen=True):
    id: str
    text: str
    delivery: Delivery
    sender: str


class RemoteEngine:
    """A remote engine (`async with`). Closing it does not close the server's engine. `agents` are the server's agents;
    the first one answers in a new session."""

    def __init__(
        self, client: ServerClient, agents: Sequence[Agent], *, reconnect_seconds: float | None = None
    ) -> None:
        self.client = client
        self.agents = agents
        self.bus = EventBus()
        self.live: dict[str, RemoteSession] = {}
        self.connection = ServerConnection(client)
        self._follower = SessionFollower(client, self.bus, self.connection)
        self._turns = RemoteTurns(client, self.connection, reconnect_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._follower.close()
        await self.connection.close()
        await self.bus.settled()
        self.live.clear()

    async def create(
        self,
        *,
        title: str = "",
        mode: Mode | None = None,
        agent: str | None = None,
        workspace: str | Path | None = None,
        approval: ApprovalLevel | None = None,
    ) -> str:
        """Creates a session on the server; without a workspace it works in the server's folder."""
        folder = None if workspace is None else str(workspace)
        new = {"title": title, "mode": mode, "agent": agent, "workspace": folder}
        if approval is not None:
            new["approval"] = approval
        await self._close_idle_sessions()
        created = await self.client.post("/api/sessions", new, StoredSession)
        session = self._add_session(SessionTranscript(created, [], first=True))
        await session.refresh_status()
        await self._follower.start_following(session)
        return created.id

    async def open(self, session_id: str, *, take_over: bool = False) -> Session:
        session = self.live.get(session_id)
        if session is None or session.is_closed:
            await self._close_idle_sessions()
            await self.client.post(f"{session_path(session_id)}/open", {"take_over": take_over}, RemoteSessionStatus)
            session = self._add_session(await fetch_recent(self.client, session_id))
            await self._follower.start_following(session)
            session = self.live.get(session_id, session)  # another call may have opened it too
        status = await session.refresh_status()
        session.mirror.in_turn = status.busy
        return session.session

    async def close(self, session_id: str) -> None:
        """Stops following the session; it stays open on the server."""
        self.live.pop(session_id, None)
        await self._follower.stop_following(session_id)

    async def prompt(
        self,
        session_id: str,
        content: str | Sequence[str | PartBase],
        *,
        delivery: Delivery = "queue",
        input_id: str | None = None,
        sender: str = "",
    ) -> TurnEnd:
        """Queues input for the session and waits for the end of the turn that takes it. The server records itself as
        the sender."""
        parts = [content] if isinstance(content, str) else content
        encoded_parts = [TextPart(part) if isinstance(part, str) else part for part in parts]
        prompt: dict[str, Any] = {
            "parts": encoded_parts,
            "delivery": delivery,
            "id": input_id or new_id(),
            "wait": True,
        }
        return await self._turns.prompt_session(await self._ensure_open(session_id), prompt)

    async def resume(self, session_id: str) -> TurnEnd:
        return await self._turns.request_turn(await self._ensure_open(session_id), "continue", None)

    async def queued(self, session_id: str) -> Sequence[InboxItem]:
        queued_inputs: list[_QueuedInput] = await self.client.get(
            f"{session_path(session_id)}/queue", list[_QueuedInput]
        )
        return [
            InboxItem(
                session_id=session_id,
                message=Message("user", [TextPart(item.text)]),
                id=item.id,
                delivery=item.delivery,
                sender=item.sender,
            )
            for item in queued_inputs
        ]

    async def withdraw(self, session_id: str, input_id: str) -> bool:
        return await self._request_optional("DELETE", f"{session_path(session_id)}/queue/{input_id}") is not None

    async def plan(self, session_id: str) -> ProposedPlan | None:
        raw = await self._request_optional("GET", f"{session_path(session_id)}/plan")
        return None if raw is None else msgspec.json.decode(raw, type=ProposedPlan)

    async def accept_plan(self, session_id: str, changed: str | None = None, *, by: str = "") -> TurnEnd:
        answer = {"accept": True, "changed": changed}
        return await self._turns.request_turn(await self._ensure_open(session_id), "plan", answer)

    async def refuse_plan(self, session_id: str, words: str = "", *, by: str = "") -> TurnEnd:
        return await self._turns.request_turn(
            await self._ensure_open(session_id), "plan", {"accept": False, "words": words}
        )

    async def compact(self, session_id: str, instructions: str = "") -> CompactionResult | None:
        body = {"instructions": instructions} if instructions else None
        result = await self.client.post(f"{session_path(session_id)}/compact", body, CompactionResult, unlimited=True)
        return result if result.tokens_before is not None else None

    async def undo_compaction(self, session_id: str) -> bool:
        path = f"{session_path(session_id)}/compact/undo"
        return (await self.client.post(path, None, CompactionUndoResult)).undone

    async def abort(self, session_id: str) -> None:
        if session_id:
            await self.client.post(f"{session_path(session_id)}/abort")

    async def set_mode(self, session_id: str, mode: Mode) -> None:
        await self._update_session(session_id, mode=mode)

    async def set_approval(self, session_id: str, level: ApprovalLevel) -> None:
        await self._update_session(session_id, approval=level)

    async def set_agent(self, session_id: str, agent: str) -> None:
        await self._update_session(session_id, agent=agent)

    async def rename(self, session_id: str, title: str) -> None:
        await self._update_session(session_id, title=title)

    async def answer(
        self,
        approval_id: str,
        *,
        allow: bool,
        scope: ApprovalScope = "once",
        by: str = "",
        words: str = "",
        keep: tuple[str, ...] | None = None,
        choice: OutcomeChoice = "keep",
        width: str = "",
    ) -> Approval:
        answer = {"allow": allow, "scope": scope, "words": words, "keep": keep, "choice": choice}
        if width:  # an older server does not know it
            answer["width"] = width
        return await self.client.post(f"/api/approvals/{approval_id}", answer, Approval)

    async def approvals(self, session_id: str | None = None) -> Sequence[Approval]:
        return await self.client.get("/api/approvals", list[Approval], session_id=session_id)

    def file_changes(self, session_id: str) -> RemoteFileChanges:
        return RemoteFileChanges(self.client, session_id)

    def events(self, session_id: str | None = None) -> EventStream:
        return self.bus.stream(None if session_id is None else lambda event: event.session_id == session_id)

    def agent(self, name: str) -> Agent:
        return next((agent for agent in self.agents if agent.name == name), self.agents[0])

    def _add_session(self, transcript: SessionTranscript) -> RemoteSession:
        session = self.live[transcript.session.id] = RemoteSession(self.client, transcript, self.agent)
        return session

    async def _close_idle_sessions(self) -> None:
        """Limits the number of followed sessions: closes the oldest ones without a running turn."""
        idle = [session_id for session_id, session in self.live.items() if session.is_closed or not session.in_turn]
        for session_id in idle[: max(0, len(self.live) - MAX_FOLLOWED_SESSIONS + 1)]:
            await self.close(session_id)

    async def _ensure_open(self, session_id: str) -> RemoteSession:
        if session_id not in self.live or self.live[session_id].is_closed:
            await self.open(session_id)
        return self.live[session_id]

    async def _update_session(self, session_id: str, **changes: str) -> None:
        """Changes the session and applies the response immediately; the feed delivers the same change later."""
        raw = await self.client.send_request("PATCH", session_path(session_id), changes)
        if (session := self.live.get(session_id)) is not None:
            session.mirror.update_session(msgspec.json.decode(raw, type=StoredSession))
            await session.refresh_status()

    async def _request_optional(self, method: str, path: str) -> bytes | None:
        """Returns the response body; None for status 404."""
        try:
            return await self.client.send_request(method, path)
        except OutriderError as error:
            if error.details.get("status") == 404:
                return None
            raise


MAX_PAGE_SIZE = 500  # sessions or hits per request


class RemoteArchive(SessionArchive):
    """The archive of a server."""

    def __init__(self, client: ServerClient) -> None:
        # Archive uses no other store methods, except in the methods overridden below.
        super().__init__(cast("Store", _RemoteStore(client)))
        self._client = client

    async def export_document(self, session_id: str) -> bytes:
        return await self._client.send_request("GET", f"{session_path(session_id)}/export")

    async def stream_document(self, session_id: str) -> AsyncGenerator[bytes, None]:
        yield await self.export_document(session_id)

    async def import_document(self, document: bytes, *, as_copy: bool) -> ImportResult:
        content, query = msgspec.Raw(document), {"as_copy": "true" if as_copy else "false"}
        raw = await self._client.send_request("POST", "/api/import", content, query=query, unlimited=True)
        return msgspec.json.decode(raw, type=ImportResult)

    async def delete_all(self) -> int:
        raw = await self._client.send_request("DELETE", "/api/sessions", unlimited=True)
        return sum(msgspec.json.decode(raw, type=dict[str, int]).values())

    async def lasting_approvals(self) -> Sequence[Approval]:
        return await self._client.get("/api/answers", list[Approval])

    async def revoke_approval(self, approval_id: str) -> Approval:
        approval = next((stored for stored in await self.lasting_approvals() if stored.id == approval_id), None)
        if approval is None:
            raise StoreError("no such stored answer; it may have been revoked")
        await self._client.send_request("DELETE", f"/api/answers/{approval_id}")
        return msgspec.structs.replace(approval, answer="revoked")


class _RemoteStore:
    """The subset of `Store` that an archive calls, implemented with requests."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client

    async def get(self, session_id: str) -> StoredSession:
        return await fetch_session(self._client, session_id)

    async def list(self, session_filter: SessionFilter, *, limit: int, after: str | None = None) -> SessionPage:
        query: dict[str, Any] = {"workspace": session_filter.workspace_directory, "children": not session_filter.roots}
        query |= {"parent": session_filter.parent_id, "limit": min(limit, MAX_PAGE_SIZE), "after": after}
        return await self._client.get("/api/sessions", SessionPage, **query)

    async def load(self, session_id: str, *, limit: int | None = None, before: str | None = None) -> SessionTranscript:
        if limit is None:
            return await fetch_transcript(self._client, session_id)
        return await fetch_messages(self._client, session_id, min(limit, MAX_PAGE_SIZE), before=before)

    async def search(self, words: str, *, session_id: str | None = None, limit: int = 20) -> Sequence[SearchHit]:
        query = {"query": words, "session_id": session_id, "limit": min(limit, MAX_PAGE_SIZE)}
        return await self._client.get("/api/search", list[SearchHit], **query)

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> StoredSession:
        return await self._client.post(f"{session_path(session_id)}/fork", {"at": at, "title": title}, StoredSession)

    async def update(self, session_id: str, update: SessionUpdate) -> StoredSession:
        await self._client.send_request("PATCH", session_path(session_id), {"title": update.title})
        return await self.get(session_id)

    async def delete(self, session_id: str) -> None:
        await self._client.send_request("DELETE", session_path(session_id))

    async def statistics(
        self, by: Grouping, *, since: int | None = None, session_id: str | None = None
    ) -> Sequence[UsageRow]:
        return await self._client.get("/api/usage", list[UsageRow], by=by, since=since, session_id=session_id)


class _ServerStates(msgspec.Struct, frozen=True):
    servers: tuple[ServerOverview, ...] = ()


class _KillResult(msgspec.Struct, frozen=True):
    done: bool


class RemoteBridge:
    """The terminal UI's interface to a remote engine. `folder` is a folder on the server's machine in which new
    sessions work. Agents and modes are the server's."""

    is_remote = True

    def __init__(self, engine: RemoteEngine, settings: Settings, folder: Path | None = None) -> None:
        first = engine.agents[0]
        overrides = {"agents": tuple(engine.agents), "mode": first.mode, "model": str(first.model_ref)}
        self.engine = engine
        self.connection = engine.connection
        self.settings = msgspec.structs.replace(settings, **overrides, providers=())
        self.archive = RemoteArchive(engine.client)
        self.folder = folder

    @property
    def providers(self) -> Sequence[str]:
        return list(dict.fromkeys(agent.provider for agent in self.engine.agents))

    async def list_models(self) -> Sequence[str]:
        return await self.engine.client.get("/api/models", list[str])

    def context_limit(self, session_id: str, model: ModelRef) -> int | None:
        """Returns the context limit that the server reported for the session's model."""
        session = self.engine.live.get(session_id)
        return session.status.context_limit if session else None

    async def context_shares(self, session_id: str) -> Sequence[ContextShare]:
        from outrider.models.context_ledger import ContextReport  # lazy: on request only

        path = f"{session_path(session_id)}/context"
        report: ContextReport = await self.engine.client.get(path, ContextReport)
        return last_shares(report)

    async def list_servers(self) -> Sequence[ServerOverview]:
        return (await self.engine.client.get("/api/settings", _ServerStates)).servers

    async def list_offers(self) -> "ServerOffers":
        from outrider.project.mcp import ServerOffers  # lazy: for the completion of commands only

        return await self.engine.client.get("/api/mcp-servers/offers", ServerOffers)

    async def complete_input(self, text: str) -> "InputCompletion":
        from outrider.project.mcp_completion import InputCompletion

        return await self.engine.client.get("/api/mcp-servers/completions", InputCompletion, text=text)

    async def list_processes(self, session_id: str) -> Sequence[ProcessStatus]:
        path = f"{session_path(session_id)}/processes"
        processes: list[ProcessStatus] = await self.engine.client.get(path, list[ProcessStatus])
        return [process for process in processes if process.backgrounded]

    async def end_process(self, session_id: str, process_id: str) -> bool:
        path = f"{session_path(session_id)}/processes/{process_id}/kill"
        return (await self.engine.client.post(path, None, _KillResult)).done

    async def read_process_output(self, session_id: str, process_id: str) -> str:
        path = f"{session_path(session_id)}/processes/{process_id}/output"
        return (await self.engine.client.get(path, OutputSlice)).text

    async def send_to_background(self, session_id: str, process_id: str) -> bool:
        path = f"{session_path(session_id)}/processes/{process_id}/background"
        return (await self.engine.client.post(path, None, _KillResult)).done

    async def run_user_command(self, session_id: str, command: str, on_output: Callable[[str], object]) -> str:
        return await run_remote_command(self.engine.client, session_id, command, on_output)

    async def run_embedded_command(
        self, session_id: str, command: str, allowed: Sequence[str] | None, on_child: Callable[[str], object]
    ) -> ToolPart:
        raise ToolFailure("commands of command files do not run on a server")

    async def list_questions(self, session_id: str) -> Sequence[AskedQuestion]:
        return await self.engine.client.get("/api/questions", list[AskedQuestion], session_id=session_id)

    async def answer_question(self, question_id: str, answers: Sequence[str]) -> None:
        await self.engine.client.send_request("POST", f"/api/questions/{question_id}", {"answers": answers})

    async def revoke_approval(self, approval_id: str) -> None:
        await self.archive.revoke_approval(approval_id)


RECONNECT_SECONDS = 60.0  # how long a server may be unreachable during a non-interactive run


class ServerHealth(msgspec.Struct, frozen=True):
    ok: bool
    version: str


class AgentSummary(msgspec.Struct, frozen=True):
    name: str
    role: str
    model: str
    mode: Mode


@asynccontextmanager
async def connect_engine(
    server: ServerAddress, version: str, *, reconnect_seconds: float | None = RECONNECT_SECONDS
) -> AsyncGenerator[RemoteEngine, None]:
    """Checks health and version of the server and opens its engine. Raises ConfigurationError or ServerAwayError with a
    remedy if the connection cannot work."""
    client = ServerClient(server)
    health = await _check_health(client)
    if _minor_version(health.version) != _minor_version(version):
        raise version_mismatch_error(server, f"version {health.version}", version)
    summaries: list[AgentSummary] = await client.get("/api/agents", list[AgentSummary])
    async with RemoteEngine(
        client, [_agent_from_summary(summary) for summary in summaries], reconnect_seconds=reconnect_seconds
    ) as engine:
        yield engine


async def _check_health(client: ServerClient) -> ServerHealth:
    """Returns the health response. Raises ConfigurationError if the server is not an Outrider server."""
    try:
        return msgspec.json.decode(await client.send_request("GET", "/api/health"), type=ServerHealth)
    except (msgspec.DecodeError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise foreign_server_error(client.server) from error


def _agent_from_summary(summary: AgentSummary) -> Agent:
    provider, _, model = summary.model.partition("/")
    return Agent(summary.name, "", model, provider, role=summary.role, mode=summary.mode)


def _minor_version(version: str) -> tuple[str, ...]:
    """Returns the part of the version that must be equal on both sides: patch releases do not change the protocol."""
    return tuple(version.split(".")[:2])
