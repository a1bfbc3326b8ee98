"""What happens in one session, read once and given to all who follow it."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from outrider.engine.engine import Engine
from outrider.server.session_family import Family
from outrider.types.events import (
    Event,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    SessionUpdatedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
)

HEARTBEAT = b": still here\n\n"

_encode = msgspec.json.Encoder(enc_hook=lambda part: part.to_dict()).encode


class Frame(msgspec.Struct, frozen=True):
    """`seq` is the session's number of a kept change; None for what is only shown, which a slow client may miss."""

    body: bytes
    seq: int | None = None


def change_frame(change: Any) -> Frame:
    """A kept value. Its number is the event's id, so that a client that comes back says where it was."""
    return Frame(b"id: %d\nevent: change\ndata: %b\n\n" % (change.seq, _encode(change)), change.seq)


def live_frame(events: Iterable[Event]) -> Frame:
    """What happened in one moment, pieces of the same text joined."""
    return Frame(b"event: live\ndata: %b\n\n" % _encode(joined(events)))


def joined(events: Iterable[Event]) -> list[Event]:
    """Deltas of the same part that follow each other become one: a client draws no faster anyway."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        match last, event:
            case (PartDeltaEvent(), PartDeltaEvent()) | (ToolInputDeltaEvent(), ToolInputDeltaEvent()) if (
                last.part_id == event.part_id
            ):
                result[-1] = msgspec.structs.replace(last, delta=last.delta + event.delta)
            case (ToolOutputEvent(), ToolOutputEvent()) if (last.call_id, last.stream) == (event.call_id, event.stream):
                result[-1] = msgspec.structs.replace(last, output=last.output + event.output)
            case _:
                result.append(event)
    return result


class Batch(msgspec.Struct, frozen=True):
    """`first` is the number of its first kept change, None if all of it is only shown."""

    frames: tuple[Frame, ...]
    body: bytes
    first: int | None

    @classmethod
    def of(cls, frames: Sequence[Frame]) -> "Batch":
        first = next((frame.seq for frame in frames if frame.seq is not None), None)
        return cls(tuple(frames), b"".join([frame.body for frame in frames]), first)

    @property
    def last(self) -> int | None:
        return next((frame.seq for frame in reversed(self.frames) if frame.seq is not None), None)

    def after(self, seq: int) -> "Batch":
        """Without the changes that somebody has seen; nearly always that is all of it."""
        if self.first is None or self.first > seq:
            return self
        return Batch.of([frame for frame in self.frames if frame.seq is None or frame.seq > seq])

    def kept(self) -> "Batch":
        """Without what is only shown."""
        return Batch.of([frame for frame in self.frames if frame.seq is not None])


WAITING = 512  # batches


class Listener:
    def __init__(self, limit: int = WAITING) -> None:
        self._limit = limit
        self._batches: deque[Batch] = deque()
        self._arrived = asyncio.Event()
        self.closed = False

    def put(self, batch: Batch) -> None:
        """A client that is too slow for what is kept is let go: it comes back with the last number it saw."""
        if self.closed:
            return
        if len(self._batches) >= self._limit:
            if batch.first is None:
                return
            self._batches = deque(waiting.kept() for waiting in self._batches if waiting.first is not None)
            self.closed = len(self._batches) >= self._limit
        self._batches.append(batch)
        self._arrived.set()

    def close(self) -> None:
        self.closed = True
        self._arrived.set()

    async def take(self) -> Batch | None:
        """What has come next; None once it is over."""
        if not self._batches and not self.closed:
            self._arrived.clear()
            await self._arrived.wait()
        return self._batches.popleft() if self._batches else None


MOMENT = 0.03  # seconds; what happens is sent in moments
AUDIENCE = 100  # followers for whom a moment lasts twice as long: writing to all of them must not slow what they follow
PATIENCE = 30  # moments in which a change has to come that the bus has told of
SILENCE = 15.0  # seconds, after which a client hears that the server is still there


class Feed:
    """Runs while somebody follows."""

    def __init__(self, session_id: str, engine: Engine, family: Family) -> None:
        self._session_id = session_id
        self._family = family
        self._engine = engine
        self._listeners: set[Listener] = set()
        self._shown: list[Event] = []
        self._early: deque[tuple[int, Event]] = deque()  # each with the number of a change that happened before it
        self._told = self._read = 0  # the newest numbers that the bus has told of, and that the store has given
        self._frames: list[Frame] = []
        self._moment: asyncio.TimerHandle | None = None
        self._pump: asyncio.Task[None] | None = None
        self._quiet = False
        self._moments = 0  # since a change came that something waits for

    @property
    def idle(self) -> bool:
        return not self._listeners

    async def follow(self, after: int) -> AsyncGenerator[bytes]:
        """Everything newer than number `after`, then what happens; each kept value once, none missed."""
        listener = Listener()
        await self._join(listener)
        try:
            yield HEARTBEAT  # from now on nothing is missed: who waits for this may set something going
            async with aclosing(self._engine.store.changes(self._session_id, after=after, follow=False)) as kept:
                async for change in kept:
                    after = change.seq
                    yield change_frame(change).body
            while (batch := await listener.take()) is not None:
                news = batch.after(after)
                after = news.last or after
                yield news.body
        finally:
            await self._leave(listener)

    async def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        await self._stop()

    async def _join(self, listener: Listener) -> None:
        """The listener hears all that is newer than what the store holds now, so the two overlap and leave no gap."""
        if self._pump is None:
            seq = (await self._engine.store.get(self._session_id)).seq
            if self._pump is None:
                self._pump = asyncio.create_task(self._run(seq))
        self._listeners.add(listener)

    async def _leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        if self.idle:
            await self._stop()

    async def _stop(self) -> None:
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
            await asyncio.wait([pump])

    async def _run(self, seq: int) -> None:
        """Whatever ends the reading ends the following: clients come back and say where they were."""
        self._told = self._read = seq
        unsubscribe = self._engine.bus.subscribe_all(self._hearing(asyncio.get_running_loop()))
        self._beat()
        try:
            async with aclosing(self._engine.store.changes(self._session_id, after=seq)) as changes:
                async for change in changes:
                    self._end_shown()
                    self._soon(change_frame(change))
                    self._come_to(change.seq)
        finally:
            self._send()
            unsubscribe()
            self._pulse.cancel()
            for listener in self._listeners:
                listener.close()

    def _hearing(self, loop: asyncio.AbstractEventLoop) -> Callable[[Event], None]:
        def hear(event: Event) -> None:
            own = event.session_id == self._session_id
            if not (own or self._family.concerns(event, self._session_id)):
                return
            if not own or _only_shown(event):
                loop.call_soon_threadsafe(self._show, event, self._told)
            else:
                self._told = max(self._told, _number(event))

        return hear

    def _show(self, event: Event, told: int) -> None:
        """What happened after a change waits for it: the store may give it a moment after the bus has told of it."""
        if self._early or told > self._read:
            self._early.append((told, event))
        else:
            self._shown.append(event)
        self._wake()

    def _come_to(self, seq: int) -> None:
        self._read, self._moments = seq, 0
        while self._early and self._early[0][0] <= seq:
            self._shown.append(self._early.popleft()[1])

    def _end_shown(self) -> None:
        """In the order in which things happened: what was shown before a value was kept is sent before it."""
        if self._shown:
            shown, self._shown = self._shown, []
            self._frames.append(live_frame(shown))

    def _soon(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._wake()

    def _wake(self) -> None:
        """The first thing that happens begins a moment, at whose end all of it is sent."""
        if self._moment is None:
            seconds = MOMENT * (1 + len(self._listeners) / AUDIENCE)
            self._moment = asyncio.get_running_loop().call_later(seconds, self._send)

    def _send(self) -> None:
        if self._moment is not None:
            self._moment.cancel()
            self._moment = None
        self._release_late()
        self._end_shown()
        if self._frames:
            batch, self._frames, self._quiet = Batch.of(self._frames), [], False
            for listener in self._listeners:
                listener.put(batch)

    def _release_late(self) -> None:
        """Nobody waits for ever for a change that does not come."""
        if not self._early:
            return
        self._moments += 1
        if self._moments > PATIENCE:
            self._come_to(self._early[-1][0])
        self._wake()

    def _beat(self) -> None:
        if self._quiet:
            self._soon(Frame(HEARTBEAT))
        self._quiet = True
        self._pulse = asyncio.get_running_loop().call_later(SILENCE, self._beat)


class Feeds:
    """The feeds of one server, by session."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._family = Family(engine)
        self._feeds: dict[str, Feed] = {}

    async def follow(self, session_id: str, after: int) -> AsyncGenerator[bytes]:
        feed = self._feeds.setdefault(session_id, Feed(session_id, self._engine, self._family))
        try:
            async with aclosing(feed.follow(after)) as frames:
                async for frame in frames:
                    yield frame
        finally:
            if feed.idle:
                self._feeds.pop(session_id, None)

    async def close(self) -> None:
        for feed in list(self._feeds.values()):
            await feed.close()
        self._family.close()


def _only_shown(event: Event) -> bool:
    """Values that are kept come with their number from the store; here goes what nobody keeps."""
    match event:
        case PartUpdatedEvent(seq=seq) | SessionUpdatedEvent(seq=seq):
            return seq is None
        case MessageAddedEvent():
            return False
        case _:
            return True


def _number(event: Event) -> int:
    """Of the change that it tells of; 0 for an answer that has just begun."""
    match event:
        case PartUpdatedEvent(seq=seq) | SessionUpdatedEvent(seq=seq) | MessageAddedEvent(seq=seq):
            return seq or 0
        case _:
            return 0
