"""The one path on which a session changes: a change is kept, then applied, then told, in that order."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from msgspec.structs import replace

from outrider.errors import InvalidStateTransition, LeaseLostError, StorageFullError, StoreError
from outrider.event_bus import EventBus
from outrider.sessions import failpoints as faults
from outrider.sessions.leases import LeaseOwner, SessionLease
from outrider.sessions.records import InboxItem, Lease, SessionUpdate, StoredSession
from outrider.sessions.recovery import Describe, repair
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.sessions.write_queue import PendingChange, PendingChanges, ShieldedTasks
from outrider.types.codec import AnyPart
from outrider.types.events import (
    ErrorEvent,
    Event,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    SessionUpdatedEvent,
    ToolInputDeltaEvent,
)
from outrider.types.ids import now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import CompactionPart, ToolPart

# A little less than the law's 250 ms and 4 KiB, since storing takes its time as well.
FLUSH_SECONDS = 0.2
FLUSH_CHARACTERS = 3072


class DraftBuffer:
    """`due` is called when what was shown has to be kept now."""

    def __init__(self, due: Callable[[], object]) -> None:
        self._due = due
        self._parts: dict[str, Callable[[], AnyPart]] = {}
        self._characters = 0
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, part_id: str, characters: int, current: Callable[[], AnyPart]) -> None:
        """More of a part was shown; `current` gives the part so far."""
        self._parts[part_id] = current
        self._characters += characters
        if self._characters >= FLUSH_CHARACTERS:
            self._ring()
        else:
            self.wake()

    def wake(self) -> None:
        """Something was shown: see to it that it is kept in time."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._ring)

    def drop(self, part_id: str) -> None:
        """The part is final."""
        self._parts.pop(part_id, None)

    def take(self) -> list[AnyPart]:
        parts, self._parts, self._characters = self._parts, {}, 0
        return [current() for current in parts.values()]

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self.stop()
        self._characters = 0
        self._due()


class Journal(AbstractAsyncContextManager["Journal"]):
    """Writes for one session, as its owner. `lost` is set once somebody else has taken the session over.

    When the disk is full a change raises StorageFullError, is told of as an error, and stays in memory: it is kept,
    applied and told, in its order, as soon as a later attempt succeeds.
    """

    def __init__(
        self,
        session: Session,
        store: Store,
        bus: EventBus,
        *,
        held: tuple[LeaseOwner, Lease] | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.session = session
        self.holding = SessionLease(session.id, store, bus, self.retry, held)
        self.lost = self.holding.lost
        self._store = store
        self._bus = bus
        self._clock = clock
        self._order = asyncio.Lock()
        self._changes = PendingChanges(self.holding.append, self._apply)
        self._drafts = DraftBuffer(self._flush_soon)
        self._keeps_soon = False
        self._works = ShieldedTasks(in_place=store.prompt)

    async def add_message(self, message: Message, *, takes: Sequence[str] = ()) -> Message:
        """`takes` are the inbox items that this message came from: those have reached the disk before."""
        message.join(self.session.id)
        message.time = message.time or MessageTime(self._clock())
        await self._record(PendingChange(message, takes=takes, synced=not takes))
        if any(isinstance(part, CompactionPart) for part in message.parts):
            faults.failpoint("FP-mid-compaction")
        return message

    def open_message(self, message: Message) -> Message:
        """Begin an answer. It is told of at once, like a delta, and kept with the first of its parts or within 250 ms:
        with an empty one nothing would be lost."""
        message.join(self.session.id)
        message.time = message.time or MessageTime(self._clock())
        self._add(message)
        self._changes.open(message)
        self._drafts.wake()
        return message

    async def take(self, item: InboxItem) -> Message:
        """Bring an inbox item into the transcript, exactly once whoever tries."""
        return await self.add_message(item.message, takes=[item.id])

    async def discard(self, item_id: str) -> None:
        """Take an inbox item that is not wanted any more, so that nobody else does."""
        await self._record(PendingChange(takes=[item_id]))

    async def put_message(self, message: Message) -> None:
        """Keep what became known about a message: how it finished, what it used. Its parts have their own way."""
        await self._record(PendingChange() if self._changes.holds(message) else PendingChange(head=message))

    def put_message_soon(self, message: Message) -> None:
        """As `put_message`, without waiting: where something is kept next anyway."""
        self._changes.hold(message)
        self._drafts.wake()

    async def put_part(self, part: AnyPart, message: Message, *, synced: bool = False) -> AnyPart:
        """Add a part to a message of the session, or give it its new value. A call only makes legal moves. Before
        something happens of which a machine that comes back must know, it is to be `synced`."""
        part = _moved(part, message)
        _reach_call(part, "FP-before-record-call", "FP-after-effect-before-result")
        await self._record(PendingChange(self._final(part, message), into=message, synced=synced))
        _reach_call(part, "FP-after-record-call", "FP-after-result")
        return part

    def put_part_soon(self, part: AnyPart, message: Message) -> None:
        """As `put_part`, without waiting: it counts at once, and is kept in one write with what follows, or soon.
        Whoever writes next and waits hears of a failure."""
        message.put_part(part)
        self._changes.add(PendingChange(self._final(part, message), synced=False), watched=False)
        self._drafts.wake()

    def keep_soon(self) -> None:
        """What was put soon is kept now, unless something follows at once that keeps it all."""
        if not self._keeps_soon:
            self._keeps_soon = True
            asyncio.get_running_loop().call_soon(self._keep_waiting)

    async def update(self, update: SessionUpdate) -> None:
        async with self._order:
            stored = await self._store.update(self.session.id, update)
            _adopt(self.session, stored)
            changes: dict[str, Any] = {name: getattr(stored, name) for name in ("title", "mode", "agent")}
            self._tell(SessionUpdatedEvent(changes=changes, seq=stored.seq))

    def tell(self, event: Event) -> None:
        """Tell of what happened after the changes that came before it, once those are kept and told."""
        if not self._changes.hold_back(event):
            self._bus.publish(event)

    async def told(self) -> None:
        """Once nothing that happened is held back any more."""
        if self._changes.holds_news:
            await self._works.do(self._flush_quietly())

    def show(self, delta: PartDeltaEvent | ToolInputDeltaEvent, current: Callable[[], AnyPart]) -> None:
        """Tell of a piece as it arrives; `current` gives the part so far, which is stored within 250 ms or 4 KiB."""
        self._tell(delta)
        self.draft(delta.part_id, len(delta.delta), current)

    def draft(self, part_id: str, characters: int, current: Callable[[], AnyPart]) -> None:
        """Keep a part that is not final, as `current` gives it then, within 250 ms or 4 KiB."""
        self._drafts.add(part_id, characters, current)

    async def flush(self) -> None:
        """Keep what was shown, as drafts."""
        async with self._order:
            await self._changes.drain()
            if drafts := self._drafts.take():
                await self.holding.append(drafts, draft=True)
                faults.failpoint("FP-mid-stream")

    @property
    def takes_input(self) -> bool:
        """Whether an inbox item is on its way: somebody waits for it, was cancelled then, or a full disk refused it."""
        return self._changes.takes_input

    async def retry(self) -> bool:
        """Try again to keep what a full disk refused; says whether nothing waits any more."""
        await self._works.do(self._drain_in_order())
        return not self._changes

    async def close(self) -> None:
        """Keep what was shown, give the session back, and stop."""
        self._drafts.stop()
        await self.holding.stop()
        await self._works.settled()
        if not self.lost.is_set():
            await self._works.do(self.flush())
        await self.holding.give_back()

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    def _add(self, message: Message, seq: int | None = None) -> None:
        self.session.add_message(message)
        self._tell(MessageAddedEvent(role=message.role, part_count=len(message.parts), message_id=message.id, seq=seq))

    def _final(self, part: AnyPart, message: Message) -> AnyPart:
        part.adopt(message.id, self.session.id)
        self._drafts.drop(part.id)
        return part

    def _apply(self, entry: PendingChange, seq: int) -> None:
        """What is kept counts from now on, and is told."""
        if entry.news is not None:
            self._bus.publish(entry.news)
        elif isinstance(entry.value, Message):
            self._add(entry.value, seq)
        elif entry.value is not None:
            if entry.into is not None and not _has_ended(entry.into, entry.value):
                entry.into.put_part(entry.value)
            self._drafts.drop(entry.value.id)  # of what a thread told while it was written
            self._tell(PartUpdatedEvent(part=entry.value, seq=seq))

    async def _record(self, entry: PendingChange) -> None:
        """A caller that is cancelled does not tear a change apart: it is kept, applied and told, or none of it."""
        self._changes.add(entry)
        await self._works.do(self._drain_in_order())
        self._changes.check(entry)

    async def _drain_in_order(self) -> None:
        async with self._order:
            self._keeps_soon = False  # it is kept now
            await self._changes.drain()

    def _keep_waiting(self) -> None:
        if self._keeps_soon:
            self._works.start(self._drain_in_order())

    def _flush_soon(self) -> None:
        """Unless somebody is about to keep all there is."""
        if self._drafts or not self._works:
            self._works.start(self._flush_quietly())

    async def _flush_quietly(self) -> None:
        """A draft that cannot be kept was told of; the final value comes with its own error."""
        try:
            await self.flush()
        except StoreError as error:
            if not isinstance(error, StorageFullError | LeaseLostError):
                self._tell(ErrorEvent(error_type=type(error).__name__, message=error.message))

    def _tell(self, event: Event) -> None:
        self._bus.publish(event if event.session_id else replace(event, session_id=self.session.id))


async def begin(session: Session, store: Store, bus: EventBus, *, holder: LeaseOwner | None = None) -> Journal:
    """Keep a new session, and write for it."""
    await store.create(StoredSession.of(session))
    held = (holder, await holder.acquire(session.id)) if holder else None
    return Journal(session, store, bus, held=held)


async def resume(
    session_id: str,
    store: Store,
    bus: EventBus,
    *,
    holder: LeaseOwner | None = None,
    take_over: bool = False,
    describe: Describe = lambda _: "",
    repeats: bool = False,
) -> Journal:
    """Own a stored session and go on with it; what a crash left open is ended first, or with `repeats` put back where
    a call is safe to repeat."""
    held = (holder, await holder.acquire(session_id, take_over=take_over)) if holder else None
    transcript = await store.load(session_id)
    repaired = repair(transcript, now_ms(), describe, repeats=repeats)
    if repaired:
        await store.append(session_id, repaired, token=held[1].token if held else None)
    return Journal(session_from(transcript.session, transcript.messages), store, bus, held=held)


def session_from(stored: StoredSession, messages: list[Message]) -> Session:
    session = Session(id=stored.id, parent_id=stored.parent_id, forked_from=stored.forked_from)
    _adopt(session, stored)
    session.messages = messages
    return session


def _adopt(session: Session, stored: StoredSession) -> None:
    session.title, session.agent = stored.title, stored.agent
    session.workspace_directory = stored.workspace_directory
    session.mode = stored.mode  # type: ignore[assignment]  a newer version's mode is kept as it is
    session.time = stored.time or session.time


def _moved(part: AnyPart, message: Message) -> AnyPart:
    """A call after the move from what is known of it; an illegal one raises."""
    known = next((known for known in message.parts if known.id == part.id), None)
    if not isinstance(part, ToolPart) or not isinstance(known, ToolPart):
        return part
    if known.ended and part.state.status != known.state.status:
        raise InvalidStateTransition(known.state.status, part.state.status, ())
    state = known.update_state(part.state).state
    return part if state is part.state else replace(part, state=state)


def _has_ended(message: Message, part: AnyPart) -> bool:
    """Whether a call has ended while it still waited to be kept as running, as where the disk is full."""
    if not isinstance(part, ToolPart) or part.ended:
        return False
    return any(known.id == part.id and known.ended for known in message.get_parts_by_type(ToolPart))


def _reach_call(part: AnyPart, running: str, ended: str) -> None:
    if isinstance(part, ToolPart) and part.state.status != "pending":
        faults.failpoint(ended if part.ended else running)
