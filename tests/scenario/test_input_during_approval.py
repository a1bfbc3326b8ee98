"""Input that arrives while a call waits for its approval does not replace the result of the call."""

import asyncio

from outrider import Engine, Tool
from outrider.providers.scripted import call
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import InboxItem
from outrider.types.messages import Message
from outrider.types.parts import TextPart, ToolPart
from tests.scenario.scripted_runs import agent, scripted

SECONDS = 30


async def test_a_call_that_was_approved_while_the_session_was_closed_runs_before_the_input_that_came_too():
    store, ran = MemoryStore(), list[str]()

    def risky() -> str:
        ran.append("risky")
        return "it went well"

    def opened(*answers: object) -> Engine:
        return Engine([agent()], [scripted([*answers])], [Tool(risky, policy="ask")], store=store)

    async with opened(call("risky", "call-1")) as engine:
        session_id = await engine.create()
        turn = asyncio.create_task(engine.prompt(session_id, "go"))
        async with asyncio.timeout(SECONDS):
            while not (asked := await store.approvals(only_open=True)):
                await asyncio.sleep(0.01)
        await engine.close(session_id)
        await asyncio.wait_for(asyncio.wait([turn]), SECONDS)
    await store.answer(asked[0].id, "allowed", by="somebody")
    user_message = Message("user", [TextPart("look again")])
    await store.put_inbox(InboxItem(session_id=session_id, message=user_message, delivery="steer"))
    async with opened("All is done.") as engine:
        end = await asyncio.wait_for(engine.resume(session_id, take_over=True), SECONDS)
    messages = (await store.load(session_id)).messages
    (made,) = [part for message in messages for part in message.get_parts_by_type(ToolPart)]
    assert (made.state.status, ran, end.output) == ("completed", ["risky"], "All is done.")
    assert [message.role for message in messages] == ["user", "assistant", "user", "assistant"]
