"""Questions of models are published to all clients, answered once, and removed with their call."""

import asyncio
from typing import Any

import pytest

from outrider.engine.questions import QuestionQueue
from outrider.errors import OutriderError
from outrider.event_bus import EventBus
from outrider.tools.tool import ToolContext, UserQuestion
from outrider.types.events import SessionUpdatedEvent


def asking() -> tuple[QuestionQueue, "asyncio.Task[Any]", list[SessionUpdatedEvent]]:
    bus, received = EventBus(), list[SessionUpdatedEvent]()
    bus.subscribe(SessionUpdatedEvent, received.append)
    questions = QuestionQueue(bus)
    question = UserQuestion("Which?", ("red", "blue"))
    asked = asyncio.create_task(questions.ask(question, ToolContext(session_id="s", agent="painter")))
    return questions, asked, received


async def test_the_first_answer_applies_and_later_ones_are_rejected():
    questions, asked, received = asking()
    await asyncio.sleep(0)
    (waiting,) = questions.open_questions("s")
    assert questions.open_questions("another") == []
    assert received[0].changes["question"] == {
        "id": waiting.id, "session_id": "s", "text": "Which?", "options": ("red", "blue"), "multiple": False,
        "agent": "painter",
    }  # fmt: skip
    questions.answer(waiting.id, ["blue"])
    with pytest.raises(OutriderError, match="no answer any more"):
        questions.answer(waiting.id, ["red"])
    assert await asked == ("blue",)
    assert received[1].changes == {"settled": waiting.id}
    assert questions.open_questions() == []
    with pytest.raises(OutriderError, match="no answer any more"):
        questions.answer(waiting.id, ["red"])


async def test_a_question_goes_with_the_call_that_asks():
    questions, asked, received = asking()
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.wait([asked])
    assert questions.open_questions() == []
    assert list(received[-1].changes) == ["settled"]
