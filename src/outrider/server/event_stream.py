"""Server-sent events. The changes of each session are read once and sent to all its listeners; another stream has the
states of all sessions and the changes of those that a client follows."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal

import msgspec

from outrider._sync import call_in_loop, wait_to_end
from outrider.engine.archive import StoredSession
from outrider.engine.engine import Engine
from outrider.engine.frontend import QuestionQueue, archive_of, was_cut_off
from outrider.engine.plans import find_open_plan
from outrider.errors import SessionNotFoundError, StoreError
from outrider.presentation.items import ABORTED
from outrider.server.payloads import change_payload, event_payload
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    Event,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    SessionUpdatedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
)

MAX_DEPTH = 32  # bound for walks over the tree; agents cannot nest deeper
_QUESTION_CHANGES = {"question", "settled"}


class FollowedSessions:
    """Tracks which session called which, and delivers events to the handlers of their session. A user follows one
    session, so questions of its child sessions must appear there."""

    def __init__(self, engine: Engine) -> None:
        self._parents: dict[str, str] = {}
        self.followers = 0  # clients that follow any session
        # Replaced, never changed: events may be published by other threads.
        self._handlers: dict[str, tuple[Callable[[Event], None], ...]] = {}
        self._unsubscribe_all = engine.bus.subscribe_all(self._deliver_event)
        unsubscribe_called = engine.bus.subscribe(AgentCalledEvent, self._add_child)
        unsubscribe_returned = engine.bus.subscribe(AgentReturnedEvent, self._remove_child)
        self._unsubscribe: tuple[Callable[[], None], ...] = (unsubscribe_called, unsubscribe_returned)

    def close(self) -> None:
        for unsubscribe in (*self._unsubscribe, self._unsubscribe_all):
            unsubscribe()

    def subscribe(self, session_id: str, handler: Callable[[Event], None]) -> Callable[[], None]:
        """Calls `handler` with the events of the session, and with questions of the sessions that it called. One
        subscription of the bus serves all sessions, so that an event costs the same however many are followed."""
        self._handlers[session_id] = (*self._handlers.get(session_id, ()), handler)

        def unsubscribe() -> None:
            remaining = tuple(other for other in self._handlers.get(session_id, ()) if other is not handler)
            if remaining:
                self._handlers[session_id] = remaining
            else:
                self._handlers.pop(session_id, None)

        return unsubscribe

    def _deliver_event(self, event: Event) -> None:
        for handler in self._handlers.get(event.session_id, ()):
            handler(event)
        if self._parents and is_question_event(event):
            for ancestor in self._ancestors(event.session_id):
                for handler in self._handlers.get(ancestor, ()):
                    handler(event)

    def forwards_event(self, event: Event, session_id: str) -> bool:
        """Returns whether an event of another session is forwarded to this one."""
        return bool(self._parents) and is_question_event(event) and session_id in self._ancestors(event.session_id)

    def _ancestors(self, session_id: str) -> list[str]:
        ancestors: list[str] = []
        while (parent := self._parents.get(session_id)) is not None and len(ancestors) < MAX_DEPTH:
            ancestors.append(parent)
            session_id = parent
        return ancestors

    def _add_child(self, event: AgentCalledEvent) -> None:
        self._parents[event.child_session_id] = event.session_id

    def _remove_child(self, event: AgentReturnedEvent) -> None:
        self._parents.pop(event.child_session_id, None)


def is_question_event(event: Event) -> bool:
    """Returns whether the event asks a user a question, or settles one."""
    match event:
        case ToolApprovalRequestedEvent() | ToolApprovalResultEvent():
            return True
        case SessionUpdatedEvent():
            return not _QUESTION_CHANGES.isdisjoint(event.changes)
        case _:
            return False


async def find_root_session(engine: Engine, session_id: str) -> str:
    """Returns the session at the root of the call tree."""
    for _ in range(MAX_DEPTH):
        parent = (await engine.store.get(session_id)).parent_id
        if parent is None:
            break
        session_id = parent
    return session_id


async def is_descendant(engine: Engine, session_id: str, ancestor_id: str) -> bool:
    """Returns whether the session is the ancestor itself or one of its descendants. It reads stored parents, so it
    works after a restart."""
    for _ in range(MAX_DEPTH):
        if session_id == ancestor_id:
            return True
        try:
            parent = (await engine.store.get(session_id)).parent_id
        except SessionNotFoundError:
            return False
        if parent is None:
            return False
        session_id = parent
    return False


HEARTBEAT = b": still here\n\n"

_encode = msgspec.json.Encoder(enc_hook=lambda part: part.to_dict()).encode


class SseFrame(msgspec.Struct, frozen=True):
    """An encoded server-sent event. `seq` is the sequence number of a stored change; None for transient events, which a
    slow client may miss."""

    body: bytes
    seq: int | None = None


def change_frame(change: Any, *, views: bool = False) -> SseFrame:
    """Encodes a stored change. The sequence number is the event id, so that a reconnecting client sends it as
    Last-Event-ID."""
    payload = _encode(change_payload(change, views=views))
    return SseFrame(b"id: %d\nevent: change\ndata: %b\n\n" % (change.seq, payload), change.seq)


def live_frame(events: Iterable[Event], *, views: bool = False) -> SseFrame:
    """Encodes transient events as one frame, with adjacent deltas merged."""
    payloads = [event_payload(event, views=views) for event in merge_deltas(events)]
    return SseFrame(b"event: live\ndata: %b\n\n" % _encode(payloads))


def merge_deltas(events: Iterable[Event]) -> list[Event]:
    """Merges adjacent deltas of the same part or call: a client does not draw faster than one frame."""
    result: list[Event] = []
    for event in events:
        previous = result[-1] if result else None
        match previous, event:
            case (PartDeltaEvent(), PartDeltaEvent()) | (ToolInputDeltaEvent(), ToolInputDeltaEvent()) if (
                previous.part_id == event.part_id
            ):
                result[-1] = msgspec.structs.replace(previous, delta=previous.delta + event.delta)
            case (ToolOutputEvent(), ToolOutputEvent()) if (previous.call_id, previous.stream) == (
                event.call_id,
                event.stream,
            ):
                result[-1] = msgspec.structs.replace(previous, output=previous.output + event.output)
            case _:
                result.append(event)
    return result


class FrameBatch(msgspec.Struct, frozen=True):
    """Frames that are sent together. `first_seq` is the sequence number of the first stored change; None if there is
    none."""

    frames: tuple[SseFrame, ...]
    body: bytes
    first_seq: int | None

    @classmethod
    def from_frames(cls, frames: Sequence[SseFrame]) -> "FrameBatch":
        first = next((frame.seq for frame in frames if frame.seq is not None), None)
        return cls(tuple(frames), b"".join([frame.body for frame in frames]), first)

    @property
    def last_seq(self) -> int | None:
        return next((frame.seq for frame in reversed(self.frames) if frame.seq is not None), None)

    def newer_than(self, seq: int) -> "FrameBatch":
        """Returns the batch without changes up to `seq`. It is usually the same batch, without a copy."""
        if self.first_seq is None or self.first_seq > seq:
            return self
        return FrameBatch.from_frames([frame for frame in self.frames if frame.seq is None or frame.seq > seq])

    def stored_only(self) -> "FrameBatch":
        """Returns the batch without transient events."""
        return FrameBatch.from_frames([frame for frame in self.frames if frame.seq is not None])


MAX_BUFFERED_BATCHES = 512  # batches


class FeedListener:
    """The bounded buffer of one connected client."""

    def __init__(self, limit: int = MAX_BUFFERED_BATCHES) -> None:
        self._limit = limit
        self._batches: deque[FrameBatch] = deque()
        self._arrived = asyncio.Event()
        self.closed = False

    def put_batch(self, batch: FrameBatch) -> None:
        """Adds a batch. At the limit it first drops transient events; if stored changes alone exceed the limit it
        closes the listener, and the client reconnects with its last sequence number."""
        if self.closed:
            return
        if len(self._batches) >= self._limit:
            if batch.first_seq is None:
                return
            self._batches = deque(
                buffered.stored_only() for buffered in self._batches if buffered.first_seq is not None
            )
            self.closed = len(self._batches) >= self._limit
        self._batches.append(batch)
        self._arrived.set()

    def close(self) -> None:
        self.closed = True
        self._arrived.set()

    async def next_batch(self) -> FrameBatch | None:
        """Waits for the next batch; None once the listener is closed and empty."""
        if not self._batches and not self.closed:
            self._arrived.clear()
            await self._arrived.wait()
        return self._batches.popleft() if self._batches else None


BATCH_SECONDS = 0.03  # frames are collected for this long and sent together
LISTENERS_PER_BATCH_DELAY = 100  # number of listeners that doubles BATCH_SECONDS
MAX_LATE_BATCHES = 30  # batches to wait for a change that the bus has announced
KEEPALIVE_SECONDS = 15.0  # seconds of silence before a keepalive comment is sent


class SessionEventFeed:
    """Reads the changes and events of one session while it has listeners. With `views`, they have
    the views of messages and parts."""

    def __init__(
        self, session_id: str, engine: Engine, followed_sessions: FollowedSessions, *, views: bool = False
    ) -> None:
        self._session_id = session_id
        self._views = views
        self._followed_sessions = followed_sessions
        self._engine = engine
        self._listeners: set[FeedListener] = set()
        self._pending_events: list[Event] = []
        self._held_events: deque[tuple[int, Event]] = deque()  # (sequence number of the change to wait for, event)
        # Newest sequence numbers announced by the bus and read from the store.
        self._announced_seq = self._stored_seq = 0
        self._frames: list[SseFrame] = []
        self._send_timer: asyncio.TimerHandle | None = None
        self._reader: asyncio.Task[None] | None = None
        self._reader_lock = asyncio.Lock()  # no reader starts while the one before it stops
        self._joining = 0  # clients that wait for the reader
        self._is_silent = False
        self._late_batches = 0  # batches sent while events were held

    @property
    def is_idle(self) -> bool:
        return not self._listeners and not self._joining

    async def stored_batches(self, after: int) -> AsyncGenerator[FrameBatch]:
        """Yields every stored change after `after`."""
        async with aclosing(self._engine.store.changes(self._session_id, after=after, follow=False)) as stored:
            async for change in stored:
                yield FrameBatch.from_frames([change_frame(change, views=self._views)])

    async def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        await self._stop_reader()

    async def add_listener(self, listener: FeedListener) -> None:
        """Starts the reader at the session's current sequence number before the stored changes are read, so that the
        two overlap and leave no gap."""
        self._joining += 1
        try:
            if not self._is_reading:  # else the listener must not wait: a client may act when its response begins
                await self._start_reader()
            self._listeners.add(listener)
            self._followed_sessions.followers += 1
        finally:
            self._joining -= 1

    @property
    def _is_reading(self) -> bool:
        """Whether a reader runs. A reader that is being stopped is not `_reader` any more."""
        return self._reader is not None and not self._reader.done()  # it ends when the store fails

    async def _start_reader(self) -> None:
        async with self._reader_lock:
            if not self._is_reading:
                seq = (await self._engine.store.get(self._session_id)).seq
                self._reader = asyncio.create_task(self._read_changes(seq))

    async def remove_listener(self, listener: FeedListener) -> None:
        self._followed_sessions.followers -= listener in self._listeners
        self._listeners.discard(listener)
        if self.is_idle:  # the server cancels the task of a disconnected client repeatedly
            await wait_to_end(self._stop_if_idle())

    async def _stop_if_idle(self) -> None:
        async with self._reader_lock:
            if self.is_idle:
                await self._stop_reader()

    async def _stop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.wait([reader])

    async def _read_changes(self, seq: int) -> None:
        """Reads changes until the store fails or the feed stops, and then closes all listeners; clients reconnect."""
        self._announced_seq = self._stored_seq = seq
        handler = self._event_handler(asyncio.get_running_loop())
        unsubscribe = self._followed_sessions.subscribe(self._session_id, handler)
        self._send_keepalive()
        try:
            async with aclosing(self._engine.store.changes(self._session_id, after=seq)) as changes:
                async for change in changes:
                    self._flush_events()
                    self._enqueue_frame(change_frame(change, views=self._views))
                    self._advance_to(change.seq)
        finally:
            self._send_batch()
            unsubscribe()
            self._keepalive_timer.cancel()
            for listener in self._listeners:
                listener.close()

    def _event_handler(self, loop: asyncio.AbstractEventLoop) -> Callable[[Event], None]:
        def handle_event(event: Event) -> None:
            is_own = event.session_id == self._session_id
            if not (is_own or self._followed_sessions.forwards_event(event, self._session_id)):
                return
            if not is_own or _is_transient(event):
                call_in_loop(loop, self._enqueue_event, event, self._announced_seq)
            else:
                self._announced_seq = max(self._announced_seq, _event_seq(event))

        return handle_event

    def _enqueue_event(self, event: Event, announced_seq: int) -> None:
        """Holds the event back until the store has delivered the change before it: the bus may publish a change
        slightly before the store's reader returns it."""
        if self._held_events or announced_seq > self._stored_seq:
            self._held_events.append((announced_seq, event))
        else:
            self._pending_events.append(event)
        self._schedule_send()

    def _advance_to(self, seq: int) -> None:
        self._stored_seq, self._late_batches = seq, 0
        while self._held_events and self._held_events[0][0] <= seq:
            self._pending_events.append(self._held_events.popleft()[1])

    def _flush_events(self) -> None:
        """Closes the current frame of transient events, so that it is sent before the stored change that follows it."""
        if self._pending_events:
            pending, self._pending_events = self._pending_events, []
            self._frames.append(live_frame(pending, views=self._views))

    def _enqueue_frame(self, frame: SseFrame) -> None:
        self._frames.append(frame)
        self._schedule_send()

    def _schedule_send(self) -> None:
        """Starts the timer of a batch at its first frame. More followers of the server get longer batches, because
        writing to all of them must not slow down turns and requests."""
        if self._send_timer is None:
            seconds = BATCH_SECONDS * (1 + self._followed_sessions.followers / LISTENERS_PER_BATCH_DELAY)
            self._send_timer = asyncio.get_running_loop().call_later(seconds, self._send_batch)

    def _send_batch(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None
        self._release_held_events()
        self._flush_events()
        if self._frames:
            batch, self._frames, self._is_silent = FrameBatch.from_frames(self._frames), [], False
            for listener in self._listeners:
                listener.put_batch(batch)

    def _release_held_events(self) -> None:
        """Releases held events after MAX_LATE_BATCHES batches without the change that they wait for."""
        if not self._held_events:
            return
        self._late_batches += 1
        if self._late_batches > MAX_LATE_BATCHES:
            self._advance_to(self._held_events[-1][0])
        self._schedule_send()

    def _send_keepalive(self) -> None:
        if self._is_silent:
            self._enqueue_frame(SseFrame(HEARTBEAT))
        self._is_silent = True
        self._keepalive_timer = asyncio.get_running_loop().call_later(KEEPALIVE_SECONDS, self._send_keepalive)


LISTED_SESSIONS = 100
REFRESH_SECONDS = 2.0  # interval of the poll for sessions that other processes change
EVENT_DELAY = 0.15  # seconds after an event of this process

SessionState = Literal["idle", "working", "waiting", "failed", "interrupted"]


class SessionSummary(msgspec.Struct, frozen=True):
    """A session in a list. `state` follows from what is stored and from the turns of this process; `updated` is Unix
    milliseconds. `plan` is the id of the plan that waits for an answer."""

    id: str
    title: str = ""
    workspace: str = ""
    mode: str = ""
    state: SessionState = "idle"
    updated: int = 0
    seq: int = 0
    deleted: bool = False
    archived: bool = False
    owner: str = ""
    plan: str = ""


class SessionStateFeed:
    """Compares the latest sessions with what was sent, while it has listeners."""

    def __init__(self, engine: Engine, questions: QuestionQueue | None = None) -> None:
        self._engine = engine
        self._questions = questions
        self._known: dict[str, SessionSummary] = {}
        self._endings: dict[str, tuple[int, SessionState, str]] = {}  # (sequence number, state of the last turn, plan)
        self._listeners: set[asyncio.Queue[list[SessionSummary] | None]] = set()
        self._reader: asyncio.Task[None] | None = None
        self._is_due = asyncio.Event()

    async def stream_changes(self) -> AsyncGenerator[list[SessionSummary]]:
        """Yields all listed sessions, then those that changed."""
        queue: asyncio.Queue[list[SessionSummary] | None] = asyncio.Queue()
        if self._reader is None:
            await self._refresh()
            self._reader = self._reader or asyncio.create_task(self._keep_refreshing())
        self._listeners.add(queue)
        try:
            yield list(self._known.values())
            while (summaries := await queue.get()) is not None:
                yield summaries
        finally:
            self._listeners.discard(queue)
            if not self._listeners:
                await self._stop_reader()

    async def close(self) -> None:
        for queue in self._listeners:
            queue.put_nowait(None)
        await self._stop_reader()

    async def _stop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.wait([reader])

    async def _keep_refreshing(self) -> None:
        loop = asyncio.get_running_loop()

        def mark_due(event: Event) -> None:
            if not isinstance(event, PartDeltaEvent | ToolInputDeltaEvent | ToolOutputEvent | PartUpdatedEvent):
                call_in_loop(loop, self._is_due.set)

        unsubscribe = self._engine.bus.subscribe_all(mark_due)
        try:
            while True:
                await self._wait_until_due()
                with suppress(StoreError):  # an outage of the store: the next refresh sends what is missing
                    await self._refresh()
        finally:
            unsubscribe()

    async def _wait_until_due(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_SECONDS):
                await self._is_due.wait()
                await asyncio.sleep(EVENT_DELAY)
        self._is_due.clear()

    async def _refresh(self) -> None:
        page = await archive_of(self._engine).list_page(LISTED_SESSIONS)
        waiting_sessions = await self._waiting_sessions()
        summaries = {session.id: await self._summarize(session, waiting_sessions) for session in page.sessions}
        changed = [summary for summary in summaries.values() if self._known.get(summary.id) != summary]
        missing_ids = self._known.keys() - summaries.keys()
        changed += [
            SessionSummary(session_id, deleted=True) for session_id in missing_ids if await self._is_deleted(session_id)
        ]
        self._known = summaries
        self._endings = {session_id: ending for session_id, ending in self._endings.items() if session_id in summaries}
        if changed:
            for queue in self._listeners:
                queue.put_nowait(changed)

    async def _is_deleted(self, session_id: str) -> bool:
        try:
            await self._engine.store.get(session_id)
        except SessionNotFoundError:
            return True
        return False

    async def _waiting_sessions(self) -> set[str]:
        asking = [approval.session_id for approval in await self._engine.approvals()]
        asking += [question.session_id for question in self._questions.open_questions()] if self._questions else []
        session_ids: set[str] = set()
        for session_id in dict.fromkeys(asking):
            with suppress(SessionNotFoundError):
                session_ids.add(await find_root_session(self._engine, session_id))
        return session_ids

    async def _summarize(self, session: StoredSession, waiting_sessions: set[str]) -> SessionSummary:
        live, plan = self._engine.live.get(session.id), ""
        if session.id in waiting_sessions:
            state: SessionState = "waiting"
        elif live is not None and live.in_turn:
            state = "working"
        else:
            state, plan = await self._last_ending(session)
        return SessionSummary(
            session.id,
            session.title,
            session.workspace_directory,
            session.mode,
            state,
            session.time.updated if session.time else 0,
            session.seq,
            archived=session.time is not None and session.time.archived is not None,
            owner=session.owner,
            plan=plan,
        )

    async def _last_ending(self, session: StoredSession) -> tuple[SessionState, str]:
        """Returns the state and the id of the open plan. Reads the last messages once for each change of a session."""
        seq, state, plan = self._endings.get(session.id, (-1, "idle", ""))
        if seq == session.seq:
            return state, plan
        try:
            messages = (await self._engine.store.load(session.id, limit=3)).messages
        except SessionNotFoundError:
            return "idle", ""
        open_plan = find_open_plan(session.mode, messages)
        if not was_cut_off(messages):
            state, plan = ("waiting", open_plan.id) if open_plan else ("idle", "")
        else:
            has_failed = messages[-1].error is not None and messages[-1].error.type != ABORTED
            state, plan = "failed" if has_failed else "interrupted", ""
        self._endings[session.id] = (session.seq, state, plan)
        return state, plan


def _batch_body(batch: FrameBatch) -> bytes:
    return batch.body


class SessionFeedRegistry:
    """The feeds of a server, by session id and by whether their clients want views."""

    def __init__(self, engine: Engine, questions: QuestionQueue | None = None) -> None:
        self._engine = engine
        self._followed_sessions = FollowedSessions(engine)
        self._feeds: dict[tuple[str, bool], SessionEventFeed] = {}
        self._session_states = SessionStateFeed(engine, questions)
        self._outboxes: set[_Outbox] = set()

    async def stream_frames(
        self, session_id: str, after: int, *, views: bool = False, encode: Callable[[FrameBatch], bytes] = _batch_body
    ) -> AsyncGenerator[bytes]:
        """Yields every stored change after `after`, then live frames; each stored change exactly once. It is one
        generator with few references, because a server has hundreds of them."""
        key, listener = (session_id, views), FeedListener()
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = SessionEventFeed(session_id, self._engine, self._followed_sessions, views=views)
        try:
            await feed.add_listener(listener)
            # The listener is registered: a client may act after this comment without missing events.
            yield HEARTBEAT
            async with aclosing(feed.stored_batches(after)) as stored:
                async for batch in stored:
                    after = batch.last_seq or after
                    yield encode(batch)
            del stored
            while (batch := await listener.next_batch()) is not None:
                unseen = batch.newer_than(after)
                after = unseen.last_seq or after
                yield encode(unseen)
        finally:
            try:
                await feed.remove_listener(listener)
            finally:
                if feed.is_idle and self._feeds.get(key) is feed:
                    del self._feeds[key]

    async def stream_all(
        self,
        followed: Mapping[str, int],
        *,
        views: bool = False,
        is_visible: Callable[[SessionSummary], bool] | None = None,
    ) -> AsyncGenerator[bytes]:
        """Yields the states of the latest sessions that are visible, then every change of a state, and the changes and
        live events of the sessions in `followed` after their sequence numbers. The stream ends when a followed
        session's does; the client reconnects with its positions."""
        outbox = _Outbox()
        tasks = [
            asyncio.create_task(self._copy_session(session_id, after, outbox, views=views))
            for session_id, after in followed.items()
        ]
        tasks.append(asyncio.create_task(self._copy_states(outbox, is_visible)))
        for task in tasks:
            task.add_done_callback(lambda _: outbox.close())
        self._outboxes.add(outbox)
        try:
            yield HEARTBEAT
            while (body := await outbox.take()) is not None:
                yield body
        finally:
            self._outboxes.discard(outbox)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _copy_session(self, session_id: str, after: int, outbox: "_Outbox", *, views: bool) -> None:
        def encode(batch: FrameBatch) -> bytes:
            return b"".join(_name_session(session_id, frame) for frame in batch.frames)

        async with aclosing(self.stream_frames(session_id, after, views=views, encode=encode)) as bodies:
            async for body in bodies:
                await outbox.put(body)

    async def _copy_states(self, outbox: "_Outbox", is_visible: Callable[[SessionSummary], bool] | None) -> None:
        async with aclosing(self._session_states.stream_changes()) as changes:
            async for changed in changes:
                summaries = changed if is_visible is None else [summary for summary in changed if is_visible(summary)]
                await outbox.put(b"event: sessions\ndata: %b\n\n" % _encode(summaries))

    async def close(self) -> None:
        for outbox in self._outboxes:
            outbox.close()
        for feed in list(self._feeds.values()):
            await feed.close()
        await self._session_states.close()
        self._followed_sessions.close()


def _name_session(session_id: str, frame: SseFrame) -> bytes:
    """Returns the frame for a stream of several sessions: its data names the session."""
    head, separator, data = frame.body.partition(b"data: ")
    if not separator:
        return frame.body
    name, data = _encode(session_id), data.removesuffix(b"\n\n")
    if frame.seq is None:
        return b'%bdata: {"session_id":%b,"events":%b}\n\n' % (head, name, data)
    return b'event: change\ndata: {"session_id":%b,"seq":%d,"change":%b}\n\n' % (name, frame.seq, data)


class _Outbox:
    """The queue of frames for one client. A producer waits while the client is slow; its own buffer is bounded."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(64)
        self._is_closed = False

    async def put(self, body: bytes) -> None:
        await self._queue.put(body)

    async def take(self) -> bytes | None:
        """Returns the next frame; None once the outbox is closed and empty."""
        if self._is_closed and self._queue.empty():
            return None
        return await self._queue.get()

    def close(self) -> None:
        self._is_closed = True
        with suppress(asyncio.QueueFull):  # the client does not wait, and takes the rest before it sees the end
            self._queue.put_nowait(None)


def _is_transient(event: Event) -> bool:
    """Returns whether the event is not stored. Stored values come from the store, with their sequence number."""
    match event:
        case PartUpdatedEvent(seq=seq) | SessionUpdatedEvent(seq=seq):
            return seq is None
        case MessageAddedEvent():
            return False
        case _:
            return True


def _event_seq(event: Event) -> int:
    """Returns the sequence number of the change that the event announces; 0 for an answer that has just started."""
    match event:
        case PartUpdatedEvent(seq=seq) | SessionUpdatedEvent(seq=seq) | MessageAddedEvent(seq=seq):
            return seq or 0
        case _:
            return 0
