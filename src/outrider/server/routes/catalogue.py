"""What the engine has: agents, models, usage, and whether it is well."""

from typing import Literal

import msgspec

from outrider.app.archive.archive import UsageRow
from outrider.app.views.models import models_of
from outrider.server.endpoint import Asked, Endpoint, Nothing, Number
from outrider.types.agents import Mode


class AgentCard(msgspec.Struct, frozen=True):
    """An agent, without its instructions."""

    name: str
    role: str
    model: str
    mode: Mode


class UsageQuery(msgspec.Struct, frozen=True):
    """Times are Unix milliseconds."""

    by: Literal["day", "model", "agent", "tool"] = "day"
    since: Number | None = None
    until: Number | None = None
    session_id: str | None = None


class Health(msgspec.Struct, frozen=True):
    ok: bool
    version: str
    open_sessions: int
    waiting_approvals: int


async def agents(asked: Asked[Nothing, Nothing]) -> list[AgentCard]:
    found = asked.engine.staff.plan.agents.values()
    return [AgentCard(agent.name, agent.role, f"{agent.provider}/{agent.model}", agent.mode) for agent in found]


async def models(asked: Asked[Nothing, Nothing]) -> list[str]:
    plan = asked.engine.staff.plan
    listed = [f"{model.provider}/{model.model}" for model in models_of(plan.providers.values())]
    in_use = [f"{agent.provider}/{agent.model}" for agent in plan.agents.values()]
    return sorted({*listed, *in_use})


async def usage(asked: Asked[UsageQuery, Nothing]) -> list[UsageRow]:
    query = asked.query
    rows = await asked.engine.store.statistics(
        query.by, since=query.since, until=query.until, session_id=query.session_id
    )
    return list(rows)


async def health(asked: Asked[Nothing, Nothing]) -> Health:
    """The store has been asked when this answers."""
    waiting = await asked.engine.approvals()
    return Health(ok=True, version=asked.version, open_sessions=len(asked.engine.live), waiting_approvals=len(waiting))


CATALOGUE = (
    Endpoint(method="GET", path="/api/agents", name="agents", summary="The agents", answer=agents,
             gives=list[AgentCard]),
    Endpoint(method="GET", path="/api/models", name="models", summary="Models by provider", answer=models,
             gives=list[str]),
    Endpoint(method="GET", path="/api/usage", name="usage", summary="Tokens and cost by day, model, agent or tool",
             answer=usage, query=UsageQuery, gives=list[UsageRow]),
    Endpoint(method="GET", path="/api/health", name="health", summary="Whether the server is well", answer=health,
             gives=Health),
)  # fmt: skip
