"""A turn of an agent here for an agent of another process: begun with what that one may use, followed to its end."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec.structs import replace

from outrider.agents.turn_state import TurnEnd
from outrider.engine.child_sessions import DelegatedLimits
from outrider.engine.engine import Engine
from outrider.engine.frontend import was_cut_off
from outrider.event_bus import EventStream
from outrider.permissions.modes import stricter
from outrider.types.agents import Mode
from outrider.types.deltas import (
    AnswerStart,
    Delta,
    Finish,
    FinishReason,
    Happened,
    PartEnd,
    PartStart,
    ReasoningDelta,
    TextDelta,
)
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    Event,
    LLMRequestEvent,
    LoopCompletedEvent,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    SessionUpdatedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
    ToolOutputEvent,
)
from outrider.types.ids import new_id
from outrider.types.parts import ReasoningPart, TextPart, ToolPart

_ENDS: dict[str, FinishReason] = {"completed": "stop", "refusal": "refusal", "length": "length"}


class _Told:
    """A part of the answer, and what was said of it."""

    def __init__(self, index: int, kind: str) -> None:
        self.index = index
        self.kind = kind
        self.text = ""

    def more(self, text: str) -> Delta:
        self.text += text
        return TextDelta(self.index, text) if self.kind == "text" else ReasoningDelta(self.index, text)


class Telling:
    """An answer is what the last step said; what was said on the way to it turns out to be reasoning."""

    def __init__(self, session_id: str, agent: str) -> None:
        self._session_id = session_id
        self._agent = agent
        self._tree = {session_id}
        self._asked: set[str] = set()  # messages of the one who asks
        self._parts: dict[str, _Told] = {}  # of the step under way
        self._count = 0

    def hears(self, event: Event) -> bool:
        """Whether it happened in the session or below it."""
        if event.session_id not in self._tree:
            return False
        if isinstance(event, AgentCalledEvent):
            self._tree.add(event.child_session_id)
        return True

    def begin(self) -> Iterator[Delta]:
        """Which session this is stands in the answer from its first moment on."""
        yield AnswerStart(self._session_id, self._agent)
        told = self._part("", "reasoning")
        yield PartStart(told.index, "reasoning")
        yield self._ended(self._parts.pop(""))

    def tell(self, event: Event) -> Iterator[Delta]:
        own = event.session_id == self._session_id
        match event:
            case MessageAddedEvent(role="user") if own:
                self._asked.add(event.message_id)
            case PartDeltaEvent() if own:
                yield from self._more(event.part_id, event.field, event.delta)
            case PartUpdatedEvent(part=TextPart() | ReasoningPart() as part) if own:
                yield from self._whole(part)
            case LLMRequestEvent() if own:
                yield from self._on_the_way()
            case ToolApprovalRequestedEvent() | ToolApprovalResultEvent():
                yield Happened(_without_place(event))
            case SessionUpdatedEvent(changes={"question": _} | {"settled": _}):
                yield Happened(_without_place(event))
            case PartDeltaEvent() | LoopCompletedEvent() if not own:
                yield Happened(event)
            case (
                PartUpdatedEvent(part=ToolPart())
                | ToolExecutionStartedEvent()
                | ToolExecutionCompletedEvent()
                | ToolOutputEvent()
                | AgentCalledEvent()
                | AgentReturnedEvent()
            ):
                yield Happened(_without_place(event) if own else event)
            case _:
                pass

    def end(self, end: TurnEnd) -> Iterator[Delta]:
        """The parts that are still open, the answer's own words if they were not among them, and the end if there is a
        good one."""
        if end.reason not in _ENDS:
            yield from map(self._ended, self._parts.values())
            return
        if end.output != "".join(told.text for told in self._parts.values() if told.kind == "text"):
            yield from self._on_the_way()
            yield from self._more("answer", "text", end.output)
        yield from map(self._ended, self._parts.values())
        yield Finish(_ENDS[end.reason], end.reason)

    def _more(self, part_id: str, kind: str, text: str) -> Iterator[Delta]:
        if part_id not in self._parts:
            told = self._part(part_id, kind)
            yield PartStart(told.index, "text" if kind == "text" else "reasoning")
        yield self._parts[part_id].more(text)

    def _whole(self, part: TextPart | ReasoningPart) -> Iterator[Delta]:
        """What was lost on the way, if anything was: pieces may be dropped, whole values never are."""
        if part.message_id in self._asked:
            return
        told = self._parts.get(part.id)
        said = told.text if told else ""
        if part.text.startswith(said):
            if part.text != said:
                yield from self._more(part.id, part.part_type, part.text[len(said) :])
            return
        yield from self._anew(self._parts[part.id], part.part_type, part.text)

    def _on_the_way(self) -> Iterator[Delta]:
        parts, self._parts = self._parts, {}
        for told in parts.values():
            if told.kind == "text":
                yield from self._anew(told, "reasoning", told.text)
            yield self._ended(told)

    def _anew(self, told: _Told, kind: str, text: str) -> Iterable[Delta]:
        told.kind, told.text = kind, ""
        return PartStart(told.index, "text" if kind == "text" else "reasoning"), told.more(text)

    def _part(self, part_id: str, kind: str) -> _Told:
        told = self._parts[part_id] = _Told(self._count, kind)
        self._count += 1
        return told

    def _ended(self, told: _Told) -> PartEnd:
        return PartEnd(told.index, {"session_id": self._session_id})


def _without_place(event: Event) -> Event:
    """It happens in the session over there that waits for this one."""
    return replace(event, session_id="", agent_name="", parent_call_id="")


SENDER = "peer"
REMEMBERED = 1000  # requests; whoever asks again does so within a minute
SILENCE = 15.0  # seconds, after which the other side hears that the work goes on


class Ended(msgspec.Struct, frozen=True):
    """How a turn ended that gave no answer."""

    reason: str
    message: str = ""


class PeerTurn(msgspec.Struct, frozen=True, eq=False):
    """Somebody who listens to a turn here; `again`, if the same was asked before."""

    session_id: str
    request_id: str
    again: bool


class Peers:
    """What is asked under an id is begun once: whoever asks again, since no answer came, hears the turn that is under
    way, lets it go on if it was cut off, or is told how it ended."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # By request: the last of them, in the order in which they came.
        self._sessions: dict[str, asyncio.Task[str]] = {}
        self._listening: dict[str, PeerTurn] = {}  # by session: the last one who came
        self._leaving: dict[str, asyncio.Task[None]] = {}

    async def begin(self, request_id: str, session_id: str, agent: str, mode: Mode) -> PeerTurn:
        """Opens the session that goes on, or a new one of the agent that is named."""
        request_id = request_id or new_id()
        again = request_id in self._sessions
        if not again:
            self._remember(request_id, asyncio.create_task(_open(self._engine, session_id, agent, mode)))
        session_id = await asyncio.shield(self._sessions[request_id])
        turn = self._listening[session_id] = PeerTurn(session_id, request_id, again)
        if (leaving := self._leaving.get(session_id)) is not None:
            await asyncio.wait([leaving])
        await self._engine.open(session_id)
        return turn

    async def answer(
        self, turn: PeerTurn, content: list[Any], terms: DelegatedLimits
    ) -> AsyncGenerator[Delta | Ended, None]:
        """The answer as it comes. Whoever stops listening ends the turn, unless somebody else listens by then."""
        try:
            async with aclosing(self._answered(turn, content, terms)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            if self._listening.get(turn.session_id) is turn:
                del self._listening[turn.session_id]
                # A server that drops a client cancels again and again; the turn must end all the same.
                leaving = self._leaving[turn.session_id] = asyncio.create_task(self._leave(turn.session_id))
                await asyncio.shield(leaving)

    async def _answered(
        self, turn: PeerTurn, content: list[Any], terms: DelegatedLimits
    ) -> AsyncGenerator[Delta | Ended, None]:
        engine, session_id = self._engine, turn.session_id
        if turn.again:  # what the turn has used so far counts under the terms that it was begun with
            terms = engine.staff.terms.get(session_id, terms)
        engine.staff.terms[session_id] = terms
        telling = Telling(session_id, engine.live[session_id].agent.name)
        async with engine.bus.stream(telling.hears) as events:
            end = await self._end_of(turn, content)
            end.add_done_callback(lambda _: events.close())
            for delta in telling.begin():
                yield delta
            async for delta in _followed(events, telling, terms):
                yield delta
        yield terms.used()
        for delta in telling.end(end.result()):
            yield delta
        if failed := _failure(end.result()):
            yield failed

    async def _end_of(self, turn: PeerTurn, content: list[Any]) -> asyncio.Future[TurnEnd]:
        engine, live = self._engine, self._engine.live[turn.session_id]
        if turn.again and not live.in_turn and was_cut_off(live.session):
            return asyncio.ensure_future(engine.go_on(turn.session_id))
        return await engine.put(turn.session_id, content, input_id=turn.request_id, sender=SENDER)

    async def _leave(self, session_id: str) -> None:
        try:
            if (live := self._engine.live.get(session_id)) is not None:
                await live.abort()
            await self._engine.close(session_id)
        finally:
            del self._leaving[session_id]

    def _remember(self, request_id: str, opening: "asyncio.Task[str]") -> None:
        """One that could not be opened may be asked for anew."""

        def forget(done: "asyncio.Task[str]") -> None:
            if done.cancelled() or done.exception() is not None:
                self._sessions.pop(request_id, None)

        self._sessions[request_id] = opening
        opening.add_done_callback(forget)
        while len(self._sessions) > REMEMBERED:
            del self._sessions[next(iter(self._sessions))]


async def _open(engine: Engine, session_id: str, agent: str, mode: Mode) -> str:
    """In a mode that allows no more than theirs."""
    if not session_id:
        chosen = engine.staff.agent(agent)
        return await engine.create(agent=chosen.name, mode=stricter(mode, chosen.mode))
    session = await engine.open(session_id)
    allowed = stricter(mode, engine.staff.agent(session.agent).mode)
    if session.mode != allowed:
        await engine.set_mode(session_id, allowed)
    return session_id


async def _followed(events: EventStream, telling: Telling, terms: DelegatedLimits) -> AsyncGenerator[Delta, None]:
    while True:
        heard: Event | None = None
        try:
            async with asyncio.timeout(SILENCE):
                heard = await anext(events)
        except TimeoutError:
            yield terms.used()
        except StopAsyncIteration:
            return
        if heard is not None:
            for delta in telling.tell(heard):
                yield delta


def _failure(end: TurnEnd) -> Ended | None:
    if end.reason in ("completed", "length", "refusal"):
        return None
    return Ended(end.reason, end.error.message if end.error else end.output)
