"""What models ask people: questions that wait until somebody answers, from whichever front end."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from outrider.errors import NotFoundError, OutriderError
from outrider.event_bus import EventBus
from outrider.models.peers import peers_among, tell_peer
from outrider.tools.builtin.question import Question
from outrider.tools.context import ToolContext
from outrider.types.agents import Provider
from outrider.types.events import LoopCompletedEvent, SessionUpdatedEvent
from outrider.types.ids import new_id


class AskedQuestion(msgspec.Struct, frozen=True):
    """With no options the answer is free text; with some, it may be free text too."""

    id: str
    session_id: str
    text: str
    options: tuple[str, ...] = ()
    multiple: bool = False
    agent: str = ""


class QuestionsAbroad:
    """What agents ask that work for ours on other servers: heard here, answered there, and known as long as the turn
    lasts that waits for it."""

    def __init__(self, bus: EventBus, peers: Mapping[str, Provider]) -> None:
        self._bus = bus
        self._peers = peers
        self._open: dict[str, tuple[AskedQuestion, str]] = {}
        if peers:
            bus.subscribe(SessionUpdatedEvent, self._hear)
            bus.subscribe(LoopCompletedEvent, self._end)

    def __contains__(self, question_id: object) -> bool:
        return question_id in self._open

    def waiting(self) -> list[AskedQuestion]:
        return [asked for asked, _ in self._open.values()]

    async def answer(self, question_id: str, answers: Sequence[str]) -> None:
        _, server = self._open[question_id]
        try:
            await tell_peer(self._peers[server], f"/api/questions/{question_id}", {"answers": list(answers)})
        except NotFoundError:
            raise OutriderError("the question needs no answer any more", id=question_id) from None

    def _hear(self, event: SessionUpdatedEvent) -> None:
        match event.changes:
            case {"question": {"server": server} as asked} if server in self._peers:
                question = msgspec.convert({**asked, "session_id": event.session_id}, AskedQuestion)
                self._open[question.id] = question, server
            case {"settled": question_id}:
                self._open.pop(question_id, None)
            case _:
                pass

    def _end(self, event: LoopCompletedEvent) -> None:
        for asked in self.waiting():
            if asked.session_id == event.session_id:
                self._bus.publish(SessionUpdatedEvent(session_id=asked.session_id, changes={"settled": asked.id}))


class OpenQuestions:
    """The first answer counts. A SessionUpdatedEvent with `changes["question"]` tells of one that is asked, and with
    `changes["settled"]`, its id, of one that needs no answer any more. It is kept only in the call that asks, which
    does so again, under another id, when its session is opened after a restart. `bus` is for the engine, too."""

    def __init__(self, bus: EventBus | None = None, providers: Iterable[Provider] = ()) -> None:
        self.bus = bus or EventBus()
        self._abroad = QuestionsAbroad(self.bus, peers_among(providers))
        self._open: dict[str, tuple[AskedQuestion, asyncio.Future[tuple[str, ...]]]] = {}

    async def ask(self, question: Question, context: ToolContext) -> tuple[str, ...] | None:
        """Put it to whoever is there, and wait for as long as the call may."""
        asked = AskedQuestion(
            new_id(), context.session_id, question.text, question.options, question.multiple, context.agent
        )
        answer: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()
        self._open[asked.id] = asked, answer
        self._tell(asked, question=msgspec.to_builtins(asked))
        try:
            return await answer
        finally:
            del self._open[asked.id]
            self._tell(asked, settled=asked.id)

    def waiting(self, session_id: str | None = None) -> list[AskedQuestion]:
        """Oldest first; of one session, or of all."""
        found = [*(asked for asked, _ in self._open.values()), *self._abroad.waiting()]
        return [asked for asked in found if session_id in (None, asked.session_id)]

    async def give(self, question_id: str, answers: Sequence[str]) -> None:
        """As `answer`, also to what is asked on another server."""
        if question_id in self._abroad:
            await self._abroad.answer(question_id, answers)
        else:
            self.answer(question_id, answers)

    def answer(self, question_id: str, answers: Sequence[str]) -> AskedQuestion:
        """No answers are an answer too: the model reads that the user gave none."""
        asked, answer = self._open.get(question_id, (None, None))
        if asked is None or answer is None or answer.done():
            raise OutriderError("the question needs no answer any more", id=question_id)
        answer.set_result(tuple(answers))
        return asked

    def _tell(self, asked: AskedQuestion, **changes: Any) -> None:
        self.bus.publish(SessionUpdatedEvent(session_id=asked.session_id, agent_name=asked.agent, changes=changes))
