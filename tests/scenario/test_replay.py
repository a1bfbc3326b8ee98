"""A stored session is replayed offline, step by step; differences are shown."""

import asyncio
import re
from pathlib import Path

import pytest

from outrider import (
    Agent,
    AnswerDiffers,
    CallsDiffer,
    ConfigurationError,
    Engine,
    Message,
    MessageTime,
    ProviderError,
    RequestDiffers,
    ResultDiffers,
    StepDiffers,
    TextPart,
    Tool,
    ToolPart,
    replay,
)
from outrider.events import PartDeltaEvent, ToolExecutionStartedEvent
from outrider.sessions.memory_store import MemoryStore
from tests.scenario.scripted_runs import agent, call, scripted


@Tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def engine(script, tools=(add,), *, agents: list[Agent] | None = None, store=None, **options) -> Engine:
    return Engine(agents or [agent()], [scripted(script, chunk=100)], tools, store=store or MemoryStore(), **options)


async def recorded(folder: Path, script, *inputs: str, **options) -> tuple[Engine, str]:
    """An engine whose one session has ended, with all that was recorded."""
    held = engine(script, cassettes=folder, **options)
    async with held:
        session = await held.create()
        for text in inputs or ("go",):
            await held.prompt(session, text)
    return held, session


SUM = [["Let me see.", call("add", "c1", a=1, b=2)], "It is 3."]


async def test_a_session_goes_again_as_it_went(tmp_path: Path):
    held, session = await recorded(tmp_path, SUM)
    again = await replay(held.replace(providers=[scripted([])]), session)
    assert again.same, again.text()
    assert [step.number for step in again.steps] == [1, 2]
    assert again.session.messages[-1].get_text_content() == "It is 3."
    assert again.unused_exchanges == 0
    again.check()


async def test_nothing_is_run_and_nothing_is_stored(tmp_path: Path):
    ran: list[int] = []
    count = Tool(lambda: ran.append(1), name="count")
    held, session = await recorded(tmp_path, [[call("count", "c1")], "done"], tools=[count])
    before = await held.store.load(session)
    again = await replay(held, session)
    assert (again.same, ran) == (True, [1])
    assert (await held.store.load(session)).session.seq == before.session.seq
    assert len((await held.store.list()).sessions) == 1


async def test_every_input_is_given_at_its_time(tmp_path: Path):
    held, session = await recorded(tmp_path, [*SUM, "You are welcome."], "add", "thanks")
    again = await replay(held, session)
    assert again.same, again.text()
    assert len(again.steps) == 3


async def test_other_instructions_are_other_requests_at_every_step(tmp_path: Path):
    held, session = await recorded(tmp_path, SUM)
    again = await replay(held.replace(agents=[agent(instructions="You hurry.")]), session)
    assert [[type(one) for one in step.differences] for step in again.steps] == [[RequestDiffers], [RequestDiffers]]
    assert "system: recorded 'You write." in again.differences[0].describe()
    assert (await replay(held.replace(agents=[agent(instructions="You hurry.")]), session, ignore=["system"])).same
    with pytest.raises(AssertionError, match="You hurry"):
        again.check()


async def test_a_result_that_differs_is_shown_and_so_is_the_request_that_carries_it(tmp_path: Path):
    numbers = iter([3, 4])
    draw = Tool(lambda: next(numbers), name="draw")
    held, session = await recorded(tmp_path, [[call("draw", "c1")], "fine"], tools=[draw])
    again = await replay(held, session, fresh_results=True)
    assert again.steps[0].differences == (ResultDiffers("c1", "draw", "3", "4"),)
    (differs,) = again.steps[1].differences
    assert isinstance(differs, RequestDiffers)
    assert "recorded '3', sent '4'" in differs.where


async def test_a_tool_that_is_gone_is_a_difference(tmp_path: Path):
    held, session = await recorded(tmp_path, SUM)
    again = await replay(held.replace(tools=[]), session)
    kinds = [type(one) for one in again.differences]
    assert kinds == [RequestDiffers, ResultDiffers, RequestDiffers]
    assert "no tool called 'add'" in again.differences[1].describe()


async def test_an_answer_that_was_changed_on_the_cassette_is_seen(tmp_path: Path):
    held, session = await recorded(tmp_path, SUM)
    tape = tmp_path / f"{session}.jsonl"
    tape.write_text(re.sub(r'(b\\+":)2', r"\g<1>9", tape.read_text().replace("It is 3.", "It is 5.")))
    again = await replay(held, session)
    first, last = again.steps
    assert isinstance(first.differences[0], CallsDiffer)
    assert first.differences[0].now == ('add({"a":1,"b":9})',)
    assert AnswerDiffers("text", "It is 3.", "It is 5.") in last.differences


async def test_a_step_that_is_not_made_again_is_missed(tmp_path: Path):
    held, session = await recorded(tmp_path, SUM)
    tape = tmp_path / f"{session}.jsonl"
    head, _, second = tape.read_text().splitlines()
    tape.write_text(f"{head}\n{second.replace('growth', 'ignored')}\n")
    again = await replay(held, session)
    assert StepDiffers("recorded") in again.steps[-1].differences


@pytest.mark.parametrize("answer", [True, False])
async def test_what_was_asked_about_is_not_asked_again(tmp_path: Path, answer):
    risky = Tool(lambda: "ran", name="risky", policy="ask")
    held = engine([[call("risky", "c1")], "done"], [risky], cassettes=tmp_path)
    async with held:
        session = await held.create()
        held.bus.subscribe_all(
            lambda event: (
                held.answer(event.approval_id, allow=answer, words="not today")
                if event.event_type == "ToolApprovalRequestedEvent"
                else None
            )
        )
        await held.prompt(session, "go")
    again = await replay(held, session)
    assert again.same, again.text()
    (part,) = again.session.messages[1].get_parts_by_type(ToolPart)
    assert part.state.status == ("completed" if answer else "error")


async def test_steering_comes_in_the_middle_of_the_turn_again(tmp_path: Path):
    release = asyncio.Event()

    async def slow() -> str:
        await release.wait()
        return "done"

    script = [[call("slow", "c1")], lambda request: request.prompt[-1].content[-1].text]
    held = engine(script, [Tool(slow)], cassettes=tmp_path)
    async with held:
        session = await held.create()
        async with held.events(session) as events:
            first = asyncio.ensure_future(held.prompt(session, "start"))
            await anext(event async for event in events if isinstance(event, ToolExecutionStartedEvent))
        steered = asyncio.ensure_future(held.prompt(session, "be quick", delivery="steer"))
        while not await held.store.inbox(session):
            await asyncio.sleep(0.001)
        release.set()
        await asyncio.gather(first, steered)
    again = await replay(held, session)
    assert again.same, again.text()
    assert again.session.messages[-1].get_text_content() == "be quick"


async def test_agents_that_were_called_go_again_too(tmp_path: Path):
    def answer(request):
        if request.system.startswith("You are the clerk."):
            return f"counted {request.prompt[0].content[0].text}"
        if len(request.prompt) == 1:
            asks = [call("call_agent", f"c{n}", agent_name="clerk", message=f"to {n}") for n in range(3)]
            return ["I ask.", *asks]
        return "All is counted."

    cast = [agent("boss", "You are the boss."), agent("clerk", "You are the clerk.")]
    held, session = await recorded(tmp_path, answer, agents=cast)
    again = await replay(held, session)
    assert again.same, again.text()
    assert [step.agent for step in again.steps] == ["boss", "boss", "clerk", "clerk", "clerk"]
    hasty = [cast[0], agent("clerk", "You are the clerk. Hurry.")]
    other = await replay(held.replace(agents=hasty), session)
    assert [type(one) for step in other.steps for one in step.differences if step.agent == "clerk"] == [
        RequestDiffers
    ] * 3


async def test_a_refusal_of_the_model_is_part_of_the_record(tmp_path: Path):
    held, session = await recorded(tmp_path, [ProviderError("out of paper", status=418), "better"], "a", "b")
    again = await replay(held, session)
    assert again.same, again.text()
    assert again.session.messages[1].error.message == "out of paper"  # pyright: ignore


async def test_an_aborted_answer_ends_where_it_was_let_go(tmp_path: Path):
    never = asyncio.Event()
    held = engine([["half an ", "answer", never], "whole"], cassettes=tmp_path)
    async with held:
        session = await held.create()
        async with held.events(session) as events:
            prompting = asyncio.ensure_future(held.prompt(session, "go"))
            await anext(event async for event in events if isinstance(event, PartDeltaEvent))
        await asyncio.sleep(0.01)
        await held.abort(session)
        await prompting
        await held.prompt(session, "again")
    again = await replay(held, session)
    assert again.same, again.text()


async def test_a_session_without_a_cassette_reports_it(tmp_path: Path):
    held = engine(["hello"])
    async with held:
        session = await held.create()
        await held.prompt(session, "go")
    with pytest.raises(ConfigurationError, match="cassettes"):
        await replay(held, session)
    with pytest.raises(ConfigurationError, match="record it first"):
        await replay(held, session, cassette=tmp_path / "gone.jsonl")


async def test_a_long_conversation_is_written_once(tmp_path: Path):
    long = "word " * 2_000
    held, session = await recorded(tmp_path, ["yes"] * 30, *[f"{long}{n}" for n in range(30)])
    assert (tmp_path / f"{session}.jsonl").stat().st_size < 3 * 30 * len(long)
    again = await replay(held, session)
    assert again.same, again.text()


async def test_a_requested_compaction_is_made_again(tmp_path: Path):
    def answer(request):
        last = request.prompt[-1].content[-1].text
        return (
            "## Goal\nto talk" if "about to be shortened" in last else f"{len(request.prompt)} messages {'word ' * 200}"
        )

    held = engine(answer, cassettes=tmp_path)
    async with held:
        session = await held.create()
        for text in ("one", "two", "three"):
            await held.prompt(session, text)
        assert await held.compact(session, "focus on the API") is not None
        assert not (await held.prompt(session, "four")).output.startswith("7 messages")
    again = await replay(held, session)
    assert again.same, again.text()
    assert again.unused_exchanges == 0


async def test_an_unanswered_input_requests_nothing(tmp_path: Path):
    held, session = await recorded(tmp_path, ["hello"])
    await held.store.append(session, [Message("user", [TextPart("and?")], session_id=session, time=MessageTime(1))])
    again = await replay(held, session)
    assert again.same, again.text()
    assert again.session.messages[-1].get_text_content() == "and?"
