"""Consumes engine events for the screen: updates the conversation, and opens dialogs for approvals and questions."""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from outrider.engine.frontend import AskedQuestion
from outrider.errors import ListenerOverflow, OutriderError, ServerAwayError
from outrider.presentation.approvals import (
    PLAN_DETAILS,
    ApprovalView,
    approval_view,
    requested_approval_view,
)
from outrider.tui.dialogs import (
    NO_TO_ALL,
    YES_TO_ALL,
    AnswerHandler,
    AnswerKey,
    ApprovalPanel,
    DialogQueue,
    QuestionPanel,
)
from outrider.tui.screen import ScreenApi
from outrider.types.events import (
    Event,
    LoopCompletedEvent,
    SessionUpdatedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
)

ANSWERED_BY = "terminal"
_NEXT_STEPS = "Ctrl+O chooses another model · /continue tries again"
_PLAN_KEYS = tuple(
    AnswerKey(choice.key, choice.id, f"{choice.label}, because…", PLAN_DETAILS.reason)
    if choice.takes_reason
    else AnswerKey(choice.key, choice.id, choice.label)
    for choice in PLAN_DETAILS.choices
)


async def ask_about_plan(ui: ScreenApi) -> None:
    """Asks the user to accept, edit or reject the plan of the session."""
    controller = ui.controller
    session_id = controller.session_id
    plan = await controller.engine.plan(session_id)
    if plan is None:
        return
    answer, comment = await ui.ask_choice(PLAN_DETAILS.title, PLAN_DETAILS.question, _PLAN_KEYS)
    match answer:
        case "accept":
            await controller.engine.accept_plan(session_id, by=ANSWERED_BY)
        case "change":
            changed = await ui.edit_text("Edit the plan", plan.text)
            if changed is None:
                await ask_about_plan(ui)
            else:
                await controller.engine.accept_plan(session_id, changed, by=ANSWERED_BY)
        case "refuse":
            await controller.engine.refuse_plan(session_id, comment, by=ANSWERED_BY)
        case _:
            ui.redraw()


class ScreenEventListener:
    """Applies engine events to the conversation, and opens or closes dialogs for approvals and questions."""

    def __init__(
        self, ui: ScreenApi, dialogs: DialogQueue, start_work: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._ui = ui
        self._controller = ui.controller
        self._dialogs = dialogs
        self._start_work = start_work

    async def run(self) -> None:
        """Consumes events until cancelled. If the bounded event queue overflows, the session is reloaded from the
        store."""
        while True:
            try:
                await self._consume_events()
            except ListenerOverflow:
                await self._controller.show_session(self._controller.session_id)

    async def _consume_events(self) -> None:
        async with self._controller.engine.events() as events:
            async for event in events:
                try:
                    await self._handle_event(event)
                except OutriderError as error:  # e.g. of the store; later events are still handled
                    self._ui.show_notice(error.message or type(error).__name__, "error")

    async def ask_pending(self) -> None:
        """Opens dialogs for approvals, questions and a plan that were pending before the session was shown."""
        for approval in await self._controller.engine.approvals(self._controller.session_id):
            await self._ask_approval(approval_view(approval))
        for question in await self._controller.client.list_questions(self._controller.session_id):
            await self._ask_question(question)
        if await self._controller.engine.plan(self._controller.session_id) is not None:
            self._start_work(ask_about_plan(self._ui))

    async def _handle_event(self, event: Event) -> None:
        is_shown = self._controller.conversation.concerns(event)
        self._controller.apply_event(event)
        if isinstance(event, SessionUpdatedEvent) and (settled := event.changes.get("settled")):
            await self._dialogs.drop_question(settled)  # also while another session is shown
        if not is_shown:
            return
        match event:
            case ToolApprovalRequestedEvent():
                conversation = self._controller.conversation
                is_shown_session = event.session_id in (conversation.session_id, *conversation.related_sessions)
                agent = "" if is_shown_session else event.agent_name
                await self._ask_approval(requested_approval_view(event, agent=agent))
            case ToolApprovalResultEvent():
                await self._dialogs.drop_approvals(event.approval_id)
            case LoopCompletedEvent() if event.session_id == self._controller.session_id:
                await self._dialogs.drop_approvals()
                await self._dialogs.drop_questions_of(event.session_id)
                await self._controller.refresh_queued_inputs()
                self._ui.announce(f"Outrider has finished: {self._controller.title or self._controller.workspace.name}")
                if event.termination_reason in ("error", "refusal"):
                    self._ui.show_notice(_NEXT_STEPS)
            case SessionUpdatedEvent() if question := event.changes.get("question"):
                await self._ask_question(msgspec.convert(question, AskedQuestion))
            case SessionUpdatedEvent() if event.session_id == self._controller.session_id:
                await self._handle_session_update(event)
            case _:
                pass  # `apply_event` has shown it; no dialog is concerned
        self._ui.redraw()

    async def _handle_session_update(self, event: SessionUpdatedEvent) -> None:
        if event.changes.keys() & {"queued", "taken", "withdrawn"}:
            await self._controller.refresh_queued_inputs()
        if event.changes.get("plan"):
            self._start_work(ask_about_plan(self._ui))

    async def _ask_question(self, question: AskedQuestion) -> None:
        """Opens a dialog for a question of the model; any connected front end may answer it first."""
        bridge, panel = self._controller.client, QuestionPanel(question)

        async def send_answer(answer: str, comment: str) -> None:
            try:
                await bridge.answer_question(question.id, panel.collect_answers(answer, comment))
            except ServerAwayError:
                await self._ask_question(question)
                raise

        if not self._dialogs.asks_about(question.id):
            await self._dialogs.add_panel(panel, self._answer_in_background(send_answer))

    async def _ask_approval(self, approval: ApprovalView) -> None:
        engine, panel = self._controller.engine, ApprovalPanel(approval)

        async def send_answer(answer: str, comment: str) -> None:
            try:
                if answer in (YES_TO_ALL, NO_TO_ALL):
                    for view in panel.joint:
                        await self._dialogs.drop_approvals(view.id)
                        await engine.answer(view.id, allow=answer == YES_TO_ALL, by=ANSWERED_BY)
                    return
                answer_fields = approval.answer(answer, comment, width=panel.width_id)
                await engine.answer(approval.id, by=ANSWERED_BY, **answer_fields)
            except ServerAwayError:
                await self._ask_approval(approval)
                raise

        if not self._dialogs.asks_about(approval.id):
            await self._dialogs.add_panel(panel, self._answer_in_background(send_answer))

    def _answer_in_background(self, send_answer: Callable[[str, str], Coroutine[Any, Any, None]]) -> AnswerHandler:
        """Returns a handler that sends the answer in a background task, so that an error is shown as a notice and does
        not block the dialog queue."""

        async def start_sending(answer: str, comment: str) -> None:
            self._start_work(send_answer(answer, comment))

        return start_sending
