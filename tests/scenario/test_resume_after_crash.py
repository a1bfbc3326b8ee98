"""A turn continues after a crash: repeatable calls run again, and the model is informed about the others."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from outrider import Engine, Limits, Tool
from outrider.engine.frontend import was_cut_off
from outrider.errors import ContextOverflowError, NetworkError
from outrider.presentation.items import NoticeItem
from outrider.presentation.transcript import TranscriptView
from outrider.sessions.memory_store import MemoryStore
from outrider.types.parts import ToolPart
from outrider.types.request import Finish
from tests.scenario.scripted_runs import agent, call, scripted


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


async def test_only_the_call_that_is_safe_to_repeat_runs_again_and_the_turn_continues(both: Both):
    assert await states(both) == ["running", "running"]
    async with both.engine("gone on") as engine:
        end = await engine.resume(both.copy)
    assert (end.reason, end.output) == ("completed", "gone on")
    assert sorted(both.add_execution) == ["change", "look", "look"]
    assert await states(both) == ["completed", "interrupted"]


async def test_a_resumed_turn_checks_its_value_with_the_validators_of_its_prompt(both: Both):
    def is_even(value: int) -> None:
        if value % 2:
            raise ValueError("an even number, please")

    async with both.engine("3", "4") as engine:
        end = await engine.resume(both.copy, output_type=int, output_validators=is_even, output_attempts=2)
    assert end.output == 4


async def test_opening_the_session_repeats_nothing(both: Both):
    async with both.engine("never said") as engine:
        await engine.open(both.copy)
    assert sorted(both.add_execution) == ["change", "look"]
    assert await states(both) == ["interrupted", "interrupted"]


CASES = {
    "limit": (Limits(turns=1), [call("look")], 'raise the limit, then send "continue"'),
    "refusal": (Limits(), ["I would rather not.", Finish("refusal")], "rephrase the request or choose another model"),
    "overflow": (Limits(), [ContextOverflowError("prompt is too long")], "Compact the conversation (/compact)"),
    "network": (Limits(), [NetworkError("gone")], 'Send "continue" to try again, or choose another model'),
    "length": (Limits(), ["It is lo", Finish("length")], 'send "continue" to get the rest'),
}


@pytest.mark.parametrize("way", ["prompt", "go_on"])
@pytest.mark.parametrize("case", list(CASES))
async def test_after_an_end_without_a_result_the_next_step_is_named_and_continue_works(case: str, way: str):
    limits, first, step = CASES[case]
    shown: list[Any] = []
    looking = Tool(lambda: "as it was", name="look", read_only=True)
    writer = replace(agent(), limits=limits)
    async with Engine([writer], [scripted([first, "Here you are."])], [looking]) as engine:
        session_id = await engine.create()
        messages = engine.live[session_id].session.messages
        view = TranscriptView(session_id, lambda name: next((found for found in messages if found.id == name), None))
        engine.bus.subscribe_all(lambda event: shown.extend(view.apply(event)))
        await engine.prompt(session_id, "go")
        await engine.bus.settled()
        assert any(step in item.text for item in shown if isinstance(item, NoticeItem)), [i.text for i in shown]
        resumed = way == "go_on" and was_cut_off(engine.live[session_id].session.messages)
        end = await (engine.resume(session_id) if resumed else engine.prompt(session_id, "continue"))
        assert (end.reason, end.output) == ("completed", "Here you are.")
