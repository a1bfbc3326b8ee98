"""A turn of an agent here for an agent of another process: begun with what that one may use, followed to its end."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from outrider.agents.ends import TurnEnd
from outrider.app.below.terms import Terms
from outrider.app.engine import Engine
from outrider.app.peers.telling import Telling
from outrider.bus import EventStream
from outrider.permissions.modes import stricter
from outrider.types.agents import Mode
from outrider.types.events import Event
from outrider.types.stream import Delta

SENDER = "peer"
SILENCE = 15.0  # seconds, after which the other side hears that the work goes on


class Ended(msgspec.Struct, frozen=True):
    """How a turn ended that gave no answer."""

    reason: str
    message: str = ""


async def open_for_peer(engine: Engine, session_id: str, agent: str, mode: Mode) -> str:
    """The session that goes on, or a new one of the agent that is named; in a mode that allows no more than theirs."""
    if not session_id:
        chosen = engine.staff.agent(agent)
        return await engine.create(agent=chosen.name, mode=stricter(mode, chosen.mode))
    session = await engine.open(session_id)
    allowed = stricter(mode, engine.staff.agent(session.agent).mode)
    if session.mode != allowed:
        await engine.set_mode(session_id, allowed)
    return session_id


async def answer_peer(
    engine: Engine, session_id: str, content: list[Any], terms: Terms
) -> AsyncGenerator[Delta | Ended, None]:
    """The answer as it comes. Whoever stops listening ends the turn: nobody else asked for it."""
    engine.staff.terms[session_id] = terms
    telling = Telling(session_id, engine.live[session_id].agent.name)
    async with engine.bus.stream(telling.hears) as events:
        end = await engine.put(session_id, content, sender=SENDER)
        end.add_done_callback(lambda _: events.close())
        try:
            for delta in telling.begin():
                yield delta
            async for delta in _followed(events, telling, terms):
                yield delta
        finally:
            if not end.done():
                # A server that drops a client cancels again and again; the turn must end all the same.
                await asyncio.shield(asyncio.create_task(engine.abort(session_id)))
    yield terms.used()
    for delta in telling.end(end.result()):
        yield delta
    if failed := _failure(end.result()):
        yield failed
    await engine.close(session_id)


async def _followed(events: EventStream, telling: Telling, terms: Terms) -> AsyncGenerator[Delta, None]:
    while True:
        heard: Event | None = None
        try:
            async with asyncio.timeout(SILENCE):
                heard = await anext(events)
        except TimeoutError:
            yield terms.used()
        except StopAsyncIteration:
            return
        if heard is not None:
            for delta in telling.tell(heard):
                yield delta


def _failure(end: TurnEnd) -> Ended | None:
    if end.reason in ("completed", "length", "refusal"):
        return None
    return Ended(end.reason, end.error.message if end.error else end.output)
