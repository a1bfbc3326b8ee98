"""The inbox of an open session. Input is stored on arrival and moved to the transcript once; its future resolves when
its turn ends. A request of another process to abort the turn is an inbox item too; the session's owner polls for it."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from contextvars import Context, copy_context
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple, Protocol
from weakref import proxy

from msgspec import Struct
from msgspec.structs import replace

from outrider.agents.output_type import OutputType
from outrider.agents.turn_state import NOTE, TurnEnd, is_cut_off, is_note
from outrider.engine.results import RunResult, result_of_type
from outrider.errors import OutriderError, SessionInUseError, StoreError
from outrider.sessions.journal import Journal
from outrider.sessions.records import InboxChange, InboxItem, SessionUpdate
from outrider.sessions.store import Store
from outrider.types.agents import Agent
from outrider.types.messages import Message
from outrider.types.parts import TextPart
from outrider.types.tool_state import ToolError

MAX_TITLE = 60
_log = logging.getLogger("outrider.engine")


class InputOrigin(NamedTuple):
    """The context variables of the task that added an input, and the output type that it requested."""

    variables: Context
    output: OutputType | None = None


FRESH_SECONDS = 0.25


class _InboxRead(Struct, frozen=True):
    """The result of reading the inbox: the time, the number of inputs that this process had added, and the waiting
    input."""

    time: float
    puts: int
    waiting: Sequence[InboxItem]


class InboxOwner(Protocol):
    """The session of an inbox.

    - `agent`: the agent that answers.
    - `workspace_notes`, `initial_state`: are stored with the first input and do not change.
    - `publish_update`: announces input as queued, taken or withdrawn.
    - `make_result`: creates the result of an input that starts no turn.
    - `describe_input`: adds to an input the settings, tools and mentioned agents of its turn.
    """

    @property
    def agent(self) -> Agent: ...

    @property
    def workspace_notes(self) -> str: ...

    async def initial_state(self) -> TextPart | None: ...
    def publish_update(self, **changes: Any) -> None: ...
    def make_result(self, end: TurnEnd) -> "RunResult[Any]": ...
    def describe_input(self, message: Message) -> None: ...


class SessionInbox:
    """Queues input for one session. `current` is the origin of the newest input that was taken, None if it came from
    another process."""

    def __init__(self, journal: Journal, store: Store, owner: InboxOwner) -> None:
        self._journal = journal
        self._store = store
        self._owner = proxy(owner)  # a reference cycle would delay freeing a closed session
        self._futures: dict[str, list[tuple[asyncio.Future[RunResult[Any]], OutputType | None]]] = {}
        self._taken: list[str] = []
        self._origins: dict[str, InputOrigin] = {}
        self.current: InputOrigin | None = None
        self._unredacted: dict[str, Message] = {}
        self._take_lock = asyncio.Lock()
        self._read: _InboxRead | None = None
        self._puts = self._open_puts = 0

    async def put(
        self, item: InboxItem, origin: InputOrigin | None = None
    ) -> tuple[InboxItem, asyncio.Future[RunResult[Any]]]:
        """Stores an input and returns it with a future for the end of its turn. If the id is already stored, returns
        the input that was stored first; if its turn is over, the future resolves with the last text."""
        end = self.expect_end(item.id, origin.output if origin else None)
        self._puts, self._open_puts = self._puts + 1, self._open_puts + 1
        self._origins[item.id] = origin or InputOrigin(copy_context())
        try:
            stored = await self._store.put_inbox(item)
        except BaseException:
            self._drop_future(item.id, end)
            self._origins.pop(item.id, None)
            raise
        finally:
            self._open_puts, self._read = self._open_puts - 1, None
        if stored.message.id == item.message.id:
            self._owner.publish_update(queued=item.id)
            if stored.message.join_text() != item.message.join_text():
                # The store redacts secrets; the model of this process gets the original text.
                self._unredacted[item.id] = item.message
        if stored.taken is not None and item.id not in self._taken:
            self._resolve_item(item.id, self._owner.make_result(TurnEnd("completed", self.last_text())))
        return stored, end

    def expect_end(self, name: str, output: OutputType | None = None) -> asyncio.Future[RunResult[Any]]:
        """Returns a new future for the turn of this input. Several callers may wait; cancelling one future does not
        affect the others. Each caller gets a result with the output type that it requested."""
        end: asyncio.Future[RunResult[Any]] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(name, []).append((end, output))
        return end

    def mark_taken(self, name: str, output: OutputType | None = None) -> None:
        """Resolves the futures of this name at the end of the next turn."""
        self.current = InputOrigin(copy_context(), output)
        self._taken.append(name)

    async def take_next(self) -> bool:
        """Moves the next input, and the notes before it, into the transcript. Notes start no turn."""
        async with self._take_lock:
            for item in await self.discard_aborts():
                message = await self._take_item(item)
                if not is_note(message):
                    return True
                self.resolve_taken(self._owner.make_result(TurnEnd("completed")))
        return False

    async def discard_aborts(self) -> list[InboxItem]:
        """Returns the waiting input. Abort requests are removed: the turn that they were sent for is over."""
        time, puts, is_complete = monotonic(), self._puts, not self._open_puts
        waiting = await self._pending_items()
        if is_complete and puts == self._puts:
            self._read = _InboxRead(time, puts, waiting)
        for item in waiting:
            if is_abort_request(item):
                self._read = None
                await self._journal.discard_inbox_item(item.id)
        return [item for item in waiting if not is_abort_request(item)]

    async def take_steering(self) -> list[Message]:
        """Moves input with delivery "steer" into the transcript during a turn."""
        async with self._take_lock:
            waiting = await self._steering_items()
            return [await self._take_item(item) for item in waiting if item.delivery == "steer"]

    async def withdraw(self, item_id: str) -> bool:
        """Removes waiting input. Returns False if it is already in the transcript, or is unknown."""
        async with self._take_lock:
            if item_id not in {item.id for item in await self._pending_items()}:
                return False
            await self._journal.discard_inbox_item(item_id)
        self._owner.publish_update(withdrawn=item_id)
        self._origins.pop(item_id, None)
        self._resolve_item(item_id, self._owner.make_result(TurnEnd("aborted")))
        return True

    def resolve_taken(self, end: "RunResult[Any]") -> None:
        """Resolves the futures of all input of this turn with the end of the turn."""
        for item_id in self._taken:
            self._resolve_item(item_id, end)
        self._taken.clear()

    def resolve_all(self, end: "RunResult[Any]") -> None:
        """Resolves all futures, because the session closes. Waiting input stays in the store for the next owner."""
        for name in list(self._futures):
            self._resolve_item(name, end)

    def last_text(self) -> str:
        messages = self._journal.session.messages
        return messages[-1].join_text() if messages else ""

    async def _pending_items(self) -> Sequence[InboxItem]:
        """Returns stored input. Pending writes of the journal are retried first, so that no item is processed twice,
        for example after an abort or with a full disk."""
        self._read = None
        if self._journal.has_pending_input:
            await self._journal.retry_writes()
        return await self._store.inbox(self._journal.session.id)

    async def _steering_items(self) -> Sequence[InboxItem]:
        """Returns stored input. The first step of a turn gets what was read when the turn started, without the input
        that was taken, unless this process has added input or some time has passed. Each later step reads the inbox,
        because other processes can steer a turn too."""
        read, self._read = self._read, None
        is_fresh = read is not None and monotonic() - read.time < FRESH_SECONDS
        return (
            read.waiting if read and is_fresh and not self._journal.has_pending_input else await self._pending_items()
        )

    async def _take_item(self, item: InboxItem) -> Message:
        """Moves one input into the transcript. Its mode is stored first, so that a crash between the two writes loses
        neither of them."""
        item = replace(item, message=self._unredacted.pop(item.id, item.message))
        session, mode = self._journal.session, item.message.mode
        if mode is not None and mode != session.mode:
            await self._journal.update_session(SessionUpdate(mode=mode))
        if not session.messages:
            await self._describe_workspace(item.message)
        item.message.mode = item.message.mode or session.mode
        if item.message.model is None:
            agent = self._owner.agent
            item.message.agent = item.message.agent or session.agent
            item.message.model = agent.model_ref
        if not is_note(item.message):
            self._owner.describe_input(item.message)
        origin, resumed = self._origins.pop(item.id, None), self.current if self._taken else None
        # Stored input has no origin; the `resume` that continues with it may have its output type.
        self.current = resumed if origin is None and resumed is not None and resumed.output is not None else origin
        self._taken.append(item.id)  # before the write, so that its future is resolved even if that fails
        read, self._read = self._read, None
        message = await self._journal.take_inbox_item(item)
        if read is not None and not self._open_puts and read.puts == self._puts:
            self._read = replace(read, waiting=[other for other in read.waiting if other.id != item.id])
        self._owner.publish_update(taken=item.id)
        if not session.title:
            await self._journal.update_session(SessionUpdate(title=first_line_title(message)))
        return message

    async def _describe_workspace(self, message: Message) -> None:
        """Stores the workspace notes and the initial state with the first message. They do not change until the session
        ends, so that the cached prompt prefix stays valid."""
        notes, state = self._owner.workspace_notes, await self._owner.initial_state()
        message.system = notes if notes or state else None
        if state and not any(part.text == state.text for part in message.get_parts_by_type(TextPart)):
            message.add_part(state)

    def _drop_future(self, name: str, end: asyncio.Future[RunResult[Any]]) -> None:
        remaining = [waiter for waiter in self._futures.pop(name, ()) if waiter[0] is not end]
        if remaining:
            self._futures[name] = remaining

    def _resolve_item(self, name: str, end: "RunResult[Any]") -> None:
        for future, output in self._futures.pop(name, ()):
            if not future.done():
                future.set_result(result_of_type(end, output))


def first_line_title(message: Message) -> str:
    """Returns the first line of the input as a title that needs no model request."""
    return title_of_text(message.join_text())


def title_of_text(text: str, stripped: str | None = None) -> str:
    """Returns the first line that is not empty, shortened. `stripped` are characters to remove from its ends, by
    default white space."""
    line = next((line for full in text.splitlines() if (line := full.strip(stripped))), "")
    return line if len(line) <= MAX_TITLE else f"{line[: MAX_TITLE - 1].rstrip()}…"


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
        self._sessions: dict[AbortableSession, set[str]] = {}  # with the ids of requests that did not end the turn
        self._timer: asyncio.TimerHandle | None = None
        self._polls: dict[AbortableSession, asyncio.Task[None]] = {}

    def add_session(self, session: AbortableSession) -> None:
        self._sessions[session] = set()
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
        count = max(MIN_POLLS_PER_TICK, -(-len(self._sessions) // TICKS_PER_ROUND))
        for session in list(islice(self._sessions, count)):
            self._sessions[session] = self._sessions.pop(session)  # move to the end: round robin
            if session not in self._polls:
                poll = self._polls[session] = asyncio.create_task(self._poll_session(session))
                poll.add_done_callback(partial(self._poll_done, session))  # with eager tasks it may be done already

    async def _poll_session(self, session: AbortableSession) -> None:
        requests: list[InboxItem] = []
        failed = self._sessions.get(session, set())
        try:
            waiting = await self._store.inbox(session.journal.session.id)
            if requests := [item for item in waiting if is_abort_request(item) and item.id not in failed]:
                await session.abort()
                for item in requests:
                    await session.journal.discard_inbox_item(item.id)
        except StoreError:
            return  # the next tick retries
        except OutriderError as error:  # the turn does not end; another request may try again
            failed.update(item.id for item in requests)
            _log.warning("cannot abort session %s on request: %s", session.journal.session.id, error)

    def _poll_done(self, session: AbortableSession, _: object) -> None:
        del self._polls[session]


def is_abort_request(item: InboxItem) -> bool:
    """Returns whether an inbox item is an abort request."""
    return bool(item.message.metadata.get(ABORT_KEY))


async def abort_in_other_process(
    store: Store, session_id: str, *, timeout_seconds: float = ABORT_TIMEOUT_SECONDS
) -> None:
    """Requests the abort and waits until the owner has ended the turn. Returns at once if no turn is running. Raises
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
    """Raises OutriderError for a child session with a running agent: it ends with the turn of its root session."""
    ancestor = await store.get(session_id)
    while ancestor.parent_id is not None:
        ancestor = await store.get(ancestor.parent_id)
    if ancestor.id != session_id and await _has_open_turn(store, session_id) and await _check_lease(store, ancestor.id):
        raise OutriderError(
            f"the agent in session {session_id} was called by session {ancestor.id}; abort the turn there",
            session_id=ancestor.id,
        )


async def _check_lease(store: Store, session_id: str) -> SessionInUseError | None:
    """Returns the error that the store raises if the session is leased, or None. To find out, it appends an empty list
    without a lease token."""
    try:
        await store.append(session_id, ())
    except SessionInUseError as lease_error:
        return lease_error
    return None


async def _has_open_turn(store: Store, session_id: str) -> bool:
    """Returns whether the transcript ends inside a turn that was not canceled."""
    messages = (await store.load(session_id, limit=RECENT_MESSAGES)).messages
    return is_cut_off(messages) and not _was_canceled(messages)


def _was_canceled(messages: Sequence[Message]) -> bool:
    last_message = messages[-1]
    states = [call.state for call in last_message.get_calls()]
    return last_message.error is not None or any(
        isinstance(state, ToolError) and state.reason == "canceled" for state in states
    )


def _abort_request(session_id: str) -> InboxItem:
    """Returns the abort request. An owner with an older version treats it as a note, because of its metadata."""
    text = TextPart("Another process requested an abort of this turn.", synthetic=True)
    return InboxItem(session_id=session_id, message=Message("user", [text], metadata={ABORT_KEY: True, NOTE: True}))


def _no_answer_error(lease_error: SessionInUseError, timeout_seconds: float) -> SessionInUseError:
    return SessionInUseError(
        f"{lease_error.message}, which did not end the turn within {timeout_seconds:g} s: it hangs, or has no running "
        "turn. End it there, or take the session over",
        **lease_error.details,
    )
