"""The journal stores, applies and publishes in this order, and loses nothing that was shown."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from outrider.errors import InvalidStateTransition, LeaseLostError, StorageFullError
from outrider.event_bus import EventBus
from outrider.permissions.redaction.redactor import Redactor
from outrider.sessions.journal import FLUSH_SECONDS, Journal, create_journal, resume_journal
from outrider.sessions.leases import LeaseOwner, current_process
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import InboxItem, Lease, SessionUpdate, StoredSession, StoredValue
from outrider.sessions.redacted_store import redact_store
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.types.events import ErrorEvent, Event, PartDeltaEvent, PartUpdatedEvent
from outrider.types.messages import Message, text_message
from outrider.types.parts import TextPart, ToolPart
from outrider.types.tool_state import ToolPending


class SmallStore(MemoryStore):
    """A store whose disk can be full, and that can be slow."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.delay = 0.0
        self.drafts = 0
        self.appended: list[StoredValue] = []
        self.renewals = 0

    async def append(
        self,
        session_id: str,
        values: Sequence[StoredValue],
        *,
        draft: bool = False,
        **more: Any,
    ) -> int:
        await asyncio.sleep(self.delay)
        if self.full:
            raise StorageFullError("no space left")
        self.drafts += draft
        last = await super().append(session_id, values, draft=draft, **more)
        self.appended += values
        return last

    async def renew(self, lease: Lease) -> Lease:
        self.renewals += 1
        return await super().renew(lease)


@pytest.fixture
def store() -> SmallStore:
    return SmallStore()


@pytest.fixture
def received() -> list[Event]:
    return []


@pytest.fixture
def bus(received: list[Event]) -> EventBus:
    bus = EventBus()
    bus.subscribe_all(received.append)
    return bus


async def answer(journal: Journal) -> Message:
    return await journal.add_message(Message("assistant"))


def pending() -> ToolPart:
    return ToolPart(call_id="c1", tool="shell", state=ToolPending({"command": "ls"}, "", "ready"))


async def test_a_change_is_preserved_before_it_is_applied_and_applied_before_it_is_reported(
    store: SmallStore, bus: EventBus
):
    async with await create_journal(Session(), store, bus) as journal:
        seen: list[tuple[int, bool]] = []

        def look(event: PartUpdatedEvent) -> None:
            stored = any(value is event.part for value in store.appended)
            seen.append((event.seq or 0, stored and journal.session.messages[0].parts[-1] is event.part))

        bus.subscribe(PartUpdatedEvent, look)
        message = await answer(journal)
        await journal.put_part(TextPart("hello"), message)
        assert seen == [(3, True)]


async def test_what_the_store_holds_is_what_memory_holds(store: SmallStore, bus: EventBus):
    async with await create_journal(Session(title="t"), store, bus) as journal:
        await journal.add_message(text_message("user", "list it"))
        message = await answer(journal)
        call = await journal.put_part(pending(), message)
        running = await journal.put_part(call.with_state(call.state.start(1)), message)
        await journal.put_part(running.with_state(running.state.complete("a b", 2)), message)
        message.finish = "stop"
        message.time = type(message.time)(message.time.created, 5)
        await journal.put_message(message)
        await journal.update_session(SessionUpdate(title="new"))
        loaded = await store.load(journal.session.id)
        assert loaded.messages == journal.session.messages
        assert journal.session.title == loaded.session.title == "new"


async def test_a_call_has_one_end(store: SmallStore, bus: EventBus):
    async with await create_journal(Session(), store, bus) as journal:
        message = await answer(journal)
        call = await journal.put_part(pending(), message)
        ended = await journal.put_part(call.with_state(call.state.fail("no", 1, reason="denied")), message)
        before = (await store.get(journal.session.id)).seq
        with pytest.raises(InvalidStateTransition):
            await journal.put_part(call.with_state(call.state.start(2)), message)
        assert (await store.get(journal.session.id)).seq == before
        assert message.parts == [ended]


async def test_shown_text_is_stored_after_a_while(store: SmallStore, bus: EventBus):
    assert FLUSH_SECONDS < 0.25
    async with await create_journal(Session(), store, bus) as journal:
        message = await answer(journal)
        part = TextPart("Hel")
        part.adopt(message.id, journal.session.id)
        journal.publish_delta(PartDeltaEvent(message_id=message.id, part_id=part.id, delta="Hel"), lambda: part)
        async with asyncio.timeout(30):
            while not (loaded := await store.load(journal.session.id)).messages[0].parts:
                await asyncio.sleep(0.01)
        assert loaded.messages[0].get_text_content() == "Hel"
        assert loaded.drafts == {part.id}


async def test_shown_text_is_stored_within_4_kib(store: SmallStore, bus: EventBus):
    async with await create_journal(Session(), store, bus) as journal:
        message = await answer(journal)
        text, part_id = "", TextPart("").id
        started = time.monotonic()
        for _ in range(100):
            text += "x" * 100
            part = TextPart(text, id=part_id)
            part.adopt(message.id, journal.session.id)
            journal.publish_delta(
                PartDeltaEvent(message_id=message.id, part_id=part_id, delta="x" * 100), lambda part=part: part
            )
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            stored = (await store.load(journal.session.id)).messages[0].get_text_content()
            assert len(text) - len(stored) <= 4096
        await journal.put_part(TextPart("final", id=part_id), message)
        await asyncio.sleep(0.25)
        loaded = await store.load(journal.session.id)
        assert (loaded.messages[0].get_text_content(), loaded.drafts) == ("final", frozenset())
        assert store.drafts <= 4 + (time.monotonic() - started) / FLUSH_SECONDS


async def test_a_long_text_is_not_written_for_each_chunk_but_when_it_ends(store: SmallStore, bus: EventBus):
    chunk, chunks, part_id = "x" * 100_000, 100, TextPart("").id
    async with await create_journal(Session(), store, bus) as journal:
        message = await answer(journal)
        for number in range(1, chunks + 1):
            part = TextPart(chunk * number, id=part_id)
            part.adopt(message.id, journal.session.id)
            event = PartDeltaEvent(message_id=message.id, part_id=part_id, delta=chunk)
            journal.publish_delta(event, lambda part=part: part)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        stored = (await store.load(journal.session.id)).messages[0].get_text_content()
        assert 10 * len(chunk) < len(stored) < chunks * len(chunk)
    assert store.drafts < 20
    assert (await store.load(journal.session.id)).messages[0].get_text_content() == chunk * chunks


async def test_closing_stores_what_was_shown_last(store: SmallStore, bus: EventBus):
    async with await create_journal(Session(), store, bus) as journal:
        message = await answer(journal)
        part = TextPart("bye")
        part.adopt(message.id, journal.session.id)
        journal.publish_delta(PartDeltaEvent(message_id=message.id, part_id=part.id, delta="bye"), lambda: part)
    assert (await store.load(journal.session.id)).messages[0].get_text_content() == "bye"


async def test_sf_040_on_a_full_disk_changes_wait_in_order_and_are_preserved_when_there_is_space(
    store: SmallStore, bus: EventBus, received: list[Event]
):
    async with await create_journal(Session(), store, bus) as journal:
        message = await answer(journal)
        call = await journal.put_part(pending(), message)
        store.full = True
        for change in (journal.put_part(TextPart("one"), message), journal.add_message(text_message("user", "two"))):
            with pytest.raises(StorageFullError):
                await change
        assert [event.error_type for event in received if isinstance(event, ErrorEvent)] == ["StorageFullError"] * 2
        assert len(journal.session.messages) == 1
        assert message.parts == [call]
        store.full = False
        await journal.put_part(TextPart("three"), message)
        loaded = await store.load(journal.session.id)
        assert loaded.messages == journal.session.messages
        assert [part.text for part in loaded.messages[0].parts[1:]] == ["one", "three"]
        assert await journal.retry_writes()


async def test_sf_021_an_owner_that_was_replaced_cannot_write_and_is_reported(store: SmallStore, bus: EventBus):
    journal = await create_journal(Session(), store, bus, lease_owner=LeaseOwner(store, current_process()))
    message = await answer(journal)
    other = await resume_journal(
        journal.session.id, store, bus, lease_owner=LeaseOwner(store, current_process()), take_over=True
    )
    received: list[Event] = []
    bus.subscribe_all(received.append)
    for _ in range(2):
        with pytest.raises(LeaseLostError):
            await journal.put_part(TextPart("late"), message)
    assert journal.is_lost
    assert [event.error_type for event in received if isinstance(event, ErrorEvent)] == ["LeaseLostError"]
    await other.add_message(text_message("user", "mine"))
    await journal.close()
    await other.add_message(text_message("user", "still mine"))
    await other.close()


async def test_a_lease_is_renewed_while_the_journal_is_open(store: SmallStore, bus: EventBus):
    session = Session()
    await create_journal(session, store, bus)
    lease = await store.acquire(session.id, current_process(), ttl_ms=60)
    async with Journal(session, store, bus, held=(LeaseOwner(store, current_process()), lease)) as journal:
        lost = asyncio.Event()
        journal.lease.on_lost = lost.set
        while not store.renewals:
            await asyncio.sleep(0.005)
        await store.acquire(session.id, current_process(), take_over=True)
        await asyncio.wait_for(lost.wait(), 30)
        assert journal.is_lost


class ForwardingStore:
    """A store of a program that forwards to a store in memory, and sends each write to another system first."""

    def __init__(self) -> None:
        self._inner = MemoryStore()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append(self, *arguments: Any, **more: Any) -> int:
        await asyncio.sleep(0.01)
        return await self._inner.append(*arguments, **more)


class SlowUpdates(MemoryStore):
    """A store that suspends in one of its writes, which delays the others."""

    async def update(self, session_id: str, update: SessionUpdate) -> StoredSession:
        await asyncio.sleep(0.01)
        return await super().update(session_id, update)


STORES_THAT_SUSPEND: dict[str, Callable[[], Any]] = {
    "subclass": SlowUpdates,
    "redacted subclass": lambda: redact_store(SlowUpdates(), Redactor()),
    "forwarding": ForwardingStore,
    "guarded and redacted": lambda: redact_store(cast("Store", ForwardingStore()), Redactor()),
}


@pytest.mark.parametrize("make_store", STORES_THAT_SUSPEND.values(), ids=STORES_THAT_SUSPEND)
async def test_a_cancelled_caller_loses_no_message_with_a_store_of_the_program(
    make_store: Callable[[], Any], bus: EventBus
):
    store = make_store()
    journal = await create_journal(Session(), store, bus)
    updating = asyncio.create_task(journal.update_session(SessionUpdate(title="new")))
    await asyncio.sleep(0)
    adding = asyncio.create_task(journal.add_message(text_message("user", "hello")))
    await asyncio.sleep(0)
    adding.cancel()
    await asyncio.gather(adding, updating, return_exceptions=True)
    await journal.close()
    assert [message.get_text_content() for message in (await store.load(journal.session.id)).messages] == ["hello"]
    assert len(journal.session.messages) == 1


@pytest.mark.parametrize("wrap", [lambda store: store, lambda store: redact_store(store, Redactor())])
async def test_a_write_to_a_store_in_memory_needs_no_task(wrap: Callable[[Store], Store], bus: EventBus):
    journal = await create_journal(Session(), wrap(MemoryStore()), bus)
    started: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_task_factory(lambda loop, work, **more: started.append(work) or asyncio.Task(work, loop=loop, **more))
    try:
        await journal.add_message(text_message("user", "hello"))
    finally:
        loop.set_task_factory(None)
    assert started == []
    await journal.close()


async def test_sf_026_a_cancelled_writer_leaves_a_change_whole(store: SmallStore, bus: EventBus):
    async with await create_journal(Session(), store, bus) as journal:
        store.delay = 0.02
        writing = asyncio.create_task(journal.add_message(text_message("user", "half?")))
        await asyncio.sleep(0.005)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        store.delay = 0
        await journal.add_message(text_message("user", "next"))
        loaded = await store.load(journal.session.id)
        assert loaded.messages == journal.session.messages
        assert [message.get_text_content() for message in loaded.messages] == ["half?", "next"]


async def test_sf_031_many_writers_of_one_session_keep_one_order(store: SmallStore, bus: EventBus):
    async with await create_journal(Session(), store, bus) as journal:
        store.delay = 0.001
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(journal.add_message(text_message("user", str(number))))
        loaded = await store.load(journal.session.id)
        assert loaded.messages == journal.session.messages


async def test_an_inbox_item_enters_the_transcript_once(store: SmallStore, bus: EventBus):
    async with await create_journal(Session(), store, bus) as journal:
        item = await store.put_inbox(
            InboxItem(session_id=journal.session.id, message=text_message("user", "go left"), delivery="steer")
        )
        await journal.take_inbox_item(item)
        assert await store.inbox(journal.session.id) == []
        assert [message.get_text_content() for message in journal.session.messages] == ["go left"]


async def test_resuming_ends_what_was_open_and_does_it_once(store: SmallStore, bus: EventBus):
    async with await create_journal(Session(), store, bus) as journal:
        message = await answer(journal)
        for state in ("ready", "running", "asking"):
            call = await journal.put_part(ToolPart(call_id=state, tool="t", state=pending().state), message)
            if state == "running":
                await journal.put_part(call.with_state(call.state.start(1)), message)
            elif state == "asking":
                await journal.put_part(call.update_state(call.state.await_approval()), message)
    async with await resume_journal(
        journal.session.id, store, bus, describe=lambda *_: "x.txt is now 0 bytes"
    ) as resumed:
        ready, running, asking = resumed.session.messages[0].parts
        assert (ready.state.reason, ready.state.metadata) == ("interrupted", {"recovered_from": "ready"})
        assert running.state.reason == "interrupted"
        assert "may have had" in running.state.error
        assert "x.txt is now 0 bytes" in running.state.error
        assert asking.state.phase == "awaiting_approval"
    seq = (await store.get(journal.session.id)).seq
    async with await resume_journal(journal.session.id, store, bus) as again:
        assert again.session.messages == resumed.session.messages
    assert (await store.get(journal.session.id)).seq == seq


async def test_sf_014_calls_left_open_in_the_middle_of_history_are_ended_where_they_stand(
    store: SmallStore, bus: EventBus
):
    async with await create_journal(Session(), store, bus) as journal:
        message = await answer(journal)
        call = await journal.put_part(pending(), message)
        started = call.state.start(1, metadata={"output": "half of the list"})
        await journal.put_part(call.with_state(started), message)
        for text in ("and then", "and then again"):
            await journal.add_message(text_message("user", text))
    async with await resume_journal(journal.session.id, store, bus) as resumed:
        (ended,) = resumed.session.messages[0].parts
        assert (ended.state.reason, ended.state.metadata["recovered_from"]) == ("interrupted", "running")
        assert "half of the list" in ended.state.error
        assert [message.get_text_content() for message in resumed.session.messages[1:]] == [
            "and then",
            "and then again",
        ]
    assert (await store.load(journal.session.id)).messages == resumed.session.messages


async def test_sf_004_an_answer_that_was_cut_is_preserved_and_marked_incomplete(store: SmallStore, bus: EventBus):
    journal = await create_journal(Session(), store, bus)
    message = await answer(journal)
    part = TextPart("half an ans")
    part.adopt(message.id, journal.session.id)
    journal.publish_delta(PartDeltaEvent(message_id=message.id, part_id=part.id, delta=part.text), lambda: part)
    await journal.close()
    async with await resume_journal(journal.session.id, store, bus) as resumed:
        (cut,) = resumed.session.messages
        assert cut.get_text_content() == "half an ans"
        assert cut.error is not None
        assert cut.error.type == "interrupted"
    loaded = await store.load(journal.session.id)
    assert (loaded.drafts, loaded.messages) == (frozenset(), resumed.session.messages)
