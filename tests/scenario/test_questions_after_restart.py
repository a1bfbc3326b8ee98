"""Open questions of models survive the engine; the next one that opens the session asks them again."""

import asyncio
from typing import Any

import pytest

from outrider import Agent, Engine, Provider
from outrider.engine.questions import AskedQuestion, QuestionQueue
from outrider.providers.scripted import call
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.store import Store
from outrider.tools.builtin.question import question_tool
from outrider.types.parts import ToolPart

ASKS = [call("question", question="Which colour?", options=["red", "blue"])]
CALLS = [call("call_agent", agent_name="painter", message="paint it")]
SECONDS = 30


def engine_on(store: Store, questions: QuestionQueue, **scripts: list[Any]) -> Engine:
    """Returns an engine with one agent per script, which has the answers of its model."""
    agents = [Agent(name, f"You are {name}.", "model-1", name) for name in scripts]
    providers = [Provider(name, "scripted", options={"script": script}) for name, script in scripts.items()]
    return Engine(agents, providers, [question_tool(questions.ask)], store=store, bus=questions.bus)


async def asked(questions: QuestionQueue) -> AskedQuestion:
    async with asyncio.timeout(SECONDS):
        while not questions.open_questions():
            await asyncio.sleep(0.01)
    return questions.open_questions()[0]


async def calls(store: Store, session_id: str) -> list[Any]:
    messages = (await store.load(session_id)).messages
    return [part.state for message in messages for part in message.get_parts_by_type(ToolPart)]


@pytest.mark.parametrize("how", ["left", "crashed"])
async def test_who_opens_the_session_is_asked_and_the_turn_continues_with_the_answer(how: str):
    store, before, after = MemoryStore(), QuestionQueue(), QuestionQueue()
    async with (
        engine_on(store, before, painter=[ASKS]) as first,
        engine_on(store, after, painter=["Painted."]) as next_,
    ):
        session_id = await first.create()
        await first.enqueue(session_id, "paint it")
        assert (await asked(before)).text == "Which colour?"
        if how == "left":
            await first.close(session_id)
            assert not before.open_questions()
        await next_.open(session_id, take_over=True)
        question = await asked(after)
        assert (question.text, question.options) == ("Which colour?", ("red", "blue"))
        after.answer(question.id, ["blue"])
        assert (await next_.resume(session_id)).output == "Painted."
        assert [state.output for state in await calls(store, session_id)] == ["The user answered: blue"]


async def test_a_question_is_asked_as_often_as_there_are_restarts():
    store = MemoryStore()
    session_id = ""
    for _ in range(6):
        questions = QuestionQueue()
        async with engine_on(store, questions, painter=[ASKS]) as engine:
            session_id = session_id or await engine.create()
            if not (await store.load(session_id)).messages:
                await engine.enqueue(session_id, "paint it")
            await engine.open(session_id)
            await asked(questions)
    assert [state.status for state in await calls(store, session_id)] == ["running"]


async def test_a_withdrawn_question_is_not_asked_again():
    store, before, after = MemoryStore(), QuestionQueue(), QuestionQueue()
    async with engine_on(store, before, painter=[ASKS]) as first:
        session_id = await first.create()
        await first.enqueue(session_id, "paint it")
        await asked(before)
        await first.abort(session_id)
    async with engine_on(store, after, painter=["Never mind."]) as next_:
        assert (await next_.prompt(session_id, "leave it")).output == "Never mind."
        assert not after.open_questions()
        [state] = await calls(store, session_id)
        assert (state.status, state.reason) == ("error", "canceled")


async def test_what_an_agent_asked_that_was_called_is_asked_again_where_the_turn_continues():
    store, before, after = MemoryStore(), QuestionQueue(), QuestionQueue()
    async with engine_on(store, before, main=[CALLS], painter=[ASKS]) as first:
        session_id = await first.create()
        await first.enqueue(session_id, "have it painted")
        await asked(before)
    async with engine_on(store, after, main=["It is done."], painter=["Painted."]) as next_:
        turn = asyncio.create_task(next_.resume(session_id))
        after.answer((await asked(after)).id, ["blue"])
        assert (await turn).output == "It is done."
        [called] = await calls(store, session_id)
        assert "Painted." in called.output


async def test_where_it_does_not_continue_what_a_called_agent_asked_is_ended():
    store, before, after = MemoryStore(), QuestionQueue(), QuestionQueue()
    async with engine_on(store, before, main=[CALLS], painter=[ASKS]) as first:
        session_id = await first.create()
        await first.enqueue(session_id, "have it painted")
        child = (await asked(before)).session_id
    async with engine_on(store, after, main=["Then not."], painter=[]) as next_:
        assert (await next_.prompt(session_id, "leave it")).output == "Then not."
        for state in (*await calls(store, session_id), *await calls(store, child)):
            assert (state.status, state.reason) == ("error", "interrupted")
