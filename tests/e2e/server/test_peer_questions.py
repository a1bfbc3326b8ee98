"""Questions of agents on other servers are sent to the waiting user and to the other server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outrider import Engine
from outrider.engine.questions import QuestionQueue
from outrider.errors import OutriderError
from outrider.providers.scripted import call
from outrider.types.events import Event, SessionUpdatedEvent
from tests.e2e.attach.socket_server import until
from tests.e2e.server.peers import asking, peer, peer_of

ASKS = [[call("question", question="Which colour?", options=["red", "blue"])], "Painted."]


@asynccontextmanager
async def two(tmp_path: Path) -> AsyncIterator[tuple[QuestionQueue, QuestionQueue, Engine, str]]:
    """The questions of the engine of the agent and of the engine that called it."""
    there = QuestionQueue()
    async with peer(tmp_path, "painter", ASKS, questions=there) as (_, address):
        here = QuestionQueue(providers=[peer_of(address)])
        knows = {"painter": address}
        async with peer(tmp_path, "front", asking("painter"), knows=knows, questions=here) as (engine, _):
            yield there, here, engine, address.url


async def test_a_question_is_received_and_answered_by_who_waits(tmp_path: Path):
    async with two(tmp_path) as (there, here, engine, address):
        events: list[Event] = []
        engine.bus.subscribe(SessionUpdatedEvent, events.append)
        turn = asyncio.create_task(engine.prompt(await engine.create(), "have it painted"))
        await until(here.open_questions)
        [asked] = here.open_questions()
        assert (asked.text, asked.options, asked.agent) == ("Which colour?", ("red", "blue"), f"painter at {address}")
        assert asked.session_id in {event.session_id for event in events if "question" in event.changes}
        await here.answer_anywhere(asked.id, ["blue"])
        assert (await turn).output == "I was told: Painted."
        assert not here.open_questions()
        assert not there.open_questions()
        assert [event.changes["settled"] for event in events if "settled" in event.changes] == [asked.id]


async def test_an_answer_over_there_takes_it_from_here(tmp_path: Path):
    async with two(tmp_path) as (there, here, engine, _):
        turn = asyncio.create_task(engine.prompt(await engine.create(), "have it painted"))
        await until(here.open_questions)
        [asked] = there.open_questions()
        there.answer(asked.id, ["red"])
        assert (await turn).output == "I was told: Painted."
        assert not here.open_questions()
        with pytest.raises(OutriderError, match="no answer any more"):
            await here.answer_anywhere(asked.id, ["blue"])


async def test_a_turn_that_ends_takes_it_back_on_both_sides(tmp_path: Path):
    async with two(tmp_path) as (there, here, engine, _):
        session_id = await engine.create()
        turn = asyncio.create_task(engine.prompt(session_id, "have it painted"))
        await until(here.open_questions)
        await engine.abort(session_id)
        assert (await turn).reason == "aborted"
        assert not here.open_questions()
        await until(lambda: not there.open_questions())
