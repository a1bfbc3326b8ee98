"""An engine of a server, as screens hold it."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from outrider.config.settings import Settings
from outrider.engine.questions import AskedQuestion
from outrider.errors import ConfigurationError
from outrider.processes.supervisor import ProcessStatus
from outrider.remote.client import Client, Place, another_version, no_server_of_ours
from outrider.remote.engine import RemoteArchive, RemoteEngine, run_there
from outrider.remote.followed_session import path_of
from outrider.types.agents import Agent, Mode
from outrider.types.parts import ModelRef


class _Done(msgspec.Struct, frozen=True):
    done: bool


class RemoteBridge:
    """With `folder`, a folder of the server's machine, new sessions work there. Agents and modes are the server's."""

    def __init__(self, engine: RemoteEngine, settings: Settings, folder: Path | None = None) -> None:
        first = engine.agents[0]
        own = {"agents": tuple(engine.agents), "mode": first.mode, "model": f"{first.provider}/{first.model}"}
        self.engine = engine
        self.settings = msgspec.structs.replace(settings, **own, providers=())
        self.archive = RemoteArchive(engine.client)
        self.folder = folder

    @property
    def providers(self) -> Sequence[str]:
        return list(dict.fromkeys(agent.provider for agent in self.engine.agents))

    async def models(self) -> Sequence[str]:
        return await self.engine.client.get("/api/models", list[str])

    def context_limit(self, session_id: str, model: ModelRef) -> int | None:
        """As the server said it of the model that answers there."""
        held = self.engine.live.get(session_id)
        return held.standing.context_limit if held else None

    async def processes(self, session_id: str) -> Sequence[ProcessStatus]:
        path = f"{path_of(session_id)}/processes"
        found: list[ProcessStatus] = await self.engine.client.get(path, list[ProcessStatus])
        return [one for one in found if one.backgrounded]

    async def end_process(self, session_id: str, process_id: str) -> bool:
        path = f"{path_of(session_id)}/processes/{process_id}/kill"
        return (await self.engine.client.post(path, None, _Done)).done

    async def run_by_hand(self, session_id: str, command: str, on_output: Callable[[str], object]) -> str:
        return await run_there(self.engine.client, session_id, command, on_output)

    async def questions(self, session_id: str) -> Sequence[AskedQuestion]:
        return await self.engine.client.get("/api/questions", list[AskedQuestion], session_id=session_id)

    async def answer_question(self, question_id: str, answers: Sequence[str]) -> None:
        await self.engine.client.ask("POST", f"/api/questions/{question_id}", {"answers": answers})

    async def revoke(self, approval_id: str) -> None:
        await self.archive.revoke(approval_id)


PATIENCE = 60.0  # seconds that a server may take to come back while nobody looks on


class Health(msgspec.Struct, frozen=True):
    ok: bool
    version: str


class AgentCard(msgspec.Struct, frozen=True):
    name: str
    role: str
    model: str
    mode: Mode


@asynccontextmanager
async def attached(
    place: Place, version: str, *, patience: float | None = PATIENCE
) -> AsyncGenerator[RemoteEngine, None]:
    """Raises ConfigurationError or ServerAwayError, with a remedy, where that cannot work."""
    client = Client(place)
    there = await _health(client)
    if _release(there.version) != _release(version):
        raise another_version(place, f"version {there.version}", version)
    cards: list[AgentCard] = await client.get("/api/agents", list[AgentCard])
    async with RemoteEngine(client, [_agent(card) for card in cards], patience=patience) as engine:
        yield engine


async def _health(client: Client) -> Health:
    try:
        return msgspec.json.decode(await client.ask("GET", "/api/health"), type=Health)
    except (msgspec.DecodeError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise no_server_of_ours(client.place) from error


def _agent(card: AgentCard) -> Agent:
    provider, _, model = card.model.partition("/")
    return Agent(card.name, "", model, provider, role=card.role, mode=card.mode)


def _release(version: str) -> tuple[str, ...]:
    """What has to be the same on both sides: mending changes nothing of what is spoken between them."""
    return tuple(version.split(".")[:2])
