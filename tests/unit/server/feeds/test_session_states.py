"""The feed of the states of all sessions continues after an error of the store."""

import asyncio
from contextlib import aclosing
from typing import Any

from outrider import Engine
from outrider.server.event_stream import SessionStateFeed
from outrider.stores import MemoryStore
from tests.scenario.scripted_runs import agent, scripted


class FailingStore(MemoryStore):
    """Raises an error that is not a StoreError for each list of sessions while `fails` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self.failed = asyncio.Event()

    async def list(self, *args: Any, **kwargs: Any) -> Any:
        if self.fails:
            self.failed.set()
            raise ValueError("a bug of the store")
        return await super().list(*args, **kwargs)


async def test_the_list_of_sessions_is_refreshed_again_after_a_bug_of_the_store():
    store = FailingStore()
    async with Engine([agent()], [scripted(["done"])], store=store) as engine:
        feed = SessionStateFeed(engine)
        async with aclosing(feed.stream_changes()) as changes, asyncio.timeout(20):
            assert await anext(changes) == []
            store.fails = True
            session = await engine.create()
            await engine.prompt(session, "hello")
            await store.failed.wait()
            store.fails = False
            assert [summary.id for summary in await anext(changes)] == [session]
        await feed.close()
