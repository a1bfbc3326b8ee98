"""An open session: its journal, and the one task that works through its inbox, turn by turn."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, cast

from msgspec import to_builtins

from outrider.agents.compaction import Compactor
from outrider.agents.delegation import open_agent_context
from outrider.agents.run_context import AgentContext
from outrider.agents.turn import Turn
from outrider.agents.turn_state import TurnEnd, has_pending_calls, is_cut_off
from outrider.engine.abort import AbortListener
from outrider.engine.inbox import Inbox
from outrider.engine.plans import Answer, Plan, answer_id, answered, open_plan, require_same
from outrider.engine.runtime import EngineRuntime
from outrider.errors import LeaseLostError, OutriderError, StorageFullError
from outrider.event_bus import EventBus
from outrider.sessions.journal import Journal
from outrider.sessions.records import InboxItem
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.types.agents import Agent
from outrider.types.events import ErrorEvent, SessionUpdatedEvent
from outrider.types.parts import CompactionPart, ModelRef


class CompactionRequest:
    """True as long as it waits. Several may ask: they hear the same."""

    def __init__(self) -> None:
        self._end: asyncio.Future[CompactionPart | None] | None = None

    def __bool__(self) -> bool:
        return self._end is not None

    def ask(self) -> "asyncio.Future[CompactionPart | None]":
        self._end = self._end or asyncio.get_running_loop().create_future()
        return self._end

    def end(self, outcome: CompactionPart | OutriderError | None) -> None:
        end, self._end = self._end, None
        if end is None:
            return
        if isinstance(outcome, OutriderError):
            end.set_exception(outcome)
            end.exception()  # perhaps nobody waits any more
        else:
            end.set_result(outcome)


GOES_ON = "the turn that was cut off"

_log = logging.getLogger("outrider.engine")


class LiveSession:
    """Input comes from the inbox only, whoever put it there. What is queued waits for the end of the turn; what steers
    is taken at the next safe moment."""

    def __init__(self, journal: Journal, store: Store, staff: EngineRuntime, bus: EventBus, ear: AbortListener) -> None:
        self.journal = journal
        self.toolbox = staff.toolbox(journal.session)
        self._staff = staff
        self._bus = bus
        self._ear = ear
        self._seat: AgentContext | None = None
        self._worker: asyncio.Task[None] | None = None
        self.inbox = Inbox(journal, store, self._tell, self._notes)
        self._compaction = CompactionRequest()
        self._wanted = False
        self._goes_on = False
        self.in_turn = False
        self.model: ModelRef | None = None
        self.whole = True  # all messages are at hand
        self._closed = False

    @property
    def busy(self) -> bool:
        return self._worker is not None and not self._worker.done()

    @property
    def agent(self) -> Agent:
        """The agent that answers, with the model that somebody chose for it here."""
        return self._staff.agent_of(self.session, self.model)

    @property
    def session(self) -> Session:
        return self.journal.session

    async def use_model(self, model: ModelRef | None) -> None:
        """In place of the agent's own, until the session is closed."""
        self.model = model

    @property
    def prompts(self) -> Mapping[str, str]:
        """The user's own, by name, in the place of ours."""
        belongings = self.toolbox.belongings if self.toolbox else None
        return belongings.prompts if belongings else {}

    async def put(self, item: InboxItem) -> asyncio.Future[TurnEnd]:
        """Keep the input, and see to it that somebody works on it; the future is the end of its turn."""
        _, end = await self.inbox.put(item)
        self.wake()
        return end

    def plan(self) -> Plan | None:
        """The plan that waits for an answer, if the last turn ended in one."""
        return None if self.in_turn else open_plan(self.journal.session)

    async def answer_plan(self, answer: Answer, words: str = "", *, sender: str = "") -> asyncio.Future[TurnEnd]:
        """Answer the plan that waits; the first answer counts, and the future is the end of what follows from it."""
        plan = self.plan()
        if plan is None:
            raise OutriderError("there is no plan that waits for an answer")
        message = answered(plan, answer, words, self.prompts)
        item = InboxItem(session_id=self.session.id, message=message, id=answer_id(plan), sender=sender)
        kept, end = await self.inbox.put(item)
        require_same(item, kept)
        self.wake()
        return end

    async def compact(self) -> CompactionPart | None:
        """Shorten the context before the next turn begins; None if there is nothing to shorten."""
        end = self._compaction.ask()
        self.wake()
        await asyncio.wait([end])
        return end.result()

    def wake(self) -> None:
        """Look into the inbox once more, also if the worker is just about to stop. What comes while the session is
        closed is left to whoever opens it next."""
        self._wanted = True
        if not self.busy and not self._closed:
            self._worker = asyncio.create_task(self._work())

    def go_on(self) -> "asyncio.Future[TurnEnd]":
        """Let the last turn go on, if it was cut off; the future is its end."""
        self._goes_on = True
        self.inbox.work_on(GOES_ON)
        end = self.inbox.promise(GOES_ON)
        self.wake()
        return end

    async def abort(self) -> None:
        """End the turn under way; what is queued stays queued until somebody wakes the session."""
        worker = self._worker
        if worker is None or worker.done():
            return
        worker.cancel()
        if getcoroutinestate(cast("Coroutine[Any, Any, None]", worker.get_coro())) == CORO_CREATED:
            self._tell_end(TurnEnd("aborted"))  # it does not even begin
        await asyncio.wait([worker])

    async def close(self) -> None:
        self._closed = True
        if self._seat is not None:
            self._seat.leaving = True
        await self.abort()
        self.inbox.leave(TurnEnd("aborted"))
        if self.toolbox is not None:
            await self.toolbox.aclose()
        await self.journal.close()

    async def _work(self) -> None:
        """Whoever waits for an input is told how it ended, also when the work was cut off."""
        end = TurnEnd("aborted")
        worker = self._worker = asyncio.current_task()  # on loops that begin tasks at once nobody has noted it yet
        self.journal.holding.when_lost = worker.cancel if worker else None  # nothing of ours may go on
        self._ear.open(self)
        try:
            while self._wanted:
                self._wanted = False
                await self._work_off()
            end = TurnEnd("completed", self.inbox.last_words())
        except Exception as error:  # noqa: BLE001  a defect must not look like an abort, nor end the engine
            end = TurnEnd("error", error=_as_ours(error, self.session.id))
        finally:
            self._ear.shut(self)
            self.journal.holding.when_lost = None
            self._tell_end(end)

    def _tell_end(self, end: TurnEnd) -> None:
        """To whoever waits for what was under way. Where nothing goes on by itself, also to whoever stands in line."""
        self.inbox.settle(end)
        if end.error is not None and not isinstance(end.error, StorageFullError | LeaseLostError):  # told before
            error_type, message = type(end.error).__name__, end.error.message
            self._bus.publish(ErrorEvent(session_id=self.session.id, error_type=error_type, message=message))
        if end.reason == "error" or self.journal.lost.is_set():
            self.inbox.leave(end)
        self._compaction.end(OutriderError("the compaction was aborted"))

    async def _work_off(self) -> None:
        await self._compact()
        while await self._begin():
            self.inbox.settle(end := await self._turn())
            await self._compact()
            if end.reason == "error" and self._waits():
                break  # it would fail again at once

    async def _begin(self) -> bool:
        """Something to do: calls that a restart left waiting, a turn that is to go on, or the next input."""
        goes_on, self._goes_on = self._goes_on, False
        if self._waits() or (goes_on and is_cut_off(self.journal.session.messages)):
            await self.inbox.without_aborts()
            return True
        return await self.inbox.take_next()

    async def _turn(self) -> TurnEnd:
        self.in_turn = True
        try:
            if self.toolbox is not None and await self.toolbox.renew():
                self._seat = None
            seat = self._seated()
            return await Turn(seat, seat.crew).run()
        finally:
            self.in_turn = False
            if plan := self.plan():
                self._tell(plan=to_builtins(plan))

    def visitor(self) -> AgentContext:
        """A seat beside the one at work, for whoever wants to do or know something without a turn."""
        return open_agent_context(self.agent, self.journal, self._staff.crew(self.session, self.toolbox))

    def _seated(self) -> AgentContext:
        """The seat of the session's agent, with a new crew. Its prompt is kept as long as agent and mode stay."""
        crew, agent, mode = self._staff.crew(self.session, self.toolbox), self.agent, self.journal.session.mode
        if self._seat is None or self._seat.agent != agent or self._seat.mode != mode:
            self._seat = open_agent_context(agent, self.journal, crew, take_input=self.inbox.take_steering)
        self._seat.begin(crew)
        return self._seat

    async def _compact(self) -> None:
        """What was asked for, but not between a call that waits for an answer and its end."""
        if not self._compaction or self._waits():
            return
        seat = self._seated()
        compactor = Compactor(seat, seat.crew)
        try:
            self._compaction.end(await compactor.compact(auto=False) if compactor.possible(auto=False) else None)
        except OutriderError as error:
            self._compaction.end(error)

    def _waits(self) -> bool:
        messages = self.journal.session.messages
        return bool(messages) and has_pending_calls(messages[-1])

    def _notes(self) -> str:
        return self.toolbox.notes if self.toolbox else ""

    def _tell(self, **changes: Any) -> None:
        self._bus.publish(SessionUpdatedEvent(session_id=self.journal.session.id, changes=changes))


def _as_ours(error: Exception, session_id: str) -> OutriderError:
    if isinstance(error, OutriderError):
        return error
    _log.error("the work on session %s broke off", session_id, exc_info=error)
    return OutriderError(f"{type(error).__name__}: {error}")
