"""Asks the editor's user: approvals and plans through permission requests, questions of a model through forms."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import acp
import msgspec
from acp import RequestError
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    ElicitationFormSessionMode,
    ElicitationMultiSelectPropertySchema,
    ElicitationSchema,
    ElicitationStringPropertySchema,
    EnumOption,
    FileEditToolCallContent,
    PermissionOption,
    PermissionOptionKind,
    TitledMultiSelectItems,
    ToolCallUpdate,
)

from outrider.acp.tool_calls import ToolCallView, fence_text, replace_surrogates, to_single_line
from outrider.engine.engine import Engine
from outrider.engine.frontend import UserQuestion
from outrider.errors import OutriderError
from outrider.presentation.approvals import (
    LASTING_COVERS,
    ApprovalChoice,
    ApprovalView,
    lasting_lines,
    question_sections,
)
from outrider.types.ids import new_id

_log = logging.getLogger("outrider.acp")

EDITOR_SENDER = "editor"
NO_ANSWER = "no-answer"


class PermissionView(msgspec.Struct, frozen=True):
    """An approval question and the call that it is about, as the client shows it."""

    question: ApprovalView
    call: ToolCallView

    @property
    def id(self) -> str:
        return self.question.id

    @property
    def choices(self) -> list[ApprovalChoice]:
        """The choices without a denial with a reason and a choice of files, because answers in the protocol have no
        text."""
        return [choice for choice in self.question.choices if not (choice.needs_reason or choice.picks_files)]


class PermissionRequests:
    """The permission requests of one session. `session_id` is the id that the client knows, also for calls of child
    sessions."""

    def __init__(
        self,
        session_id: str,
        engine: Engine,
        client: acp.Client,
        tasks: asyncio.TaskGroup,
        *,
        has_forms: bool = False,
    ) -> None:
        self._session_id = session_id
        self._engine = engine
        self._client = client
        self._tasks = tasks
        self._has_forms = has_forms
        self._requests: dict[str, asyncio.Task[None]] = {}

    def request_approval(self, view: PermissionView) -> None:
        if view.id not in self._requests:
            task = self._tasks.create_task(_log_failure(self._ask_approval(view)))
            self._requests[view.id] = task
            task.add_done_callback(lambda _: self._requests.pop(view.id, None))

    def cancel_request(self, approval_id: str) -> None:
        """Withdraws a request that was answered by another client or is no longer needed."""
        if (task := self._requests.pop(approval_id, None)) is not None:
            task.cancel()

    def close(self) -> None:
        for approval_id in list(self._requests):
            self.cancel_request(approval_id)

    async def ask_model_question(self, question: UserQuestion, call_id: str = "") -> tuple[str, ...] | None:
        """Asks a question through a form, if the client has forms. Otherwise a question with a single choice is a
        permission request, and others return None, because no one can answer them. `call_id` is the client's id of the
        call that asks."""
        if self._has_forms:
            return await self._ask_with_form(question, call_id)
        if not question.options or question.multiple:
            return None
        options = [_permission_option(str(number), text, "allow_once") for number, text in enumerate(question.options)]
        options.append(_permission_option(NO_ANSWER, "No answer", "reject_once"))
        call = ToolCallUpdate(
            tool_call_id=new_id(), title=to_single_line(question.text), kind="other", status="pending"
        )
        try:
            chosen = await self.request_choice(call, options)
        except OutriderError:
            return None
        except ConnectionError:
            return await _wait_forever()
        return (question.options[int(chosen)],) if chosen is not None and chosen != NO_ANSWER else None

    async def _ask_with_form(self, question: UserQuestion, call_id: str) -> tuple[str, ...] | None:
        """Returns the chosen options and the free text; an empty tuple if the user declines."""
        mode = ElicitationFormSessionMode(
            session_id=self._session_id, tool_call_id=call_id or None, requested_schema=_question_form(question)
        )
        try:
            answer = await self._client.create_elicitation(replace_surrogates(question.text), mode)
        except ConnectionError:
            return await _wait_forever()
        except (RequestError, ValueError) as error:
            _log.error("the editor could not show a form: %s", error)
            return None
        if not isinstance(answer, AcceptElicitationResponse):
            return ()
        return _form_answers(question, answer.content or {})

    async def request_choice(self, call: ToolCallUpdate, options: Sequence[PermissionOption]) -> str | None:
        """Returns the id of the chosen option; None if the turn is cancelled. Raises OutriderError if the client cannot
        ask."""
        try:
            answer = await self._client.request_permission(self._session_id, call, list(options))
        except (RequestError, ValueError) as error:
            raise OutriderError(f"the editor could not show the request: {error}") from error
        if not isinstance(answer.outcome, AllowedOutcome):
            return None
        offered = {option.option_id for option in options}
        return answer.outcome.option_id if answer.outcome.option_id in offered else NO_ANSWER

    async def _ask_approval(self, view: PermissionView) -> None:
        """Asks the user about a call. A client that cannot ask causes a denial; one that disconnects leaves the
        approval open."""
        try:
            chosen = await self.request_choice(
                view.call.to_permission_update(question_markdown(view)),
                _approval_options(view),
            )
        except OutriderError as error:
            await self._engine.answer(view.id, allow=False, by=EDITOR_SENDER, words=error.message)
            return
        if chosen is None:
            await self._abort_turn(view)
            return
        choice, _, width = chosen.partition(_WIDTH_MARK)
        await self._engine.answer(view.id, by=EDITOR_SENDER, **view.question.answer(choice, width=width))

    async def _abort_turn(self, view: PermissionView) -> None:
        """Aborts the turn after the client cancelled, unless the approval is already closed because the turn has
        ended. A command of a command file belongs to no turn: it is denied."""
        if await self._is_open(view):
            await self._engine.abort(self._session_id)
        if await self._is_open(view):
            await self._engine.answer(view.id, allow=False, by=EDITOR_SENDER)

    async def _is_open(self, view: PermissionView) -> bool:
        return any(approval.id == view.id for approval in await self._engine.approvals(view.question.session_id))


async def _wait_forever() -> None:
    """Waits until the program ends: the editor has disconnected, and the question stays open for the next client."""
    await asyncio.Event().wait()


_CHOICE, _TEXT = "choice", "text"


def _question_form(question: UserQuestion) -> ElicitationSchema:
    """Returns a form with a text field. If the question has options, the form also has one or several choices, and the
    text is optional. Options are sent as numbers, because their texts may be long."""
    fields: dict[str, Any] = {}
    choices = [
        EnumOption(const=str(number), title=to_single_line(text)) for number, text in enumerate(question.options)
    ]
    if choices and question.multiple:
        items = TitledMultiSelectItems(any_of=choices)
        fields[_CHOICE] = ElicitationMultiSelectPropertySchema(type="array", title="Answers", items=items)
    elif choices:
        fields[_CHOICE] = ElicitationStringPropertySchema(type="string", title="Answer", one_of=choices)
    title = "Another answer" if choices else "Answer"
    fields[_TEXT] = ElicitationStringPropertySchema(type="string", title=title)
    return ElicitationSchema(type="object", properties=fields, required=None if choices else [_TEXT])


def _form_answers(question: UserQuestion, content: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the answers in a form. Clients are not trusted to return only what the form offers."""
    chosen = content.get(_CHOICE)
    numbers = chosen if isinstance(chosen, list) else [chosen]  # pyright: ignore[reportUnknownVariableType]
    options = {str(number): text for number, text in enumerate(question.options)}
    answers = [options[str(number)] for number in numbers if str(number) in options]  # pyright: ignore
    text = content.get(_TEXT)
    return (*answers, text) if isinstance(text, str) and text.strip() else tuple(answers)


def question_markdown(view: PermissionView) -> str:
    """Returns the complete question. Clients render it as Markdown, so the facts, the input and the diff are code
    blocks. The hunks are left out for an edit, whose content already shows them."""
    shows_edits = any(isinstance(block, FileEditToolCallContent) for block in view.call.content)
    sections = question_sections(view.question, hunks=view.question.outcome is not None or not shows_edits)
    texts = [
        section.text if section.kind == "question" else fence_text(section.text, _LANGUAGES.get(section.kind, ""))
        for section in sections
    ]
    if lasting := lasting_lines(view.question):  # the names of options are cut
        texts.append(f"{LASTING_COVERS.capitalize()}:\n" + fence_text("\n".join(lasting)))
    return "\n\n".join(texts)


_LANGUAGES = {"diff": "diff"}


def _approval_options(view: PermissionView) -> list[PermissionOption]:
    """Returns one option for each answer. The protocol cannot change the width of a rule, so an answer that lasts for
    the session or the folder is offered once for each width."""
    options: list[PermissionOption] = []
    for choice in view.choices:
        widths = view.question.widths[:_MAX_WIDTHS] if choice.scope in ("session", "project") else ()
        for position, width in enumerate(widths):
            history = f"; {width.history}" if width.history else ""
            name = f"{_choice_name(choice)}: {width.label} ({width.rule_text}{history})"
            chosen = f"{choice.id}{_WIDTH_MARK}{width.id}"
            options.append(_permission_option(chosen if position else choice.id, name, _option_kind(choice)))
        if not widths:
            rules = f" ({', '.join(view.question.rules)})" if choice.scope != "once" and view.question.rules else ""
            options.append(_permission_option(choice.id, _choice_name(choice) + rules, _option_kind(choice)))
    return options


_WIDTH_MARK = ":"
_MAX_WIDTHS = 3


def _choice_name(choice: ApprovalChoice) -> str:
    return f"{choice.label[:1].upper()}{choice.label[1:]}"


def _option_kind(choice: ApprovalChoice) -> PermissionOptionKind:
    if choice.kind == "deny":
        return "reject_once"
    return "allow_once" if choice.scope == "once" else "allow_always"


def _permission_option(option_id: str, name: str, kind: PermissionOptionKind) -> PermissionOption:
    return PermissionOption(option_id=option_id, name=to_single_line(name), kind=kind)


async def _log_failure(work: Coroutine[Any, Any, None]) -> None:
    """Prevents the failure of one request from cancelling the task group and with it all others."""
    try:
        await work
    except ConnectionError:
        pass  # the client disconnected; the approval is requested again when the session is opened
    except OutriderError as error:
        _log.error("cannot store an approval answer: %s", error)
