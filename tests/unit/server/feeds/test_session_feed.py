"""A session feed sends stored values and deltas in the order in which they occurred."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import msgspec
import pytest

from outrider.engine.engine import Engine
from outrider.errors import StoreUnavailableError
from outrider.event_bus import EventBus
from outrider.server.event_stream import SessionFeedRegistry
from outrider.types.events import Event, LoopStartedEvent, MessageAddedEvent, PartDeltaEvent, StateChangedEvent


class StoredChange(msgspec.Struct):
    seq: int


class SlowStore:
    """Returns each change when the test releases it, however long ago it was stored."""

    def __init__(self) -> None:
        self.given: asyncio.Queue[StoredChange] = asyncio.Queue()

    async def get(self, session_id: str) -> StoredChange:
        return StoredChange(0)

    async def changes(self, session_id: str, *, after: int, follow: bool = True) -> AsyncGenerator[StoredChange, None]:
        while follow:
            yield await self.given.get()


class RestartedStore(SlowStore):
    """Its readers end when the test lets them, and fail if it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ending, self.may_end = asyncio.Event(), asyncio.Event()

    async def changes(self, session_id: str, *, after: int, follow: bool = True) -> AsyncGenerator[StoredChange, None]:
        try:
            while follow:
                change = await self.given.get()
                if change.seq < 0:
                    raise StoreUnavailableError("the database was restarted")
                yield change
        finally:
            if follow:
                self.is_ending.set()
                await self.may_end.wait()


class Half:
    """As much of an engine as a feed knows."""

    def __init__(self, store: SlowStore | None = None) -> None:
        self.store = store or SlowStore()
        self.bus = EventBus()

    def publish(self, *events: Event) -> None:
        for event in events:
            self.bus.publish(event)


def text_event(seq: int | None) -> Event:
    return MessageAddedEvent(session_id="s", role="user", message_id="m", seq=seq)


def piece(text: str) -> Event:
    return PartDeltaEvent(session_id="s", message_id="m", part_id="p", delta=text)


async def received_frames(engine: Half, count: int, work: Any) -> list[Any]:
    """The first frames that a client gets, as numbers of changes and names of events."""
    frames: list[Any] = []
    whole = cast("Engine", engine)
    async with aclosing(SessionFeedRegistry(whole).stream_frames("s", 0)) as following:
        await anext(following)
        working = asyncio.create_task(work)
        async with asyncio.timeout(30):
            while len(frames) < count:
                frames += read(await anext(following))
        await working
    return frames


def read(body: bytes) -> list[Any]:
    received: list[Any] = []
    for frame in body.split(b"\n\n"):
        if not frame or frame.startswith(b":"):
            continue
        lines = dict(line.split(b": ", 1) for line in frame.split(b"\n"))
        if lines[b"event"] == b"change":
            received.append(int(lines[b"id"]))
        else:
            received += [event.get("delta") or event["type"] for event in msgspec.json.decode(lines[b"data"])]
    return received


async def test_what_happened_after_a_change_comes_after_it_also_where_the_store_is_late():
    engine = Half()

    async def work() -> None:
        engine.publish(StateChangedEvent(session_id="s", old_state="idle", new_state="calling_model"))
        engine.publish(text_event(3), LoopStartedEvent(session_id="s"), piece("an answer"))
        await asyncio.sleep(0.2)  # several moments
        await engine.store.given.put(StoredChange(3))

    assert await received_frames(engine, 4, work()) == ["StateChangedEvent", 3, "LoopStartedEvent", "an answer"]


async def test_a_later_change_that_took_the_place_of_the_one_that_was_reported_does_as_well():
    engine = Half()

    async def work() -> None:
        engine.publish(text_event(3), piece("an answer"))
        await engine.store.given.put(StoredChange(7))
        await asyncio.sleep(0.2)
        engine.publish(text_event(5), piece(" goes on"))

    assert await received_frames(engine, 3, work()) == [7, "an answer", " goes on"]


async def test_no_waiter_hangs_for_a_change_that_does_not_come():
    engine = Half()

    async def work() -> None:
        engine.publish(text_event(3), piece("an answer"), text_event(None), LoopStartedEvent(session_id="another"))

    assert await received_frames(engine, 1, work()) == ["an answer"]


@pytest.mark.parametrize("cancellations", [0, 1, 5])
async def test_a_client_that_comes_while_the_last_one_leaves_stays_connected(cancellations: int):
    store = RestartedStore()
    registry = SessionFeedRegistry(cast("Engine", Half(store)))
    first, second = registry.stream_frames("s", 0), registry.stream_frames("s", 0)
    await anext(first)
    await asyncio.sleep(0)  # the reader starts
    leaving = asyncio.create_task(first.aclose())
    await store.is_ending.wait()
    joining = asyncio.create_task(anext(second))
    for _ in range(cancellations):
        leaving.cancel()
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    store.may_end.set()
    await asyncio.wait([leaving])
    async with asyncio.timeout(10), aclosing(second):
        await joining
        await store.given.put(StoredChange(1))
        assert await anext(frame async for body in second for frame in read(body)) == 1


async def test_a_client_that_comes_after_the_store_has_failed_is_not_forgotten():
    store = RestartedStore()
    store.may_end.set()
    registry = SessionFeedRegistry(cast("Engine", Half(store)))
    first, second = registry.stream_frames("s", 0), registry.stream_frames("s", 0)
    async with asyncio.timeout(10), aclosing(first), aclosing(second):
        await anext(first)
        await store.given.put(StoredChange(-1))
        await store.is_ending.wait()
        await asyncio.sleep(0.05)
        await anext(second)
        await store.given.put(StoredChange(1))
        assert await anext(frame async for body in second for frame in read(body)) == 1
        assert [body async for body in first] == []


class GatedStore(SlowStore):
    """Returns sessions when the test opens the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def get(self, session_id: str) -> StoredChange:
        await self.gate.wait()
        return await super().get(session_id)


async def test_a_client_joins_a_running_feed_at_once_while_others_wait_for_its_start():
    store = GatedStore()
    registry = SessionFeedRegistry(cast("Engine", Half(store)))
    clients = [registry.stream_frames("s", 0) for _ in range(9)]
    *early, late = clients
    joining = [asyncio.ensure_future(anext(client)) for client in early]
    await asyncio.sleep(0.01)
    store.gate.set()
    await joining[0]
    assert not joining[-1].done()
    with pytest.raises(StopIteration):  # the client is added without a suspension
        late.__anext__().send(None)
    await asyncio.wait(joining)
    for client in clients:
        await client.aclose()
    await registry.close()
