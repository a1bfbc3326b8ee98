"""Turns: input that steers or waits, plans, and questions that wait for an answer."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec

from outrider.engine.archive import Approval
from outrider.engine.engine import TurnEnd
from outrider.engine.frontend import AskedQuestion
from outrider.engine.plans import Plan
from outrider.errors import SessionInUseError
from outrider.server.routes.sessions import ONE
from outrider.server.routing import Asked, Endpoint, Nothing
from outrider.server.session_family import is_below, top_of
from outrider.types.codec import load_part
from outrider.types.ids import new_id
from outrider.types.parts import TextPart

SENDER = "server"


class Prompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`text`, or `parts` as they are stored, or both. `id` is the sender's own: the same prompt sent twice counts
    once. With `wait` the answer comes at the end of the turn, otherwise as soon as the input is kept."""

    text: str = ""
    parts: tuple[dict[str, Any], ...] = ()
    delivery: Literal["steer", "queue"] = "queue"
    id: str = ""
    wait: bool = False


class Prompted(msgspec.Struct, frozen=True, omit_defaults=True):
    """`end` is that of the turn, where it was waited for."""

    id: str
    end: "Ended | None" = None


class Ended(msgspec.Struct, frozen=True):
    """How a turn ended, and its last words. `error_type` is the class name of what ended it."""

    reason: str
    output: str = ""
    error: str = ""
    error_type: str = ""

    @classmethod
    def of(cls, end: TurnEnd) -> "Ended":
        if end.error is None:
            return cls(end.reason, end.output)
        return cls(end.reason, end.output, end.error.message, type(end.error).__name__)


class Waiting(msgspec.Struct, frozen=True):
    id: str
    text: str
    delivery: str
    sender: str


class PlanAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Accept it, accept it as `changed`, or refuse it with `words` to the model."""

    accept: bool
    changed: str | None = None
    words: str = ""


class ApprovalsQuery(msgspec.Struct, frozen=True):
    """Those of a session, and of the sessions that its agents have opened."""

    session_id: str | None = None


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`words` go to the model with a no."""

    allow: bool
    scope: Literal["once", "session", "project", "always"] = "once"
    words: str = ""


class Shortened(msgspec.Struct, frozen=True):
    """Tokens before and after; none where there was nothing to shorten."""

    tokens_before: int | None = None
    tokens_after: int | None = None


async def prompt(asked: Asked[Nothing, Prompt]) -> Prompted:
    wanted = asked.body
    content: list[Any] = [TextPart(wanted.text)] if wanted.text else []
    content += [load_part(part) for part in wanted.parts]
    if not content:
        raise ValueError("a prompt needs text or parts")
    chosen = wanted.id or new_id()
    end = await asked.engine.put(
        asked.path["session_id"], content, delivery=wanted.delivery, input_id=chosen, sender=SENDER
    )
    return Prompted(chosen, Ended.of(await end)) if wanted.wait else Prompted(chosen)


async def go_on(asked: Asked[Nothing, Nothing]) -> Ended:
    return Ended.of(await asked.engine.go_on(asked.path["session_id"]))


async def abort(asked: Asked[Nothing, Nothing]) -> None:
    await asked.engine.abort(asked.path["session_id"])


async def compact(asked: Asked[Nothing, Nothing]) -> Shortened:
    part = await asked.engine.compact(asked.path["session_id"])
    return Shortened(part.tokens_before, part.tokens_after) if part else Shortened()


async def queue(asked: Asked[Nothing, Nothing]) -> list[Waiting]:
    await asked.engine.store.get(asked.path["session_id"])
    items = await asked.engine.queued(asked.path["session_id"])
    return [Waiting(item.id, item.message.get_text_content(), item.delivery, item.sender) for item in items]


async def withdraw(asked: Asked[Nothing, Nothing]) -> None:
    if not await asked.engine.withdraw(asked.path["session_id"], asked.path["input_id"]):
        raise LookupError("no such input waits; a turn may have taken it")


async def get_plan(asked: Asked[Nothing, Nothing]) -> Plan:
    plan = await asked.engine.plan(asked.path["session_id"])
    if plan is None:
        raise LookupError("no plan waits for an answer in this session")
    return plan


async def answer_plan(asked: Asked[Nothing, PlanAnswer]) -> Ended:
    session_id, answer = asked.path["session_id"], asked.body
    if answer.accept:
        return Ended.of(await asked.engine.accept_plan(session_id, answer.changed, by=SENDER))
    return Ended.of(await asked.engine.refuse_plan(session_id, answer.words, by=SENDER))


async def list_approvals(asked: Asked[ApprovalsQuery, Nothing]) -> list[Approval]:
    above = asked.query.session_id
    found = await asked.engine.approvals()
    return [one for one in found if above is None or await is_below(asked.engine, one.session_id, above)]


async def answer_approval(asked: Asked[Nothing, Answer]) -> Approval:
    answer, wanted = asked.body, asked.path["approval_id"]
    waits = _is_among(await asked.engine.approvals(), wanted)
    if not waits and not _is_among(await asked.engine.store.approvals(), wanted):
        raise LookupError(f"there is no question {wanted}")
    given = await asked.engine.answer(wanted, allow=answer.allow, scope=answer.scope, by=SENDER, words=answer.words)
    if waits:
        await _go_on_with(asked, await top_of(asked.engine, given.session_id))
    return given


async def _go_on_with(asked: Asked[Nothing, Answer], session_id: str) -> None:
    """Where nobody here works in the session: a run is its workers', another program goes on by itself, and what a
    server left when it ended goes on here."""
    if session_id in asked.engine.live:
        return
    if asked.background is not None and await asked.background.has(session_id):
        await asked.background.answered()
        return
    with suppress(SessionInUseError):
        await asked.engine.open(session_id)


def _is_among(approvals: Iterable[Approval], approval_id: str) -> bool:
    return any(one.id == approval_id for one in approvals)


TURNS = (
    Endpoint(method="POST", path=f"{ONE}/prompt", name="prompt", summary="Put input into a session",
             answer=prompt, body=Prompt, gives=Prompted, status=202),
    Endpoint(method="POST", path=f"{ONE}/continue", name="go_on", summary="Let a turn go on that was cut off",
             answer=go_on, gives=Ended),
    Endpoint(method="POST", path=f"{ONE}/abort", name="abort", summary="End the turn under way; everything is kept",
             answer=abort, status=204),
    Endpoint(method="POST", path=f"{ONE}/compact", name="compact", summary="Put a summary in place of old messages",
             answer=compact, gives=Shortened),
    Endpoint(method="GET", path=f"{ONE}/queue", name="queue", summary="Input that waits for its turn",
             answer=queue, gives=list[Waiting]),
    Endpoint(method="DELETE", path=f"{ONE}/queue/{{input_id}}", name="withdraw", summary="Take back input that waits",
             answer=withdraw, status=204),
    Endpoint(method="GET", path=f"{ONE}/plan", name="get_plan", summary="The plan that waits for an answer",
             answer=get_plan, gives=Plan),
    Endpoint(method="POST", path=f"{ONE}/plan", name="answer_plan", summary="Accept, change or refuse the plan",
             answer=answer_plan, body=PlanAnswer, gives=Ended),
    Endpoint(method="GET", path="/api/approvals", name="list_approvals", summary="Questions that wait for an answer",
             answer=list_approvals, query=ApprovalsQuery, gives=list[Approval]),
    Endpoint(method="POST", path="/api/approvals/{approval_id}", name="answer_approval",
             summary="Answer a question about a call; the first answer counts",
             answer=answer_approval, body=Answer, gives=Approval),
)  # fmt: skip


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
