"""Hears the engine's events for the screen: what changes the conversation, and what somebody has to answer."""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from outrider.engine.frontend import AskedQuestion
from outrider.engine.session_client import EngineClient
from outrider.errors import ListenerOverflow, OutriderError, ServerAwayError
from outrider.tui.dialogs import ApprovalPanel, ApprovalView, DialogQueue, Key, QuestionPanel, Taken
from outrider.tui.screen import ScreenApi
from outrider.types.events import (
    Event,
    LoopCompletedEvent,
    SessionUpdatedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
)

BY_PLANS = "terminal"
_QUESTION = "Shall it be carried out? The session then goes on in agent mode."
_KEYS = (
    Key("y", "accept", "carry it out"),
    Key("c", "change", "change it first"),
    Key("n", "refuse", "no, because…", "what should be different? The model plans anew"),
    Key("l", "later", "talk about it first"),
)


async def ask_about_plan(stage: ScreenApi) -> None:
    helm = stage.helm
    session_id = helm.session_id
    plan = await helm.engine.plan(session_id)
    if plan is None:
        return
    answer, words = await stage.choose("The plan is ready", _QUESTION, _KEYS)
    match answer:
        case "accept":
            await helm.engine.accept_plan(session_id, by=BY_PLANS)
        case "change":
            changed = await stage.edit("Change the plan", plan.text)
            if changed is None:
                await ask_about_plan(stage)
            else:
                await helm.engine.accept_plan(session_id, changed, by=BY_PLANS)
        case "refuse":
            await helm.engine.refuse_plan(session_id, words, by=BY_PLANS)
        case _:
            stage.redraw()


BY = "terminal"


class Listener:
    def __init__(
        self, stage: ScreenApi, asking: DialogQueue, start: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._stage = stage
        self._helm = stage.helm
        self._asking = asking
        self._start = start

    async def run(self) -> None:
        """Until it is cancelled. A screen that fell hopelessly behind begins again with what is stored."""
        while True:
            try:
                await self._listen()
            except ListenerOverflow:
                await self._helm.show(self._helm.session_id)

    async def _listen(self) -> None:
        async with self._helm.engine.events() as events:
            async for event in events:
                try:
                    await self._hear(event)
                except OutriderError as error:  # of a store, for example; what follows is still to be heard
                    self._stage.tell(f"{type(error).__name__}: {error.message}", "bad")

    async def ask_open(self) -> None:
        """Questions that were asked before anybody looked."""
        for approval in await self._helm.engine.approvals(self._helm.session_id):
            asked = ApprovalView(approval.id, approval.tool, approval.input, approval.description, approval.offers)
            await self._ask(msgspec.structs.replace(asked, can_last=approval.can_last))
        for question in await self._helm.bridge.questions(self._helm.session_id):
            await self._ask_question(question)
        if await self._helm.engine.plan(self._helm.session_id) is not None:
            self._start(ask_about_plan(self._stage))

    async def _hear(self, event: Event) -> None:
        concerned = self._helm.conversation.concerns(event)
        self._helm.hear(event)
        if isinstance(event, SessionUpdatedEvent) and (settled := event.changes.get("settled")):
            await self._asking.drop_question(settled)  # also where another session is looked at meanwhile
        if not concerned:
            return
        match event:
            case ToolApprovalRequestedEvent():
                await self._ask(self._asked(event))
            case ToolApprovalResultEvent():
                await self._asking.drop_approvals(event.approval_id)
            case LoopCompletedEvent() if event.session_id == self._helm.session_id:
                await self._asking.drop_approvals()
                await self._asking.drop_questions_of(event.session_id)
                await self._helm.look_at_waiting()
            case SessionUpdatedEvent() if question := event.changes.get("question"):
                await self._ask_question(msgspec.convert(question, AskedQuestion))
            case SessionUpdatedEvent() if event.session_id == self._helm.session_id:
                await self._hear_session(event)
            case _:
                pass
        self._stage.redraw()

    async def _hear_session(self, event: SessionUpdatedEvent) -> None:
        if event.changes.keys() & {"queued", "taken", "withdrawn"}:
            await self._helm.look_at_waiting()
        if event.changes.get("plan"):
            self._start(ask_about_plan(self._stage))

    async def _ask_question(self, asked: AskedQuestion) -> None:
        """The model asks; whoever sits at one of the screens answers."""
        bridge, panel = self._helm.bridge, QuestionPanel(asked)

        async def give(answer: str, words: str) -> None:
            try:
                await bridge.answer_question(asked.id, panel.answers(answer, words))
            except ServerAwayError:
                await self._ask_question(asked)
                raise

        if not self._asking.asks_about(asked.id):
            await self._asking.put(panel, self._taking(give))

    def _asked(self, event: ToolApprovalRequestedEvent) -> ApprovalView:
        return ApprovalView(
            event.approval_id,
            event.tool_name,
            event.tool_input,
            event.description,
            event.offers,
            event.can_last,
            "" if event.session_id == self._helm.session_id else event.agent_name,
        )

    async def _ask(self, asked: ApprovalView) -> None:
        engine = self._helm.engine

        async def give(answer: str, words: str) -> None:
            try:
                await _answer(engine, asked.id, answer, words)
            except ServerAwayError:
                await self._ask(asked)
                raise

        if not self._asking.asks_about(asked.id):
            await self._asking.put(ApprovalPanel(asked), self._taking(give))

    def _taking(self, give: Callable[[str, str], Coroutine[Any, Any, None]]) -> Taken:
        """An answer is given beside the screen: what is wrong with it is told, and takes nothing else along."""

        async def taken(answer: str, words: str) -> None:
            self._start(give(answer, words))

        return taken


async def _answer(engine: EngineClient, approval_id: str, answer: str, words: str) -> None:
    match answer:
        case "once" | "session" | "project" | "always":
            await engine.answer(approval_id, allow=True, scope=answer, by=BY)
        case _:
            await engine.answer(approval_id, allow=False, by=BY, words=words)
