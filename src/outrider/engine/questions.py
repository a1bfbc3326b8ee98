"""Questions of models to the user. They wait until a front end answers."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from outrider.errors import NotFoundError, OutriderError
from outrider.event_bus import EventBus
from outrider.models.clients import find_peers, send_to_peer
from outrider.tools.tool import ToolContext, UserQuestion
from outrider.types.agents import Provider
from outrider.types.events import LoopCompletedEvent, SessionUpdatedEvent
from outrider.types.ids import new_id


class AskedQuestion(msgspec.Struct, frozen=True):
    """An open question. Without options the answer is free text; with options it may be free text too."""

    id: str
    session_id: str
    text: str
    options: tuple[str, ...] = ()
    multiple: bool = False
    agent: str = ""


class PeerQuestions:
    """Questions of agents on other servers: received as events, answered by HTTP, cached while the asking turn runs."""

    def __init__(self, bus: EventBus, peers: Mapping[str, Provider]) -> None:
        self._bus = bus
        self._peers = peers
        self._open: dict[str, tuple[AskedQuestion, str]] = {}
        if peers:
            bus.subscribe(SessionUpdatedEvent, self._on_session_update)
            bus.subscribe(LoopCompletedEvent, self._on_turn_end)

    def __contains__(self, question_id: object) -> bool:
        return question_id in self._open

    def open_questions(self) -> list[AskedQuestion]:
        return [pending for pending, _ in self._open.values()]

    async def answer(self, question_id: str, answers: Sequence[str]) -> None:
        _, server = self._open[question_id]
        try:
            await send_to_peer(self._peers[server], f"/api/questions/{question_id}", {"answers": list(answers)})
        except NotFoundError:
            raise OutriderError("the question needs no answer any more", id=question_id) from None

    def _on_session_update(self, event: SessionUpdatedEvent) -> None:
        match event.changes:
            case {"question": {"server": server} as pending} if server in self._peers:
                question = msgspec.convert({**pending, "session_id": event.session_id}, AskedQuestion)
                self._open[question.id] = question, server
            case {"settled": question_id}:
                self._open.pop(question_id, None)
            case _:
                pass

    def _on_turn_end(self, event: LoopCompletedEvent) -> None:
        for pending in self.open_questions():
            if pending.session_id == event.session_id:
                self._bus.publish(SessionUpdatedEvent(session_id=pending.session_id, changes={"settled": pending.id}))


class QuestionQueue:
    """Open questions of an engine; the first answer wins. A SessionUpdatedEvent with `changes["question"]` announces a
    question; one with its id in `changes["settled"]` announces that it no longer needs an answer. Questions are not
    stored: after a restart, the pending call asks again under a new id. `bus` is shared with the engine."""

    def __init__(self, bus: EventBus | None = None, providers: Iterable[Provider] = ()) -> None:
        self.bus = bus or EventBus()
        self._remote = PeerQuestions(self.bus, find_peers(providers))
        self._open: dict[str, tuple[AskedQuestion, asyncio.Future[tuple[str, ...]]]] = {}

    async def ask(self, question: UserQuestion, context: ToolContext) -> tuple[str, ...] | None:
        """Publishes the question and waits for an answer, until the call is cancelled."""
        pending = AskedQuestion(
            new_id(), context.session_id, question.text, question.options, question.multiple, context.agent
        )
        answer: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()
        self._open[pending.id] = pending, answer
        self._publish_change(pending, question=msgspec.to_builtins(pending))
        try:
            return await answer
        finally:
            del self._open[pending.id]
            self._publish_change(pending, settled=pending.id)

    def open_questions(self, session_id: str | None = None) -> list[AskedQuestion]:
        """Returns open questions, oldest first, of one session or of all."""
        questions = [*(pending for pending, _ in self._open.values()), *self._remote.open_questions()]
        return [pending for pending in questions if session_id in (None, pending.session_id)]

    async def answer_anywhere(self, question_id: str, answers: Sequence[str]) -> None:
        """Answers a question of this process or of another server."""
        if question_id in self._remote:
            await self._remote.answer(question_id, answers)
        else:
            self.answer(question_id, answers)

    def answer(self, question_id: str, answers: Sequence[str]) -> AskedQuestion:
        """Answers a question of this process. An empty list is an answer too: the model reads that the user gave no
        answer."""
        pending, answer = self._open.get(question_id, (None, None))
        if pending is None or answer is None or answer.done():
            raise OutriderError("the question needs no answer any more", id=question_id)
        answer.set_result(tuple(answers))
        return pending

    def _publish_change(self, pending: AskedQuestion, **changes: Any) -> None:
        self.bus.publish(SessionUpdatedEvent(session_id=pending.session_id, agent_name=pending.agent, changes=changes))
