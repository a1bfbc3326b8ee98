"""What models ask people: listed, and answered by whoever comes first."""

from typing import Annotated

import msgspec

from outrider.app.views.questions import AskedQuestion
from outrider.server.endpoint import Asked, Endpoint, Nothing
from outrider.server.feeds.family import is_below

ALL = "/api/questions"


class QuestionsQuery(msgspec.Struct, frozen=True):
    """Those of a session, and of the sessions that its agents have opened."""

    session_id: str | None = None


class Answers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options that were chosen, words of one's own, or both; without any, the model reads that the user gave none."""

    answers: Annotated[tuple[str, ...], msgspec.Meta(max_length=100)] = ()


async def list_questions(asked: Asked[QuestionsQuery, Nothing]) -> list[AskedQuestion]:
    above = asked.query.session_id
    waiting = asked.questions.waiting() if asked.questions else []
    found = [one for one in waiting if above is None or await is_below(asked.engine, one.session_id, above)]
    return asked.engine.discreet(found)


async def answer_question(asked: Asked[Nothing, Answers]) -> None:
    question_id = asked.path["question_id"]
    if asked.questions is None or all(one.id != question_id for one in asked.questions.waiting()):
        raise LookupError("no such question waits; somebody may have answered it")
    await asked.questions.give(question_id, asked.body.answers)


QUESTIONS = (
    Endpoint(method="GET", path=ALL, name="list_questions", summary="Questions of models that wait for an answer",
             answer=list_questions, query=QuestionsQuery, gives=list[AskedQuestion]),
    Endpoint(method="POST", path=f"{ALL}/{{question_id}}", name="answer_question",
             summary="Answer a model; the first answer counts", answer=answer_question, body=Answers, status=204),
)  # fmt: skip
