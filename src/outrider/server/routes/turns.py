"""Endpoints for turns: prompts, the input queue, plans, approvals and model questions."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec

from outrider.engine.archive import Approval, TurnOutcome
from outrider.engine.engine import MAX_COMPACTION_INSTRUCTIONS, Engine
from outrider.engine.frontend import AskedQuestion, user_command_part
from outrider.errors import SessionInUseError
from outrider.presentation.items import Notice, compaction_result, compaction_undo_result
from outrider.server.endpoint import ApiEndpoint, NoPayload, RouteRequest
from outrider.server.event_stream import find_root_session, is_descendant
from outrider.server.payloads import ApprovalWithView, PlanWithView, add_approval_view
from outrider.server.routes.sessions import SESSION_PATH
from outrider.server.users import AccessDeniedError
from outrider.types.codec import load_part
from outrider.types.ids import new_id
from outrider.types.outcomes import OutcomeChoice
from outrider.types.parts import TextPart


class UserCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command that the user ran, its output and how it ended, such as "exit code 0"."""

    command: str
    output: str = ""
    status: str = ""


class PromptRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The input of a turn, with `text`, `parts` or both.

    - `text`: the text of the user.
    - `parts`: parts in their stored form.
    - `commands`: commands of the user, which the model reads before the text and the parts.
    - `delivery`: `steer` adds the input to the running turn, `queue` starts the next turn with it.
    - `id`: chosen by the client; a repeated prompt is queued once.
    - `wait`: whether the response is sent at the end of the turn, or as soon as the input is stored.
    """

    text: str = ""
    parts: tuple[dict[str, Any], ...] = ()
    commands: tuple[UserCommand, ...] = ()
    delivery: Literal["steer", "queue"] = "queue"
    id: str = ""
    wait: bool = False


class PromptReceipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """`end` is the end of the turn, if the request waited for it."""

    id: str
    end: "TurnResult | None" = None


class TurnResult(msgspec.Struct, frozen=True):
    """How a turn ended, and its final output. `error_type` is the class name of the error."""

    reason: str
    output: str = ""
    error: str = ""
    error_type: str = ""

    @classmethod
    def from_turn_end(cls, end: TurnOutcome) -> "TurnResult":
        if end.error is None:
            return cls(end.reason, end.output)
        return cls(end.reason, end.output, end.error.message, type(end.error).__name__)


class QueuedInputView(msgspec.Struct, frozen=True):
    id: str
    text: str
    delivery: str
    sender: str


class PlanAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Accepts the plan, accepts it as `changed`, or rejects it with `words` for the model."""

    accept: bool
    changed: str | None = None
    words: str = ""


class ApprovalsQuery(msgspec.Struct, frozen=True):
    """Selects the approvals of a session and of its child sessions."""

    session_id: str | None = None


class ApprovalReplyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer to an approval.

    - `allow`: whether the call may run.
    - `scope`: how long the answer applies. For users who are not administrators, `always` becomes `project`.
    - `words`: a message for the model, sent with a denial.
    - `keep`: for the outcome of a command, the files to keep; null for all.
    - `choice`: for the outcome of a command, how a blocked command runs again.
    - `width`: what a lasting answer covers: the id of one of the approval's `widths`.
    """

    allow: bool
    scope: Literal["once", "session", "project", "always"] = "once"
    words: str = ""
    keep: tuple[str, ...] | None = None
    choice: OutcomeChoice = "keep"
    width: str = ""


class CompactionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`instructions` tell the model what the summary should contain."""

    instructions: Annotated[str, msgspec.Meta(max_length=MAX_COMPACTION_INSTRUCTIONS)] = ""


class CompactionReply(msgspec.Struct, frozen=True):
    """Number of tokens before and after; None if there was nothing to compact. `notice` is what to show if no message
    of the session shows it."""

    tokens_before: int | None = None
    tokens_after: int | None = None
    notice: Notice | None = None


class CompactionUndoReply(msgspec.Struct, frozen=True):
    """Whether a compaction was in effect and was undone, and what to show about it."""

    undone: bool
    notice: Notice | None = None


async def submit_prompt(request: RouteRequest[NoPayload, PromptRequest]) -> PromptReceipt:
    body = request.body
    content: list[Any] = [TextPart(body.text)] if body.text else []
    content += [load_part(part) for part in body.parts]
    if not content:
        raise ValueError("a prompt needs text or parts")
    content[:0] = [user_command_part(command.command, command.output, command.status) for command in body.commands]
    input_id = body.id or new_id()
    end = await request.engine.enqueue(
        request.path["session_id"], content, delivery=body.delivery, input_id=input_id, sender=request.requester.name
    )
    return PromptReceipt(input_id, TurnResult.from_turn_end(await end)) if body.wait else PromptReceipt(input_id)


async def continue_turn(request: RouteRequest[NoPayload, NoPayload]) -> TurnResult:
    return TurnResult.from_turn_end(await request.engine.resume(request.path["session_id"]))


async def abort_turn(request: RouteRequest[NoPayload, NoPayload]) -> None:
    await request.engine.abort(request.path["session_id"])


async def compact_session(request: RouteRequest[NoPayload, CompactionRequest]) -> CompactionReply:
    part = await request.engine.compact(request.path["session_id"], request.body.instructions)
    notice = compaction_result(done=part is not None)
    return CompactionReply(part.tokens_before, part.tokens_after, notice) if part else CompactionReply(notice=notice)


async def undo_compaction(request: RouteRequest[NoPayload, NoPayload]) -> CompactionUndoReply:
    undone = await request.engine.undo_compaction(request.path["session_id"])
    return CompactionUndoReply(undone, compaction_undo_result(undone=undone))


async def list_queue(request: RouteRequest[NoPayload, NoPayload]) -> list[QueuedInputView]:
    await request.engine.store.get(request.path["session_id"])
    items = await request.engine.queued(request.path["session_id"])
    return [QueuedInputView(item.id, item.message.get_text_content(), item.delivery, item.sender) for item in items]


async def withdraw_input(request: RouteRequest[NoPayload, NoPayload]) -> None:
    if not await request.engine.withdraw(request.path["session_id"], request.path["input_id"]):
        raise LookupError("no such queued input; a turn may have taken it")


async def get_plan(request: RouteRequest[NoPayload, NoPayload]) -> PlanWithView:
    plan = await request.engine.plan(request.path["session_id"]) if await request.may_open() else None
    if plan is None:
        raise LookupError("this session has no open plan")
    return PlanWithView(**msgspec.structs.asdict(plan))


async def answer_plan(request: RouteRequest[NoPayload, PlanAnswer]) -> TurnResult:
    session_id, answer, name = request.path["session_id"], request.body, request.requester.name
    if answer.accept:
        return TurnResult.from_turn_end(await request.engine.accept_plan(session_id, answer.changed, by=name))
    return TurnResult.from_turn_end(await request.engine.refuse_plan(session_id, answer.words, by=name))


async def list_approvals(request: RouteRequest[ApprovalsQuery, NoPayload]) -> list[ApprovalWithView]:
    ancestor_id, engine = request.query.session_id, request.engine
    approvals = [
        approval
        for approval in await engine.approvals()
        if (ancestor_id is None or await is_descendant(engine, approval.session_id, ancestor_id))
        and await request.access_to(approval.session_id)
    ]
    return [
        add_approval_view(approval, agent=await _child_agent(engine, approval, ancestor_id)) for approval in approvals
    ]


async def _child_agent(engine: Engine, approval: Approval, ancestor_id: str | None) -> str:
    """Returns the agent of a child session; "" for the session that the client follows."""
    is_own = ancestor_id is None or approval.session_id == ancestor_id
    return "" if is_own else (await engine.store.get(approval.session_id)).agent


async def answer_approval(request: RouteRequest[NoPayload, ApprovalReplyBody]) -> ApprovalWithView:
    answer, approval_id = request.body, request.path["approval_id"]
    is_open = _contains_approval(await request.engine.approvals(), approval_id)
    if not is_open and not _contains_approval(await request.engine.store.approvals(), approval_id):
        raise LookupError(f"no approval {approval_id}")
    if answer.choice in ("outside", "paths") and not request.requester.is_admin:
        raise AccessDeniedError("only an administrator lets a command leave the workspace and the sandbox")
    # An answer for all workspaces applies to the sessions of every user, so only administrators give one.
    scope = "project" if answer.scope == "always" and not request.requester.is_admin else answer.scope
    approval = await request.engine.answer(
        approval_id,
        allow=answer.allow,
        scope=scope,
        by=request.requester.name,
        words=answer.words,
        keep=answer.keep,
        choice=answer.choice,
        width=answer.width,
    )
    if is_open:
        await _resume_session(request, await find_root_session(request.engine, approval.session_id))
    return add_approval_view(approval)


async def _resume_session(request: RouteRequest[NoPayload, ApprovalReplyBody], session_id: str) -> None:
    """Resumes a session that is not open here. A background run is resumed by a worker, a session of another process by
    that process; a session that a previous server left is opened here, which continues it."""
    if session_id in request.engine.live:
        return
    if request.background is not None and await request.background.is_run(session_id):
        await request.background.resume_waiting_runs()
        return
    with suppress(SessionInUseError):
        await request.engine.open(session_id)


def _contains_approval(approvals: Iterable[Approval], approval_id: str) -> bool:
    return any(approval.id == approval_id for approval in approvals)


TURN_ROUTES = (
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/prompt", name="prompt", summary="Queue input for a session",
                starts_work=True, handler=submit_prompt, body=PromptRequest, response_type=PromptReceipt, status=202),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/continue", name="go_on", summary="Continue an interrupted turn",
                starts_work=True, handler=continue_turn, response_type=TurnResult),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/abort", name="abort", summary="Abort the running turn",
                handler=abort_turn, status=204),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/compact", name="compact",
                summary="Replace old messages with a summary", starts_work=True, handler=compact_session,
                body=CompactionRequest, response_type=CompactionReply),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/compact/undo", name="undo_compaction",
                summary="Put the messages that the last summary replaced back into the prompt",
                handler=undo_compaction, response_type=CompactionUndoReply),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/queue", name="queue", summary="List queued input",
                handler=list_queue, response_type=list[QueuedInputView]),
    ApiEndpoint(method="DELETE", path=f"{SESSION_PATH}/queue/{{input_id}}", name="withdraw",
                summary="Withdraw queued input", handler=withdraw_input, status=204),
    ApiEndpoint(method="GET", path=f"{SESSION_PATH}/plan", name="get_plan",
                summary="Get the plan that waits for an answer", handler=get_plan, response_type=PlanWithView),
    ApiEndpoint(method="POST", path=f"{SESSION_PATH}/plan", name="answer_plan",
                summary="Accept, change or reject the plan", starts_work=True, handler=answer_plan, body=PlanAnswer,
                response_type=TurnResult),
    ApiEndpoint(method="GET", path="/api/approvals", name="list_approvals", summary="List open approvals",
                handler=list_approvals, query=ApprovalsQuery, response_type=list[ApprovalWithView]),
    ApiEndpoint(method="POST", path="/api/approvals/{approval_id}", name="answer_approval",
                summary="Answer an approval; the first answer applies", handler=answer_approval, body=ApprovalReplyBody,
                response_type=ApprovalWithView),
)  # fmt: skip


QUESTIONS_PATH = "/api/questions"


class QuestionsQuery(msgspec.Struct, frozen=True):
    """Selects the questions of a session and of its child sessions."""

    session_id: str | None = None


class QuestionAnswers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Chosen options, free text, or both; if empty, the model reads that the user gave no answer."""

    answers: Annotated[tuple[str, ...], msgspec.Meta(max_length=100)] = ()


async def list_questions(request: RouteRequest[QuestionsQuery, NoPayload]) -> list[AskedQuestion]:
    ancestor_id = request.query.session_id
    questions = request.questions.open_questions() if request.questions else []
    visible_questions = [
        question
        for question in questions
        if (ancestor_id is None or await is_descendant(request.engine, question.session_id, ancestor_id))
        and await request.access_to(question.session_id)
    ]
    return request.engine.redact(visible_questions)


async def answer_question(request: RouteRequest[NoPayload, QuestionAnswers]) -> None:
    question_id = request.path["question_id"]
    if request.questions is None or all(question.id != question_id for question in request.questions.open_questions()):
        raise LookupError("no such open question; it may have been answered")
    await request.questions.answer_anywhere(question_id, request.body.answers)


QUESTION_ROUTES = (
    ApiEndpoint(method="GET", path=QUESTIONS_PATH, name="list_questions", summary="List open questions of models",
                handler=list_questions, query=QuestionsQuery, response_type=list[AskedQuestion]),
    ApiEndpoint(method="POST", path=f"{QUESTIONS_PATH}/{{question_id}}", name="answer_question",
                summary="Answer a question of a model; the first answer applies", handler=answer_question,
                body=QuestionAnswers, status=204),
)  # fmt: skip
