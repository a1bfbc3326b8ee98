"""`LeaseOwner`: one timer renews all leases of an engine, and an error affects one session only."""

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from outrider.errors import StoreUnavailableError
from outrider.event_bus import EventBus
from outrider.sessions.journal import Journal, create_journal, resume_journal
from outrider.sessions.leases import RENEWAL_BATCH, LeaseOwner, current_process
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import Lease, ProcessIdentity, SessionTranscript, StoredSession, StoredValue
from outrider.sessions.session import Session
from outrider.sessions.sqlite.store import SqliteStore
from outrider.sessions.store import Store
from outrider.types.ids import new_id
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolPending


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "sessions.db") as opened:
        yield opened


class Quick(MemoryStore):
    """Its leases are short, so that a renewal comes soon. Some renewals fail, some wait until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.renewed: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.gates: dict[str, asyncio.Event] = {}

    async def acquire(
        self, session_id: str, owner: ProcessIdentity, *, ttl_ms: int = 90, take_over: bool = False
    ) -> Lease:
        return await super().acquire(session_id, owner, ttl_ms=ttl_ms, take_over=take_over)

    async def renew(self, lease: Lease) -> Lease:
        if lease.session_id in self.errors:
            raise self.errors[lease.session_id]
        self.renewed.append(lease.session_id)
        if lease.session_id in self.gates:
            await self.gates[lease.session_id].wait()
        return await super().renew(lease)


async def held(store: Store, holder: LeaseOwner) -> Journal:
    return await create_journal(Session(), store, EventBus(), lease_owner=holder)


async def nothing_under_way() -> None:
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0)


async def test_a_session_that_is_closed_as_the_renewal_starts_is_released(store: Store):
    holder = LeaseOwner(store, current_process())
    for rounds in range(6):
        journal = await held(store, holder)
        holder.start_renewal()
        for _ in range(rounds):
            await asyncio.sleep(0)
        await journal.close()
        await nothing_under_way()
        assert await store.acquire(journal.session.id, replace(current_process(), pid=1))


async def test_closing_waits_for_a_renewal_under_way():
    store = Quick()
    holder = LeaseOwner(store, current_process())
    journal = await held(store, holder)
    gate = store.gates[journal.session.id] = asyncio.Event()
    holder.start_renewal()
    while not store.renewed:
        await asyncio.sleep(0)
    closing = asyncio.create_task(journal.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not closing.done()
    gate.set()
    await closing
    assert await store.acquire(journal.session.id, replace(current_process(), pid=1))


@pytest.mark.parametrize("error", [ValueError("a defect"), StoreUnavailableError("busy")])
async def test_a_lease_that_cannot_be_renewed_does_not_delay_others(error: Exception, caplog: pytest.LogCaptureFixture):
    store = Quick()
    holder = LeaseOwner(store, current_process())
    journals = [await held(store, holder) for _ in range(RENEWAL_BATCH + 1)]
    store.errors[journals[0].session.id] = error
    with caplog.at_level(logging.CRITICAL, "outrider.sessions"):
        while len(set(store.renewed)) < RENEWAL_BATCH:  # those next to it, and those after it
            await asyncio.sleep(0.01)
    for journal in journals:
        await journal.close()


async def test_leases_are_renewed_as_long_as_they_are_held_and_then_nothing_is_left():
    store = Quick()
    holder = LeaseOwner(store, current_process())
    one, other = await held(store, holder), await held(store, holder)
    while min(store.renewed.count(journal.session.id) for journal in (one, other)) < 2:
        await asyncio.sleep(0.01)
    await one.close()
    seen = store.renewed.count(one.session.id), store.renewed.count(other.session.id)
    while store.renewed.count(other.session.id) < seen[1] + 2:
        await asyncio.sleep(0.01)
    assert store.renewed.count(one.session.id) == seen[0]
    await other.close()
    await nothing_under_way()
    left = weakref.ref(other)
    del one, other
    gc.collect()
    assert left() is None


class Unreadable(MemoryStore):
    async def load(self, session_id: str, **options: Any) -> SessionTranscript:
        raise StoreUnavailableError("busy")


class Unwritable(MemoryStore):
    async def append(self, session_id: str, values: Sequence[StoredValue], **options: Any) -> int:
        raise StoreUnavailableError("busy")


async def test_a_session_that_cannot_be_read_is_released():
    store = Unreadable()
    await store.create(StoredSession(id="s"))
    with pytest.raises(StoreUnavailableError):
        await resume_journal("s", store, EventBus(), lease_owner=LeaseOwner(store, current_process()))
    assert await store.acquire("s", replace(current_process(), pid=1))


async def test_a_session_that_cannot_be_repaired_is_released():
    store, session_id = Unwritable(), new_id()
    await store.create(StoredSession(id=session_id))
    call = ToolPart(call_id="c1", tool="shell", state=ToolPending({"command": "ls"}, "", "ready"))
    message = Message("assistant", [call], time=MessageTime(1))
    message.join(session_id)
    await MemoryStore.append(store, session_id, [message])
    with pytest.raises(StoreUnavailableError):
        await resume_journal(session_id, store, EventBus(), lease_owner=LeaseOwner(store, current_process()))
    assert await store.acquire(session_id, replace(current_process(), pid=1))
