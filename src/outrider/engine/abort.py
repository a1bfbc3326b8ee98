"""Aborts a turn that runs in another process: the request is an inbox item, which the owner of the session polls
for."""

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
from outrider.types.parts import TextPart
from outrider.types.tool_state import ToolError

ABORT_KEY = "abort"
POLL_SECONDS = 1.0
MIN_POLLS_PER_TICK = 64
TICKS_PER_ROUND = 8  # every session is polled at least once in this many ticks
ABORT_TIMEOUT_SECONDS = 10.0
RECENT_MESSAGES = 8  # enough to find the last answer: only a few notes can follow it


class AbortableSession(Protocol):
    """An owned session with a running turn."""

    journal: Journal

    async def abort(self) -> None: ...


class AbortListener:
    """Polls the inboxes of all sessions with a running turn for abort requests. The request is removed after the turn
    has ended; the other process waits for that. One timer serves all sessions and polls some of them per tick, so the
    load stays low with many sessions."""

    def __init__(self, store: Store, interval: float = POLL_SECONDS) -> None:
        self._store = store
        self._interval = interval
        self._sessions: dict[AbortableSession, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._polls: dict[AbortableSession, asyncio.Task[None]] = {}

    def add_session(self, session: AbortableSession) -> None:
        self._sessions[session] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._poll_some)

    def remove_session(self, session: AbortableSession) -> None:
        self._sessions.pop(session, None)
        if not self._sessions and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close(self) -> None:
        if self._polls:
            await asyncio.wait(self._polls.values())

    def _poll_some(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._poll_some)
        some = max(MIN_POLLS_PER_TICK, -(-len(self._sessions) // TICKS_PER_ROUND))
        for session in list(islice(self._sessions, some)):
            self._sessions[session] = self._sessions.pop(session)  # move to the end: round robin
            if session not in self._polls:
                poll = self._polls[session] = asyncio.create_task(self._poll_session(session))
                poll.add_done_callback(partial(self._poll_done, session))  # with eager tasks it may be done already

    async def _poll_session(self, session: AbortableSession) -> None:
        try:
            waiting = await self._store.inbox(session.journal.session.id)
            if requests := [item for item in waiting if is_abort_request(item)]:
                await session.abort()
                for item in requests:
                    await session.journal.discard_inbox_item(item.id)
        except StoreError:
            return  # the next tick retries

    def _poll_done(self, session: AbortableSession, _: object) -> None:
        del self._polls[session]


def is_abort_request(item: InboxItem) -> bool:
    """Return whether an inbox item is an abort request."""
    return bool(item.message.metadata.get(ABORT_KEY))


async def abort_in_other_process(
    store: Store, session_id: str, *, timeout_seconds: float = ABORT_TIMEOUT_SECONDS
) -> None:
    """Request the abort and wait until the owner has ended the turn. Returns at once if no turn is running. Raises
    SessionInUseError with the owner's details if it does not respond within `timeout_seconds`."""
    await _reject_child_session(store, session_id)
    if not await _has_open_turn(store, session_id) or (lease_error := await _check_lease(store, session_id)) is None:
        return
    seq = (await store.get(session_id)).seq
    item = await store.put_inbox(_abort_request(session_id))
    try:
        async with asyncio.timeout(timeout_seconds):
            await _wait_until_taken(store, item, seq)
    except TimeoutError:
        if await _check_lease(store, session_id) is not None:
            raise _no_answer_error(lease_error, timeout_seconds) from None


async def _wait_until_taken(store: Store, item: InboxItem, seq: int) -> None:
    async with aclosing(store.changes(item.session_id, after=seq)) as changes:
        async for change in changes:
            if isinstance(change, InboxChange) and change.item.id == item.id and change.item.taken is not None:
                return


async def _reject_child_session(store: Store, session_id: str) -> None:
    """Raise OutriderError for a child session with a running agent: it ends with the turn of its root session."""
    ancestor = await store.get(session_id)
    while ancestor.parent_id is not None:
        ancestor = await store.get(ancestor.parent_id)
    if ancestor.id != session_id and await _has_open_turn(store, session_id) and await _check_lease(store, ancestor.id):
        raise OutriderError(
            f"the agent in session {session_id} was called by session {ancestor.id}; abort the turn there",
            session_id=ancestor.id,
        )


async def _check_lease(store: Store, session_id: str) -> SessionInUseError | None:
    """Append nothing without a lease token; the store rejects that if the session is leased. Returns the error, or
    None."""
    try:
        await store.append(session_id, ())
    except SessionInUseError as lease_error:
        return lease_error
    return None


async def _has_open_turn(store: Store, session_id: str) -> bool:
    """Return whether the transcript ends inside a turn that was not canceled."""
    messages = (await store.load(session_id, limit=RECENT_MESSAGES)).messages
    return is_cut_off(messages) and not _was_canceled(messages)


def _was_canceled(messages: Sequence[Message]) -> bool:
    last = messages[-1]
    states = [call.state for call in last.get_calls()]
    return last.error is not None or any(
        isinstance(state, ToolError) and state.reason == "canceled" for state in states
    )


def _abort_request(session_id: str) -> InboxItem:
    """Return the abort request. An owner with an older version treats it as a note, because of its metadata."""
    text = TextPart("Somebody wanted this turn to end.", synthetic=True)
    return InboxItem(session_id=session_id, message=Message("user", [text], metadata={ABORT_KEY: True, NOTE: True}))


def _no_answer_error(lease_error: SessionInUseError, timeout_seconds: float) -> SessionInUseError:
    return SessionInUseError(
        f"{lease_error.message}, which did not end the turn within {timeout_seconds:g} s: it hangs, or has no running "
        "turn. End it there, or take the session over",
        **lease_error.details,
    )
