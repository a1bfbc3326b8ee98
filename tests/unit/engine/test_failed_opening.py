"""A session that cannot be opened is released: another engine can open it at once."""

from typing import Any

import pytest
from msgspec.structs import replace

from outrider import Agent, Engine
from outrider.engine import engine as engine_module
from outrider.engine.child_sessions import ChildSessionOpener
from outrider.errors import StoreUnavailableError
from outrider.event_bus import EventBus
from outrider.providers.scripted import ScriptedClient
from outrider.sessions.leases import LeaseOwner, current_process
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import Lease, StoredSession
from outrider.types.ids import new_id
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import SubtaskPart

PARENT, CHILD = new_id(), new_id()
AGENT = Agent("writer", "You write.", "model-1", "scripted")


class LockedChild(MemoryStore):
    """The child session cannot be acquired."""

    async def acquire(self, session_id: str, *arguments: Any, **options: Any) -> Lease:
        if session_id == CHILD:
            raise StoreUnavailableError("busy")
        return await super().acquire(session_id, *arguments, **options)


@pytest.fixture
async def store() -> LockedChild:
    """Has a session whose answer called an agent."""
    store = LockedChild()
    await store.create(StoredSession(id=PARENT, agent="writer"))
    message = Message("assistant", [SubtaskPart("writer", child_session_id=CHILD)], time=MessageTime(1))
    message.join(PARENT)
    await store.append(PARENT, [message])
    return store


def engine_with(store: MemoryStore) -> Engine:
    return Engine([AGENT], [ScriptedClient(["done"])], store=store)


async def acquire_as_another_owner(store: MemoryStore, session_id: str) -> None:
    assert await store.acquire(session_id, replace(current_process(), pid=1))


async def test_a_session_whose_child_sessions_cannot_be_ended_is_released(store: LockedChild):
    async with engine_with(store) as engine:
        with pytest.raises(StoreUnavailableError):
            await engine.prompt(PARENT, "Go on.")
        await acquire_as_another_owner(store, PARENT)


async def test_a_child_session_whose_own_child_sessions_cannot_be_ended_is_released(store: LockedChild):
    opener = ChildSessionOpener(store, EventBus(), LeaseOwner(store, current_process()), None)
    with pytest.raises(StoreUnavailableError):
        await opener.reopen_child(PARENT)
    await acquire_as_another_owner(store, PARENT)


async def test_a_new_session_that_cannot_be_registered_is_released(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no session")

    store = MemoryStore()
    async with engine_with(store) as engine:
        monkeypatch.setattr(engine_module, "LiveSession", fail)
        with pytest.raises(RuntimeError, match="no session"):
            await engine.create()
        (session,) = (await store.list()).sessions
        await acquire_as_another_owner(store, session.id)
