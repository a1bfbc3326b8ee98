"""Connects to a server and provides its engine to the terminal UI."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from outrider.config.settings import Settings
from outrider.engine.questions import AskedQuestion
from outrider.errors import ConfigurationError
from outrider.processes.supervisor import ProcessStatus
from outrider.remote.client import ServerAddress, ServerClient, foreign_server_error, version_mismatch_error
from outrider.remote.engine import RemoteArchive, RemoteEngine, run_remote_command
from outrider.remote.followed_session import session_path
from outrider.types.agents import Agent, Mode
from outrider.types.parts import ModelRef


class _KillResult(msgspec.Struct, frozen=True):
    done: bool


class RemoteBridge:
    """The terminal UI's interface to a remote engine. `folder` is a folder on the server's machine in which new
    sessions work. Agents and modes are the server's."""

    def __init__(self, engine: RemoteEngine, settings: Settings, folder: Path | None = None) -> None:
        first = engine.agents[0]
        overrides = {"agents": tuple(engine.agents), "mode": first.mode, "model": f"{first.provider}/{first.model}"}
        self.engine = engine
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

    async def list_processes(self, session_id: str) -> Sequence[ProcessStatus]:
        path = f"{session_path(session_id)}/processes"
        found: list[ProcessStatus] = await self.engine.client.get(path, list[ProcessStatus])
        return [process for process in found if process.backgrounded]

    async def end_process(self, session_id: str, process_id: str) -> bool:
        path = f"{session_path(session_id)}/processes/{process_id}/kill"
        return (await self.engine.client.post(path, None, _KillResult)).done

    async def run_user_command(self, session_id: str, command: str, on_output: Callable[[str], object]) -> str:
        return await run_remote_command(self.engine.client, session_id, command, on_output)

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
