"""The input of an open session: kept when it comes, taken once, and whoever put it there hears how its turn ended."""

import asyncio
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from outrider.agents.turn_state import TurnEnd, is_note
from outrider.engine.abort import asks_for_the_end
from outrider.sessions.journal import Journal
from outrider.sessions.records import InboxItem, SessionUpdate
from outrider.sessions.store import Store
from outrider.types.messages import Message

TITLE = 60
Tell = Callable[..., None]


class Inbox:
    """`tell` says what became of an input: queued, taken or withdrawn. The first input of a session keeps the `notes`
    on where it works, which then stay the same to its end."""

    def __init__(self, journal: Journal, store: Store, tell: Tell, notes: Callable[[], str] = lambda: "") -> None:
        self._journal = journal
        self._store = store
        self._tell = tell
        self._notes = notes
        self._ends: dict[str, list[asyncio.Future[TurnEnd]]] = {}
        self._taken: list[str] = []
        self._as_given: dict[str, Message] = {}
        self._taking = asyncio.Lock()

    async def put(self, item: InboxItem) -> tuple[InboxItem, asyncio.Future[TurnEnd]]:
        """Keep an input; one whose id is known comes back as it was first put. With it comes the end of its turn: of
        one that is long over, the last words."""
        end = self.promise(item.id)
        try:
            kept = await self._store.put_inbox(item)
        except BaseException:
            self._forget(item.id, end)
            raise
        if kept.message.id == item.message.id:
            self._tell(queued=item.id)
            if kept.message.get_text_content() != item.message.get_text_content():
                self._as_given[item.id] = item.message  # kept without its secrets; the model is told what was said
        if kept.taken is not None and item.id not in self._taken:
            self._settle(item.id, TurnEnd("completed", self.last_words()))
        return kept, end

    def promise(self, name: str) -> asyncio.Future[TurnEnd]:
        """The end of the turn that works on this. Whoever stops waiting for it takes it from nobody else."""
        end: asyncio.Future[TurnEnd] = asyncio.get_running_loop().create_future()
        self._ends.setdefault(name, []).append(end)
        return end

    def work_on(self, name: str) -> None:
        """The turn that comes next is the one of which this was promised the end."""
        self._taken.append(name)

    async def take_next(self) -> bool:
        """Bring the next input into the transcript, with the notes before it, which ask for no turn."""
        async with self._taking:
            for item in await self.without_aborts():
                message = await self._take(item)
                if not is_note(message):
                    return True
                self.settle(TurnEnd("completed"))
        return False

    async def without_aborts(self) -> list[InboxItem]:
        """What waits as a turn begins; aborts came too late for the one that they meant, wherever they stand."""
        waiting = await self._waiting()
        for item in waiting:
            if asks_for_the_end(item):
                await self._journal.discard(item.id)
        return [item for item in waiting if not asks_for_the_end(item)]

    async def take_steering(self) -> list[Message]:
        async with self._taking:
            return [await self._take(item) for item in await self._waiting() if item.delivery == "steer"]

    async def withdraw(self, item_id: str) -> bool:
        """Take back an input that waits; False if it was taken before, or never there."""
        async with self._taking:
            if item_id not in {item.id for item in await self._waiting()}:
                return False
            await self._journal.discard(item_id)
        self._tell(withdrawn=item_id)
        self._settle(item_id, TurnEnd("aborted"))
        return True

    def settle(self, end: TurnEnd) -> None:
        """Whoever waits for what was taken hears how it ended."""
        for item_id in self._taken:
            self._settle(item_id, end)
        self._taken.clear()

    def leave(self, end: TurnEnd) -> None:
        """Nobody works here any more: what waits is left to whoever opens the session next."""
        for name in list(self._ends):
            self._settle(name, end)

    def last_words(self) -> str:
        messages = self._journal.session.messages
        return messages[-1].get_text_content() if messages else ""

    async def _waiting(self) -> Sequence[InboxItem]:
        """Without those that are on their way already, as after an abort or from a full disk: none is taken twice."""
        if self._journal.takes_input:
            await self._journal.retry()
        return await self._store.inbox(self._journal.session.id)

    async def _take(self, item: InboxItem) -> Message:
        """An input may bring a mode along, which holds before the input counts: a crash between them loses neither."""
        item = replace(item, message=self._as_given.pop(item.id, item.message))
        session, mode = self._journal.session, item.message.mode
        if mode is not None and mode != session.mode:
            await self._journal.update(SessionUpdate(mode=mode))
        if not session.messages:
            item.message.system = self._notes() or None
        self._taken.append(item.id)  # also if that is cut off or fails: whoever waits for it is told
        message = await self._journal.take(item)
        self._tell(taken=item.id)
        if not session.title:
            await self._journal.update(SessionUpdate(title=title_of(message)))
        return message

    def _forget(self, name: str, end: asyncio.Future[TurnEnd]) -> None:
        """A promise that nobody got."""
        others = [other for other in self._ends.pop(name, ()) if other is not end]
        if others:
            self._ends[name] = others

    def _settle(self, name: str, end: TurnEnd) -> None:
        for waiting in self._ends.pop(name, ()):
            if not waiting.done():
                waiting.set_result(end)


def title_of(message: Message) -> str:
    """A title at once, without a model: the first line of what the user wrote."""
    line = next((line.strip() for line in message.get_text_content().splitlines() if line.strip()), "")
    return line if len(line) <= TITLE else f"{line[: TITLE - 1].rstrip()}…"
