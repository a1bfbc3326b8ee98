"""A turn that a crash cut off goes on: what is safe to repeat is run again, of everything else it is said."""

import asyncio
from typing import Any

import pytest

from outrider import Engine, Tool
from outrider.sessions.memory_store import MemoryStore
from outrider.types.parts import ToolPart
from tests.scenario.stories import agent, call, scripted


class Both:
    """Two calls at once; while both run for the first time, their session is copied as a crash would leave it."""

    def __init__(self) -> None:
        self.add_execution: list[str] = []
        self.copy = ""
        self.together = asyncio.Barrier(2)
        self.tools = [Tool(self.look, repeatable=True), Tool(self.change)]
        self.store = MemoryStore()

    async def look(self) -> str:
        self.add_execution.append("look")
        if not self.copy:
            await self.together.wait()
            (session,) = (await self.store.list()).sessions
            self.copy = (await self.store.fork(session.id)).id
            await self.together.wait()
        return "as it was"

    async def change(self) -> str:
        self.add_execution.append("change")
        await self.together.wait()
        await self.together.wait()
        return "changed"

    def engine(self, *script: Any) -> Engine:
        return Engine([agent()], [scripted(script)], self.tools, store=self.store)


@pytest.fixture
async def both() -> Both:
    both = Both()
    async with both.engine([call("look", "c1"), call("change", "c2")], "done") as engine:
        await engine.prompt(await engine.create(), "go")
    assert sorted(both.add_execution) == ["change", "look"]
    return both


async def states(both: Both) -> list[str]:
    calls = [call for m in (await both.store.load(both.copy)).messages for call in m.get_parts_by_type(ToolPart)]
    return [getattr(call.state, "reason", call.state.status) for call in calls]


async def test_only_the_call_that_is_safe_to_repeat_runs_again_and_the_turn_goes_on(both: Both):
    assert await states(both) == ["running", "running"]
    async with both.engine("gone on") as engine:
        end = await engine.go_on(both.copy)
    assert (end.reason, end.output) == ("completed", "gone on")
    assert sorted(both.add_execution) == ["change", "look", "look"]
    assert await states(both) == ["completed", "interrupted"]


async def test_whoever_only_opens_the_session_repeats_nothing(both: Both):
    async with both.engine("never said") as engine:
        await engine.open(both.copy)
    assert sorted(both.add_execution) == ["change", "look"]
    assert await states(both) == ["interrupted", "interrupted"]
