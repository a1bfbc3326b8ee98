"""What the engine has: agents, models, usage, and whether it is well."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec

from outrider.engine.archive import Approval, UsageRow
from outrider.engine.child_sessions import DelegatedLimits
from outrider.engine.frontend import archive_of, models_of
from outrider.remote.agent_server import Ended
from outrider.server.routing import Asked, Endpoint, Nothing, Number, Stream
from outrider.types.agents import Limits, Mode
from outrider.types.codec import load_part
from outrider.types.deltas import Delta, delta_tag


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


async def list_answers(asked: Asked[Nothing, Nothing]) -> list[Approval]:
    return list(await archive_of(asked.engine).answers())


async def revoke_answer(asked: Asked[Nothing, Nothing]) -> None:
    await asked.engine.desk.revoke(asked.path["approval_id"])


RIGHTS = (
    Endpoint(method="GET", path="/api/answers", name="list_answers", summary="Answers that hold for longer than once",
             answer=list_answers, gives=list[Approval]),
    Endpoint(method="DELETE", path="/api/answers/{approval_id}", name="revoke_answer",
             summary="Take back an answer: it is asked again", answer=revoke_answer, status=204),
)  # fmt: skip


_encode = msgspec.json.Encoder(enc_hook=lambda part: part.to_dict()).encode


class PeerCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent elsewhere asks of `agent` (""; the default), in a session of an earlier answer or a new one, with
    what is left of its limits: `depth` is how many levels of agents may be opened here. `id` is the sender's own:
    what is sent twice, since no answer came, is begun once."""

    parts: Annotated[tuple[dict[str, Any], ...], msgspec.Meta(min_length=1)]
    id: Annotated[str, msgspec.Meta(max_length=100)] = ""
    agent: str = ""
    session_id: str = ""
    mode: Mode = "agent"
    depth: Number = 0
    turns: Number | None = None
    seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    tokens: Number | None = None
    cost: Decimal | None = None
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def terms(self) -> DelegatedLimits:
        limits = Limits(turns=self.turns, seconds=self.seconds, tokens=self.tokens, cost=self.cost, depth=self.depth)
        return DelegatedLimits(limits, self.ask, self.deny)


async def ask_agent(asked: Asked[Nothing, PeerCall]) -> Stream:
    call = asked.body
    content = [load_part(part) for part in call.parts]
    turn = await asked.peers.begin(call.id, call.session_id, call.agent, call.mode)
    return Stream(_framed(asked.peers.answer(turn, content, call.terms())))


async def _framed(answer: AsyncGenerator[Delta | Ended, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(answer) as deltas:
        async for delta in deltas:
            name = b"Failed" if isinstance(delta, Ended) else delta_tag(delta).encode()
            yield b"event: %b\ndata: %b\n\n" % (name, _encode(delta))


PEERS = (
    Endpoint(method="POST", path="/api/peer", name="ask_agent", summary="Ask an agent on behalf of another server's",
             answer=ask_agent, body=PeerCall, gives="text/event-stream"),
)  # fmt: skip
