"""Turns that clients of other protocols follow, when the engine is faster than the server."""

import asyncio

from outrider import Engine
from outrider.server.turn_stream import ApprovalsNeeded, ProtocolTurns, TextChunk, TurnInput
from outrider.stores import MemoryStore
from outrider.tools.tool import Tool
from tests.scenario.scripted_runs import agent, call, scripted

PAY = Tool(lambda: "paid", name="pay", policy="ask")


async def test_the_text_before_an_approval_is_sent_when_the_approval_is_open_before_the_first_event_is_read():
    script = scripted([["I will pay.", call("pay", "c1")], "It is paid."])
    async with Engine([agent()], [script], [PAY], store=MemoryStore()) as engine:
        session, turns = await engine.create(), ProtocolTurns(engine)

        async def begin() -> None:
            await turns.start(session, TurnInput(content=["Pay 5."]), sender="client")
            async with asyncio.timeout(10):
                while not await turns.open_approvals(session):
                    await asyncio.sleep(0.01)

        items = [item async for item in turns.follow(session, begin)]
        assert [item.text for item in items if isinstance(item, TextChunk)] == ["I will pay."]
        assert isinstance(items[-1], ApprovalsNeeded)
