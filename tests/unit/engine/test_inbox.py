"""The sender of an input learns of its end once, also if no process works on the session any more."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from outrider import Engine, Tool
from outrider.errors import LeaseLostError, StorageFullError, StoreError, StoreUnavailableError
from outrider.providers.scripted import call
from outrider.sessions.leases import current_process
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import InboxItem, StoredValue
from outrider.types.messages import Message
from outrider.types.parts import TextPart, ToolPart
from tests.unit.engine.busy_engine import Endless, engine_on


class Trouble(MemoryStore):
    """A store in which consuming or putting an input can fail or wait."""

    def __init__(self) -> None:
        super().__init__()
        self.on_put: Exception | None = None
        self.on_take: Exception | None = None
        self.on_look: Exception | None = None
        self.on_consume: Callable[[], Any] | None = None
        self.taking: Callable[[], Any] | None = None

    async def put_inbox(self, item: InboxItem) -> InboxItem:
        if self.on_put is not None:
            raise self.on_put
        return await super().put_inbox(item)

    async def inbox(self, session_id: str) -> Sequence[InboxItem]:
        if self.on_look is not None:
            raise self.on_look
        return await super().inbox(session_id)

    async def append(
        self, session_id: str, values: Sequence[StoredValue], *, takes: Sequence[str] = (), **more: Any
    ) -> int:
        if takes and self.on_take is not None:
            raise self.on_take
        if takes and self.taking is not None:
            await self.taking()
        seq = await super().append(session_id, values, takes=takes, **more)
        if takes and self.on_consume is not None:
            await self.on_consume()
        return seq


def texts_of(engine: Engine, session_id: str) -> list[str]:
    return [message.get_text_content() for message in engine.live[session_id].session.messages]


async def test_an_input_that_is_put_again_while_it_is_consumed_ends_with_its_turn():
    store = Trouble()
    stored, release = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        stored.set()
        await release.wait()

    store.on_consume = wait
    async with engine_on(store, ["the answer"]) as engine:
        session_id = await engine.create()
        first = await engine.enqueue(session_id, "hello", input_id="one")
        await stored.wait()
        again = await engine.enqueue(session_id, "hello", input_id="one")
        assert not first.done()
        assert not again.done()
        release.set()
        assert (await first).output == (await again).output == "the answer"


async def test_an_input_that_was_aborted_while_consumed_is_not_consumed_again():
    store = Trouble()
    started, release = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        started.set()
        await release.wait()

    store.taking = wait
    async with engine_on(store, ["the answer"]) as engine:
        session_id = await engine.create()
        first = await engine.enqueue(session_id, "hello")
        await started.wait()
        await engine.abort(session_id)
        assert (await first).reason == "aborted"
        second = await engine.enqueue(session_id, "and now?")
        for _ in range(5):
            await asyncio.sleep(0)
        release.set()
        assert (await second).output == "the answer"
        assert texts_of(engine, session_id) == ["hello", "and now?", "the answer"]


async def test_a_cancelled_waiter_does_not_affect_other_waiters():
    gate = asyncio.Event()

    async def work() -> str:
        """Work."""
        await gate.wait()
        return "worked"

    async with engine_on(MemoryStore(), [[call("work")], "the answer"], Tool(work)) as engine:
        session_id = await engine.create()
        first = await engine.enqueue(session_id, "hello", input_id="one")
        again = await engine.enqueue(session_id, "hello", input_id="one")
        first.cancel()
        gate.set()
        assert (await again).output == "the answer"


@pytest.mark.parametrize("error", [StorageFullError("full"), StoreError("odd")])
async def test_an_input_that_cannot_be_consumed_is_reported_as_failed_and_consumed_once_later(error: StoreError):
    store = Trouble()
    async with engine_on(store, ["one", "two"]) as engine:
        session_id = await engine.create()
        store.on_take = error
        end = await engine.prompt(session_id, "hello")
        assert (end.reason, end.error) == ("error", error)
        store.on_take = None
        assert (await engine.prompt(session_id, "and now?")).reason == "completed"
        inputs = [text for text in texts_of(engine, session_id) if text in ("hello", "and now?")]
        assert inputs == ["hello", "and now?"]
        assert not await engine.queued(session_id)


async def test_while_the_disk_is_full_each_input_is_reported_to_have_failed():
    store = Trouble()
    async with engine_on(store, ["one"]) as engine:
        session_id = await engine.create()
        store.on_take = StorageFullError("full")
        for _ in range(3):
            assert (await engine.prompt(session_id, "hello", input_id="one")).error is store.on_take
        store.on_take = None
        assert (await engine.prompt(session_id, "now")).output == "one"
        assert texts_of(engine, session_id) == ["hello", "now", "one"]


async def test_an_input_that_could_not_be_put_leaves_no_waiter():
    store = Trouble()
    async with engine_on(store, ["one"]) as engine:
        session_id = await engine.create()
        store.on_put = StoreUnavailableError("away")
        with pytest.raises(StoreUnavailableError):
            await engine.enqueue(session_id, "hello", input_id="one")
        store.on_put = None
        assert (await engine.prompt(session_id, "hello", input_id="one")).output == "one"
        assert texts_of(engine, session_id) == ["hello", "one"]


async def test_a_queued_input_fails_if_the_store_is_unavailable():
    store = Trouble()
    async with engine_on(store, ["one", "two"]) as engine:
        session_id = await engine.create()
        store.on_look = StoreUnavailableError("away")
        ends = [await engine.enqueue(session_id, text) for text in ("hello", "and then this")]
        assert [(await end).error for end in ends] == [store.on_look] * 2
        store.on_look = None
        assert len(await engine.queued(session_id)) == 2


async def test_a_queued_input_of_a_closed_session_does_not_hang():
    store, endless = MemoryStore(), Endless()
    async with engine_on(store, [[call("work")], "went on"], endless.tool()) as engine:
        session_id = await engine.create()
        first = await engine.enqueue(session_id, "hello")
        await endless.began.wait()
        second = await engine.enqueue(session_id, "and then this")
        await engine.close(session_id)
        assert [(await end).reason for end in (first, second)] == ["aborted", "aborted"]
        assert [item.message.get_text_content() for item in await store.inbox(session_id)] == ["and then this"]


async def test_a_queued_input_of_a_session_that_is_taken_over_does_not_hang():
    store, endless = MemoryStore(), Endless()
    async with engine_on(store, [[call("work")], "went on"], endless.tool()) as engine:
        session_id = await engine.create()
        first = await engine.enqueue(session_id, "hello")
        await endless.began.wait()
        second = await engine.enqueue(session_id, "and then this")
        await store.acquire(session_id, current_process(), take_over=True)
        engine.live[session_id].journal.lease.mark_lost(LeaseLostError("taken over"))
        assert [(await end).reason for end in (first, second)] == ["error", "error"]


async def test_what_is_aborted_before_it_has_started_has_ended_too():
    async with engine_on(MemoryStore(), ["one", "two"]) as engine:
        session_id = await engine.create()
        await engine.prompt(session_id, "hello")
        live = engine.live[session_id]
        going_on = live.resume_turn()
        await live.abort()
        assert (await going_on).reason == "aborted"
        assert (await engine.prompt(session_id, "and now?")).output == "two"


async def test_a_session_that_is_wanted_while_it_is_closed_is_opened_once_that_is_done():
    store, endless = MemoryStore(), Endless()
    async with engine_on(store, [[call("work")], "went on"], endless.tool()) as engine:
        session_id = await engine.create()
        first = await engine.enqueue(session_id, "hello")
        await endless.began.wait()
        closing = asyncio.create_task(engine.close(session_id))
        await asyncio.sleep(0)  # the turn is aborted, and has not ended yet
        assert (await engine.prompt(session_id, "and now?")).output == "went on"
        await closing
        assert (await first).reason == "aborted"
        [ended] = [part for message in (await store.load(session_id)).messages for part in calls_of(message)]
        assert ended.state.reason == "canceled", "as whoever closed it has said, and not as if it had crashed"


def calls_of(message: Message) -> list[Any]:
    return list(message.get_parts_by_type(ToolPart))


async def test_an_input_that_comes_while_the_session_is_closed_is_left_to_the_next_owner():
    store = MemoryStore()
    async with engine_on(store, ["one"]) as engine:
        session_id = await engine.create()
        closed = engine.live[session_id]
        await engine.close(session_id)
        await store.put_inbox(InboxItem(session_id=session_id, message=Message("user", [TextPart("hello")]), id="one"))
        closed.wake()
        assert not closed.is_busy
        assert (await engine.prompt(session_id, "hello", input_id="one")).output == "one"


class CountedStore(MemoryStore):
    """Counts how often the inbox is read."""

    reads = 0

    async def inbox(self, session_id: str) -> Sequence[InboxItem]:
        self.reads += 1
        return await super().inbox(session_id)


async def test_a_turn_reads_the_inbox_once_when_it_starts():
    store = CountedStore()
    async with engine_on(store, ["done"]) as engine:
        await engine.prompt(await engine.create(), "hello")
    assert store.reads == 3, "once at the start, after the answer, and for the next turn"


async def test_input_of_another_process_during_a_turn_is_taken_before_the_next_request():
    store = MemoryStore()

    async def add_input() -> str:
        """Add input, as another process does."""
        message = Message("user", [TextPart("more")])
        await store.put_inbox(InboxItem(session_id=session_id, message=message, delivery="steer"))
        return "added"

    script = [call("add_input", "c1"), call("add_input", "c2"), "done"]
    async with engine_on(store, script, Tool(add_input, repeats=None)) as engine:
        session_id = await engine.create()
        await engine.prompt(session_id, "hello")
        assert not await store.inbox(session_id)
        texts = [message.join_text() for message in (await store.load(session_id)).messages]
    assert texts == ["hello", "", "more", "", "more", "done"]
