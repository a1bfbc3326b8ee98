"""Several front ends that open a session at the same time share one open session."""

import asyncio
from pathlib import Path

from outrider import Agent, Engine, Provider
from outrider.sessions.sqlite.store import SqliteStore


def engine_on(store: SqliteStore) -> Engine:
    provider = Provider("scripted", "scripted", options={"script": ["One.", "Two."]})
    return Engine([Agent("writer", "You write.", "model-1", "scripted")], [provider], store=store)


async def test_who_opens_a_session_while_another_does_gets_the_same_one(tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store:
        async with engine_on(store) as before:
            session_id = await before.create()
            await before.prompt(session_id, "first")
        async with engine_on(store) as engine:
            async with asyncio.TaskGroup() as tasks:
                opened = [tasks.create_task(engine.open(session_id)) for _ in range(5)]
            assert len({id(task.result()) for task in opened}) == 1
            assert (await engine.prompt(session_id, "second")).output == "One."
            assert not engine.live[session_id].journal.is_lost
