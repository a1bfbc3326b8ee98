"""An open session: its journal, and the one task that works through its inbox, turn by turn."""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from outrider.agents.crew import Crew, Seat
from outrider.agents.ends import TurnEnd, has_pending_calls, is_cut_off
from outrider.agents.seating import take_seat
from outrider.agents.turn import Turn
from outrider.app.toolbox import Toolbox
from outrider.errors import OutriderError
from outrider.sessions.journal import Journal
from outrider.sessions.records import InboxItem, SessionUpdate
from outrider.sessions.store import Store
from outrider.types.agents import Agent
from outrider.types.messages import Message
from outrider.types.parts import ModelRef

TITLE = 60
GOES_ON = "the turn that was cut off"


class LiveSession:
    """Input comes from the inbox only, whoever put it there. What is queued waits for the end of the turn; what steers
    is taken at the next safe moment."""

    def __init__(
        self,
        journal: Journal,
        store: Store,
        new_crew: Callable[[], Crew],
        agent: Callable[[], Agent],
        toolbox: Toolbox | None = None,
    ) -> None:
        self.journal = journal
        self._store = store
        self._new_crew = new_crew
        self._agent = agent
        self.toolbox = toolbox
        self._seat: Seat | None = None
        self._worker: asyncio.Task[None] | None = None
        self._ends: dict[str, asyncio.Future[TurnEnd]] = {}
        self._taken: list[str] = []
        self._wanted = False
        self._goes_on = False
        self.in_turn = False
        self.model: ModelRef | None = None  # in place of the agent's own, until the session is closed

    @property
    def busy(self) -> bool:
        return self._worker is not None and not self._worker.done()

    @property
    def agent(self) -> Agent:
        """The agent that answers, with the model that somebody chose for it here."""
        agent = self._agent()
        return agent if self.model is None else replace(agent, provider=self.model.provider, model=self.model.model)

    async def put(self, item: InboxItem) -> asyncio.Future[TurnEnd]:
        """Keep the input, and see to it that somebody works on it; the future is the end of its turn."""
        end = self._ends.setdefault(item.id, asyncio.get_running_loop().create_future())
        await self._store.put_inbox(item)
        self.wake()
        return end

    def wake(self) -> None:
        """Look into the inbox once more, also if the worker is just about to stop."""
        self._wanted = True
        if not self.busy:
            self._worker = asyncio.create_task(self._work())

    def go_on(self) -> "asyncio.Future[TurnEnd]":
        """Let the last turn go on, if it was cut off; the future is its end."""
        self._goes_on = True
        self._taken.append(GOES_ON)
        self.wake()
        return self._ends.setdefault(GOES_ON, asyncio.get_running_loop().create_future())

    async def abort(self) -> None:
        """End the turn under way; what is queued stays queued until somebody wakes the session."""
        if self._worker is not None and not self._worker.done():
            self._worker.cancel()
            await asyncio.wait([self._worker])

    async def close(self) -> None:
        await self.abort()
        if self.toolbox is not None:
            await self.toolbox.aclose()
        await self.journal.close()

    def reseat(self) -> None:
        """The agent or the mode has changed: tools, system prompt and model are chosen anew."""
        self._seat = None

    async def _work(self) -> None:
        """Whoever waits for an input is told how it ended, also when the work was cut off."""
        end = TurnEnd("aborted")
        watch = asyncio.create_task(self._stop_when_lost(self._worker))
        try:
            while self._wanted:
                self._wanted = False
                await self._work_off()
            end = TurnEnd("completed", self._last_words())
        except OutriderError as error:
            end = TurnEnd("error", error=error)
        finally:
            watch.cancel()
            self._settle(end)

    async def _stop_when_lost(self, worker: "asyncio.Task[None] | None") -> None:
        """Somebody else has taken the session over: nothing of ours may go on in it."""
        await self.journal.lost.wait()
        if worker is not None:
            worker.cancel()

    async def _work_off(self) -> None:
        while await self._begin():
            self._settle(await self._turn())

    async def _begin(self) -> bool:
        """Something to do: calls that a restart left waiting, a turn that is to go on, or the next input."""
        goes_on, self._goes_on = self._goes_on, False
        if self._waits() or (goes_on and is_cut_off(self.journal.session.messages)):
            return True
        items = await self._store.inbox(self.journal.session.id)
        if not items:
            return False
        await self._take(items[0])
        return True

    async def _turn(self) -> TurnEnd:
        crew = self._new_crew()
        agent = self.agent
        if self._seat is None or self._seat.agent != agent:
            self._seat = take_seat(agent, self.journal, crew, take_input=self._steering)
        self._seat.finished = None
        self.in_turn = True
        try:
            return await Turn(self._seat, crew).run()
        finally:
            self.in_turn = False

    async def _steering(self) -> list[Message]:
        items = await self._store.inbox(self.journal.session.id)
        return [await self._take(item) for item in items if item.delivery == "steer"]

    async def _take(self, item: InboxItem) -> Message:
        message = await self.journal.take(item)
        self._taken.append(item.id)
        if not self.journal.session.title:
            await self.journal.update(SessionUpdate(title=title_of(message)))
        return message

    def _last_words(self) -> str:
        messages = self.journal.session.messages
        return messages[-1].get_text_content() if messages else ""

    def _waits(self) -> bool:
        messages = self.journal.session.messages
        return bool(messages) and has_pending_calls(messages[-1])

    def _settle(self, end: TurnEnd) -> None:
        for item_id in self._taken:
            future = self._ends.pop(item_id, None)
            if future is not None and not future.done():
                future.set_result(end)
        self._taken.clear()


def title_of(message: Message) -> str:
    """A title at once, without a model: the first line of what the user wrote."""
    line = next((line.strip() for line in message.get_text_content().splitlines() if line.strip()), "")
    return line if len(line) <= TITLE else f"{line[: TITLE - 1].rstrip()}…"
