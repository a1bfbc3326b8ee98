"""A run as a stream, from plain code, in a notebook, and given up half-way."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import pytest

from outrider import Agent, NotFoundError, StreamEvent, Tool, async_run, async_run_stream, run
from tests.scenario.scripted_runs import agent, call, scripted

WRITER, CLERK = agent("writer", "You write."), agent("clerk", "You help.")


def script() -> list:
    return [
        ["thinking ", call("look", "c1")],
        ["asking", call("call_agent", "c2", agent_name="clerk", message="help")],
        "helped",
        "all done",
    ]


LOOK = Tool(lambda: "seen", name="look")


async def events(*args, **options) -> list[StreamEvent]:
    return [event async for event in async_run_stream(*args, **options)]


async def test_a_stream_has_texts_calls_and_answers_with_their_agents():
    received = await events(WRITER, "go", [WRITER, CLERK], [LOOK], [scripted(script(), chunk=100)])
    assert [(event.type, event.agent_name, event.data) for event in received] == [
        ("token", "writer", {"text": "thinking "}),
        ("tool_call", "writer", {"call_id": "c1", "tool": "look", "input": {}}),
        ("tool_result", "writer", {"call_id": "c1", "tool": "look", "output": "seen", "is_error": False}),
        ("token", "writer", {"text": "asking"}),
        ("agent_call", "writer", {"call_id": "c2", "agent_name": "clerk", "message": "help"}),
        ("token", "clerk", {"text": "helped"}),
        ("finish", "clerk", {"output": "helped"}),
        ("agent_return", "writer", {"call_id": "c2", "agent_name": "clerk", "output": "helped"}),
        ("token", "writer", {"text": "all done"}),
        ("finish", "writer", {"output": "all done"}),
    ]


async def test_a_stream_does_not_end_at_a_sub_agents_finish():
    received = await events(WRITER, "go", [WRITER, CLERK], [LOOK], [scripted(script())])
    finishes = [event.agent_name for event in received if event.type == "finish"]
    assert finishes == ["clerk", "writer"]
    assert received[-1].agent_name == "writer"


async def test_a_stream_of_a_failed_run_ends_with_its_error():
    received = await events(WRITER, "go", [WRITER], [], [scripted([NotFoundError("no such model", status=404)])])
    assert received[-1] == StreamEvent("error", "writer", {"type": "NotFoundError", "message": "no such model"})


async def test_what_cannot_even_start_is_raised():
    with pytest.raises(ValueError, match="needs the provider"):
        await events(WRITER, "go", [WRITER], [], [])


async def test_a_stream_that_is_given_up_half_way_ends_its_run_and_leaves_nothing():
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
            await asyncio.wait_for(started.wait(), 30)
            break
    await stream.aclose()  # pyright: ignore
    assert ended.is_set()


def test_run_works_from_plain_code():
    assert run(WRITER, "go", [WRITER, CLERK], [LOOK], [scripted(script())]).output == "all done"


async def test_run_works_where_a_loop_already_runs():
    assert run(WRITER, "go", [WRITER, CLERK], [LOOK], [scripted(script())]).output == "all done"


async def test_many_runs_at_once_keep_apart():
    async def one(number: int) -> str:
        solo = Agent("solo", "You count.", "m", "scripted")
        provider = scripted([[call("echo", value=str(number))], lambda request: request.prompt[-1].content[0].content])
        result = await async_run(solo, "go", [solo], [Tool(lambda value: value, name="echo")], [provider])
        return result.output

    assert await asyncio.gather(*(one(number) for number in range(50))) == [str(number) for number in range(50)]


def test_debug_prints_what_happens(capsys):
    run(WRITER, "go", [WRITER], [], [scripted(["hello"])], debug=True)
    printed = capsys.readouterr()
    assert "writer" in printed.out + printed.err


def test_runs_in_several_threads_keep_apart_and_see_their_own_context():
    name = ContextVar("name", default="nobody")
    look = Tool(lambda: name.get(), name="look")  # noqa: PLW0108  it is asked for when it is called

    def one(who: str) -> str:
        name.set(who)
        script = [[call("look")], lambda request: request.prompt[-1].content[0].content]
        return run(WRITER, "go", [WRITER], [look], [scripted(script)]).output

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(one, ["ada", "bob", "cy", "dee"])) == ["ada", "bob", "cy", "dee"]


async def test_run_leaves_the_callers_loop_and_context_alone():
    name = ContextVar("name", default="nobody")
    name.set("ada")
    loop, tasks = asyncio.get_running_loop(), asyncio.all_tasks()
    script = [[call("look")], lambda request: request.prompt[-1].content[0].content]
    assert run(WRITER, "go", [WRITER], [Tool(lambda: name.get(), name="look")], [scripted(script)]).output == "ada"  # noqa: PLW0108
    assert asyncio.get_running_loop() is loop
    assert asyncio.all_tasks() == tasks
