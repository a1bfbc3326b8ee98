"""Ending a turn that another process works on: a note in the inbox, for which the owner looks while it works."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from itertools import islice
from typing import Protocol

from outrider.agents.turn_state import NOTE, is_cut_off
from outrider.errors import OutriderError, SessionInUseError, StoreError
from outrider.sessions.journal import Journal
from outrider.sessions.records import InboxChange, InboxItem
from outrider.sessions.store import Store
from outrider.types.messages import Message
from outrider.types.parts import TextPart, ToolPart
from outrider.types.tool_state import ToolError

ABORT = "abort"
LOOK_SECONDS = 1.0  # between two looks of an engine that works
AT_A_TIME = 64
ROUND = 8  # looks at most until each has had its turn, so that it is heard in time
PATIENCE_SECONDS = 10.0
RECENT = 8  # messages; what a session ends with besides its last answer are notes


class AtWork(Protocol):
    """An owned session while a turn is under way."""

    journal: Journal

    async def abort(self) -> None: ...


class AbortListener:
    """Of an engine: somebody elsewhere may want a turn to end. What asks for it leaves the inbox when the turn has
    ended, which is how the other one knows. One timer looks for all who work, at some of them at a time: it costs a
    busy engine little more than a quiet one."""

    def __init__(self, store: Store, every: float = LOOK_SECONDS) -> None:
        self._store = store
        self._every = every
        self._at_work: dict[AtWork, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looks: dict[AtWork, asyncio.Task[None]] = {}

    def open(self, session: AtWork) -> None:
        self._at_work[session] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._every, self._look)

    def shut(self, session: AtWork) -> None:
        self._at_work.pop(session, None)
        if not self._at_work and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        if self._looks:
            await asyncio.wait(self._looks.values())

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every, self._look)
        some = max(AT_A_TIME, -(-len(self._at_work) // ROUND))
        for session in list(islice(self._at_work, some)):
            self._at_work[session] = self._at_work.pop(session)  # the next time others are first
            if session not in self._looks:
                look = self._looks[session] = asyncio.create_task(self._obey(session))
                look.add_done_callback(partial(self._looked, session))  # it may have ended: some loops begin at once

    async def _obey(self, session: AtWork) -> None:
        try:
            waiting = await self._store.inbox(session.journal.session.id)
            if wanted := [item for item in waiting if asks_for_the_end(item)]:
                await session.abort()
                for item in wanted:
                    await session.journal.discard(item.id)
        except StoreError:
            return  # it is looked again

    def _looked(self, session: AtWork, _: object) -> None:
        del self._looks[session]


def asks_for_the_end(item: InboxItem) -> bool:
    return bool(item.message.metadata.get(ABORT))


async def abort_elsewhere(store: Store, session_id: str, *, patience: float = PATIENCE_SECONDS) -> None:
    """Returns once its owner has ended the turn, and at once where nobody works on it. Raises SessionInUseError, which
    says who has it, where that one does not answer."""
    await _require_own_turn(store, session_id)
    if not await _is_under_way(store, session_id) or (owned := await _in_use(store, session_id)) is None:
        return
    seq = (await store.get(session_id)).seq
    item = await store.put_inbox(_request(session_id))
    try:
        async with asyncio.timeout(patience):
            await _taken(store, item, seq)
    except TimeoutError:
        if await _in_use(store, session_id) is not None:
            raise _unanswered(owned, patience) from None


async def _taken(store: Store, item: InboxItem, seq: int) -> None:
    async with aclosing(store.changes(item.session_id, after=seq)) as changes:
        async for change in changes:
            if isinstance(change, InboxChange) and change.item.id == item.id and change.item.taken is not None:
                return


async def _require_own_turn(store: Store, session_id: str) -> None:
    """An agent that was called works for the turn above, and ends with it."""
    above = await store.get(session_id)
    while above.parent_id is not None:
        above = await store.get(above.parent_id)
    if above.id != session_id and await _is_under_way(store, session_id) and await _in_use(store, above.id):
        raise OutriderError(
            f"the agent in session {session_id} works for session {above.id}: end the turn there", session_id=above.id
        )


async def _in_use(store: Store, session_id: str) -> SessionInUseError | None:
    """Nothing, written by nobody, is refused where somebody owns the session."""
    try:
        await store.append(session_id, ())
    except SessionInUseError as owned:
        return owned
    return None


async def _is_under_way(store: Store, session_id: str) -> bool:
    """As far as the transcript tells: one that was ended in the middle says so."""
    messages = (await store.load(session_id, limit=RECENT)).messages
    return is_cut_off(messages) and not _was_ended(messages)


def _was_ended(messages: Sequence[Message]) -> bool:
    last = messages[-1]
    states = [call.state for call in last.get_parts_by_type(ToolPart)]
    return last.error is not None or any(
        isinstance(state, ToolError) and state.reason == "canceled" for state in states
    )


def _request(session_id: str) -> InboxItem:
    """An owner of an older version takes it for a note."""
    words = TextPart("Somebody wanted this turn to end.", synthetic=True)
    return InboxItem(session_id=session_id, message=Message("user", [words], metadata={ABORT: True, NOTE: True}))


def _unanswered(owned: SessionInUseError, patience: float) -> SessionInUseError:
    return SessionInUseError(
        f"{owned.message}, which has ended no turn within {patience:g} s: it is stuck, or has none under way. "
        "End it there, or take the session over",
        **owned.details,
    )
