"""A closed session is freed at once, so that many short sessions leave no work for the garbage collector."""

import gc
from collections.abc import Generator
from weakref import ref

import pytest

from outrider import Agent, Engine, Tool
from outrider.providers.scripted import ScriptedClient, call
from outrider.sessions.memory_store import MemoryStore


@pytest.fixture
def no_collection() -> Generator[None, None, None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
async def test_a_closed_session_is_freed_without_the_garbage_collector() -> None:
    async def look() -> str:
        """Look."""
        return "seen"

    agent = Agent("writer", "You write.", "model-1", "scripted")
    client = ScriptedClient([[call("look")], "done"])
    async with Engine([agent], [client], [Tool(look)], store=MemoryStore()) as engine:
        session = await engine.create()
        live = engine.live[session]
        watched = {"session": ref(live), "journal": ref(live.journal), "inbox": ref(live.inbox)}
        del live
        assert (await engine.prompt(session, "Look.")).output == "done"
        await engine.close(session)
        client.requests.clear()  # they report to the session what was sent

        assert [name for name, found in watched.items() if found() is not None] == []
