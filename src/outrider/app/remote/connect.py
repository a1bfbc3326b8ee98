"""Attaches to a server: looks whether it is one, whether it is one of this version, and what it has."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec

from outrider.app.remote.client import Client
from outrider.app.remote.engine import RemoteEngine
from outrider.app.remote.place import Place
from outrider.app.remote.refusals import another_version, no_server_of_ours
from outrider.errors import ConfigurationError
from outrider.types.agents import Agent, Mode

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
