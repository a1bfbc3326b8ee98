"""The journal writes changes of one moment in one batch; they have separate numbers and fail separately."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from outrider.errors import PartValidationError, StorageFullError
from outrider.event_bus import EventBus
from outrider.sessions.journal import FLUSH_SECONDS, Journal, create_journal
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import StoredValue
from outrider.sessions.session import Session
from outrider.types.events import ErrorEvent, PartUpdatedEvent
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import StepStartPart, TextPart, ToolPart
from outrider.types.tool_state import ToolPending


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[int] = []
        self.full = False

    async def append(self, session_id: str, values: Sequence[StoredValue], **options) -> int:
        await asyncio.sleep(0)
        if self.full:
            raise StorageFullError("no space left")
        last = await super().append(session_id, values, **options)
        self.writes.append(len(values))
        return last


class JournalHarness:
    def __init__(self) -> None:
        self.store = CountingStore()
        self.bus = EventBus()
        self.received: list[tuple[str, int]] = []
        self.bus.subscribe(PartUpdatedEvent, lambda event: self.received.append((event.part.text, event.seq)))

    async def journal(self) -> tuple[Journal, Message]:
        journal = await create_journal(Session(), self.store, self.bus)
        message = await journal.add_message(Message("assistant"))
        self.store.writes.clear()
        return journal, message


@pytest.fixture
def harness() -> JournalHarness:
    return JournalHarness()


async def texts(harness: JournalHarness, journal: Journal) -> list[str]:
    (message,) = (await harness.store.load(journal.session.id)).messages
    return [part.text for part in message.parts]


async def test_what_comes_together_is_one_write_and_every_part_has_its_own_number(harness: JournalHarness):
    journal, message = await harness.journal()
    async with journal:
        journal.put_part_soon(TextPart("a"), message)
        journal.put_part_soon(TextPart("b"), message)
        await journal.put_message(message)
        assert harness.store.writes == [3]
        assert [text for text, _ in harness.received] == await texts(harness, journal) == ["a", "b"]
        changes = [change async for change in harness.store.changes(journal.session.id, follow=False)]
        numbers = {change.part.text: change.seq for change in changes if hasattr(change, "part")}
        assert dict(harness.received) == numbers


async def test_changes_without_a_waiter_are_stored_too(harness: JournalHarness):
    journal, message = await harness.journal()
    async with journal:
        journal.put_part_soon(TextPart("a"), message)
        journal.flush_soon()
        assert len(message.parts) == 1
        assert harness.received == []
        for _ in range(10):
            await asyncio.sleep(0)
        assert await texts(harness, journal) == ["a"]
        assert [text for text, _ in harness.received] == ["a"]


async def test_the_flush_timer_starts_no_task_if_everything_is_stored(harness: JournalHarness):
    harness.store.prompt = False  # else a flush that does not wait needs no task of the loop
    journal, message = await harness.journal()
    started, loop = list[asyncio.Task[Any]](), asyncio.get_running_loop()

    def start_task(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> Any:
        started.append(asyncio.Task(work, loop=loop, **options))
        return started[-1]

    async with journal:
        journal.put_part_soon(TextPart("a"), message)
        await journal.put_message(message)
        loop.set_task_factory(start_task)
        await asyncio.sleep(FLUSH_SECONDS + 0.1)
        assert not started
        journal.put_part_soon(TextPart("b"), message)
        await asyncio.sleep(FLUSH_SECONDS + 0.1)
        assert await texts(harness, journal) == ["a", "b"]
        assert len(started) == 1
        loop.set_task_factory(None)


async def test_a_change_that_cannot_be_stored_fails_alone_and_the_next_waiter_gets_the_error(harness: JournalHarness):
    journal, message = await harness.journal()
    async with journal:
        journal.put_part_soon(TextPart("a"), message)
        journal.put_part_soon(TextPart("b", metadata={"not JSON": object()}), message)
        journal.put_part_soon(TextPart("c"), message)
        with pytest.raises(TypeError):
            await journal.put_message(message)
        assert await texts(harness, journal) == ["a", "c"]
        await journal.put_message(message)


async def test_a_part_without_a_proper_id_is_refused_at_once(harness: JournalHarness):
    journal, message = await harness.journal()
    async with journal:
        with pytest.raises(PartValidationError):
            journal.put_part_soon(TextPart("a", id="no id at all"), message)
        await journal.put_message(message)
        assert message.parts == []


async def test_what_happens_after_a_change_is_reported_after_it(harness: JournalHarness):
    journal, message = await harness.journal()
    harness.bus.subscribe(ErrorEvent, lambda event: harness.received.append((event.message, 0)))
    async with journal:
        journal.put_part_soon(TextPart("a"), message)
        journal.publish_event(ErrorEvent(error_type="x", message="after a"))
        assert harness.received == []
        await journal.put_part(TextPart("b"), message)
        assert harness.store.writes == [2]
        journal.publish_event(ErrorEvent(error_type="x", message="after b"))
        assert [text for text, _ in harness.received] == ["a", "after a", "b", "after b"]


async def test_a_full_disk_holds_back_no_news(harness: JournalHarness):
    journal, message = await harness.journal()
    harness.bus.subscribe(ErrorEvent, lambda event: harness.received.append((event.message, 0)))
    async with journal:
        harness.store.full = True
        journal.put_part_soon(TextPart("a"), message)
        journal.publish_event(ErrorEvent(error_type="x", message="one"))
        with pytest.raises(StorageFullError):
            await journal.put_part(TextPart("b"), message)
        journal.publish_event(ErrorEvent(error_type="x", message="two"))
        assert {"one", "two"} <= {text for text, _ in harness.received}
        harness.store.full = False
        assert await journal.retry_writes()
        assert [text for text, _ in harness.received][-2:] == ["a", "b"]


async def test_on_a_full_disk_pending_changes_stay_in_order(harness: JournalHarness):
    journal, message = await harness.journal()
    async with journal:
        harness.store.full = True
        journal.put_part_soon(TextPart("a"), message)
        with pytest.raises(StorageFullError):
            await journal.put_part(TextPart("b"), message)
        assert await texts(harness, journal) == []
        harness.store.full = False
        assert await journal.retry_writes()
        assert await texts(harness, journal) == ["a", "b"]
        assert [text for text, _ in harness.received] == ["a", "b"]


async def test_many_who_write_at_once_are_each_preserved_once(harness: JournalHarness):
    journal, message = await harness.journal()
    async with journal:
        await asyncio.gather(*(journal.put_part(TextPart(str(number)), message) for number in range(20)))
        assert await texts(harness, journal) == [str(number) for number in range(20)]
        assert len(harness.store.writes) <= 2
        assert [seq for _, seq in harness.received] == sorted({seq for _, seq in harness.received})


class AbsentMindedStore(MemoryStore):
    """Stores immediately and returns later."""

    async def append(self, session_id: str, values: Sequence[StoredValue], **options) -> int:
        last = await super().append(session_id, values, **options)
        await asyncio.sleep(0.05)
        return last


async def test_what_becomes_known_of_a_message_while_it_is_written_is_preserved_as_well():
    store = AbsentMindedStore()
    async with await create_journal(Session(), store, EventBus()) as journal:
        message = journal.open_message(Message("assistant"))
        journal.put_part_soon(TextPart("said"), message)
        await asyncio.sleep(0.01)
        message.finish, message.time = "tool_use", MessageTime(1, 2)
        await journal.put_message(message)
        (stored,) = (await store.load(journal.session.id)).messages
        assert stored.finish == "tool_use"


async def test_the_start_of_an_answer_is_stored_as_well(harness: JournalHarness):
    async with await create_journal(Session(), harness.store, harness.bus) as journal:
        message = journal.open_message(Message("assistant", [StepStartPart()]))
        await journal.put_message(message)
        (stored,) = (await harness.store.load(journal.session.id)).messages
        assert stored.parts == message.parts


class GatedStore(MemoryStore):
    """Writes once its gate is open."""

    prompt = False

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()
        self.gate.set()
        self.full = False

    async def append(self, session_id: str, values: Sequence[StoredValue], **options) -> int:
        if self.full:
            raise StorageFullError("no space left")
        self.asked.set()
        await self.gate.wait()
        return await super().append(session_id, values, **options)

    def shut(self) -> None:
        self.gate.clear()
        self.asked.clear()


async def test_what_a_thread_describes_a_call_while_its_end_is_written_does_not_replace_it():
    store = GatedStore()
    async with await create_journal(Session(), store, EventBus()) as journal:
        message = await journal.add_message(Message("assistant"))
        running = ToolPart("call", "tool", ToolPending().start(1))
        await journal.put_part(running, message)
        store.shut()
        ended = running.with_state(running.state.complete("the result", 2))
        end = asyncio.create_task(journal.put_part(ended, message))
        await store.asked.wait()
        journal.buffer_draft(running.id, 1, lambda: running)
        store.gate.set()
        await end
        await journal.flush_drafts()
        (stored,) = (await store.load(journal.session.id)).messages
        assert [part.ended for part in stored.parts] == [True]


async def test_an_attempt_that_is_broken_off_loses_nothing_of_what_a_full_disk_refused():
    store = GatedStore()
    async with await create_journal(Session(), store, EventBus()) as journal:
        message = await journal.add_message(Message("assistant"))
        store.full = True
        with pytest.raises(StorageFullError):
            await journal.put_part(TextPart("said"), message)
        store.full = False
        store.shut()
        attempt = asyncio.create_task(journal.retry_writes())
        await store.asked.wait()
        attempt.cancel()
        await asyncio.wait([attempt])
        store.gate.set()
    (stored,) = (await store.load(journal.session.id)).messages
    assert [part.text for part in stored.parts] == [part.text for part in message.parts] == ["said"]


class InterruptedStore(MemoryStore):
    """Its next append is cancelled, before or after the store has written."""

    interrupts = ""

    async def append(self, session_id: str, values: Sequence[StoredValue], **options: Any) -> int:
        await asyncio.sleep(0)
        interrupts, self.interrupts = self.interrupts, ""
        if interrupts == "before":
            raise asyncio.CancelledError
        last = await super().append(session_id, values, **options)
        if interrupts == "after":
            raise asyncio.CancelledError
        return last


@pytest.mark.parametrize("interrupts", ["before", "after"])
async def test_a_write_that_is_cancelled_is_repeated_with_the_next_one(interrupts: str):
    store = InterruptedStore()
    async with await create_journal(Session(), store, EventBus()) as journal:
        message = await journal.add_message(Message("assistant"))
        store.interrupts = interrupts
        one = asyncio.create_task(journal.put_part(TextPart("one"), message))
        other = asyncio.create_task(journal.put_part(TextPart("other"), message))
        await asyncio.wait([one, other])
        assert (one.cancelled(), other.cancelled()) == (True, False)
    (stored,) = (await store.load(journal.session.id)).messages
    assert [part.text for part in stored.parts] == [part.text for part in message.parts] == ["one", "other"]


async def test_flushing_events_waits_for_a_slow_store():
    store, bus, received = GatedStore(), EventBus(), []
    bus.subscribe(ErrorEvent, lambda event: received.append(event.message))
    async with await create_journal(Session(), store, bus) as journal:
        message = await journal.add_message(Message("assistant"))
        store.shut()
        journal.put_part_soon(TextPart("said"), message)
        journal.publish_event(ErrorEvent(error_type="x", message="after it"))
        asyncio.get_running_loop().call_later(0.05, store.gate.set)
        assert received == []
        await journal.flush_events()
        assert received == ["after it"]
