"""Failures of an earlier design that must not come back."""

import asyncio
import gc
from pathlib import Path

from outrider import Engine, Limits, Tool, async_run_stream
from outrider.sessions.sqlite.store import SqliteStore
from outrider.types.request import Finish
from tests.scenario.scripted_runs import Story, agent, call, scripted

WRITER, CLERK = agent("writer", "You write."), agent("clerk", "You help.")


async def test_a_stream_does_not_end_at_a_sub_agents_finish():
    script = [[call("call_agent", agent_name="clerk", message="help")], [call("finish", message="helped")], "all done"]
    events = [event async for event in async_run_stream(WRITER, "go", [WRITER, CLERK], [], [scripted(script)])]
    finishes = [(event.agent_name, event.data["output"]) for event in events if event.type == "finish"]
    assert finishes == [("clerk", "helped"), ("writer", "all done")]
    assert events[-1].type == "finish"


async def test_a_result_stays_reachable_after_its_waiter_has_left():
    release = asyncio.Event()
    async with Engine([WRITER], [scripted([[release, "the result"]])]) as held:
        session = await held.create()
        waiting = asyncio.ensure_future(held.prompt(session, "go", input_id="work-1"))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
        release.set()
        end = await asyncio.wait_for(held.prompt(session, "go", input_id="work-1"), 30)
        assert (end.reason, end.output) == ("completed", "the result")
        assert (await held.prompt(session, "go", input_id="work-1")).output == "the result"
    assert (await held.store.load(session)).messages[-1].get_text_content() == "the result"


def test_background_work_does_not_die_with_the_callers_event_loop(tmp_path: Path):
    """The loop ends in the middle of a call. The work is stored, and continues in another loop."""
    look, started = Tool(lambda: "seen", name="look"), asyncio.Event()

    async def slow() -> str:
        started.set()
        await asyncio.sleep(100)
        return "never"

    async def start_session() -> str:
        async with SqliteStore(tmp_path / "sessions.db") as store:
            script = scripted([[call("look")], [call("slow")]])
            engine = await Engine([WRITER], [script], [look, Tool(slow)], store=store).__aenter__()
            session = await engine.create()
            asyncio.ensure_future(engine.prompt(session, "go"))  # noqa: RUF006  the test is about a task without an owner
            await asyncio.wait_for(started.wait(), 30)
            return session

    async def resume(session: str) -> str:
        async with SqliteStore(tmp_path / "sessions.db") as store:
            script = scripted([lambda request: f"went on after {len(request.prompt)} messages"])
            async with Engine([WRITER], [script], [look, Tool(slow)], store=store) as engine:
                return (await engine.resume(session, take_over=True)).output

    session = asyncio.run(start_session())
    assert asyncio.run(resume(session)) == "went on after 5 messages"


async def test_empty_model_turns_do_not_loop_for_ever():
    story = Story(lambda _: [Finish("stop", "stop")])
    result = await story.run(limits=Limits(turns=None))
    assert result.termination_reason == "empty_answers"
    assert len(story.events_of()) < 50


async def test_empty_turns_of_an_agent_that_was_called_do_not_loop_for_ever_either():
    def answer(request):
        if request.system.startswith("You help."):
            return [Finish("stop", "stop")]
        results = [part for part in request.prompt[-1].content if part.type == "tool_result"]
        return results[0].content if results else [call("call_agent", agent_name="clerk", message="help")]

    result = await Story(answer).run(entry=WRITER, agents=[CLERK])
    assert result.output == "clerk ended early (empty answers)."


async def test_a_stream_that_is_dropped_half_way_ends_its_run():
    started, ended = asyncio.Event(), asyncio.Event()

    @Tool
    async def slow() -> None:
        started.set()
        try:
            await asyncio.sleep(100)
        finally:
            ended.set()

    stream = async_run_stream(WRITER, "go", [WRITER], [slow], [scripted([["a", call("slow")]])])
    async for event in stream:
        if event.type == "tool_call":
            break
    await asyncio.wait_for(started.wait(), 30)
    del stream
    gc.collect()
    await asyncio.wait_for(ended.wait(), 30)
    for _ in range(20):
        await asyncio.sleep(0)
