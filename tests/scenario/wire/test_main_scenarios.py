"""The main scenarios over a real connection, with a server that implements each API and rejects invalid requests."""

import asyncio
from dataclasses import dataclass
from decimal import Decimal

import pytest

from outrider import (
    CompactionPart,
    ContextOverflowError,
    InvalidRequestError,
    Limits,
    OutriderError,
    RetryPart,
    Session,
    Tool,
    ToolCompleted,
    ToolError,
    ToolPart,
    async_run,
    new_id,
)
from outrider.events import (
    AgentReturnedEvent,
    ContextCompactionEvent,
    PartDeltaEvent,
    RetryScheduledEvent,
    StateChangedEvent,
    ToolInputDeltaEvent,
)
from outrider.providers.scripted import call
from outrider.testing.simulator_answers import (
    SIMULATED_APIS,
    MaxTokens,
    ServerSearch,
    SimulatedError,
    SimulatedReasoning,
)
from outrider.testing.simulator_rules import SIGNATURES
from tests.scenario.wire.wire_runs import wire_harness

KINDS = list(SIMULATED_APIS)
EVERY = [(kind, way, stream) for kind in KINDS for way in ("run", "engine") for stream in (True, False)]
every = pytest.mark.parametrize(("kind", "way", "stream"), EVERY)
each = pytest.mark.parametrize("kind", KINDS)
LONG = "word " * 3_000


@Tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@every
async def test_a_plain_answer_ends_the_turn(kind, way, stream):
    async with wire_harness(kind, ["Hello there."], way, stream=stream) as harness:
        ended = await harness.run_turn("hi")
        assert (ended.output, ended.reason) == ("Hello there.", "completed")
        (request,) = harness.server.requests
        assert request.texts == ["hi"]
        assert request.system == "You write."
        assert (len(harness.events_of(PartDeltaEvent)) > 1) is stream


@every
async def test_a_call_is_run_and_its_result_goes_back(kind, way, stream):
    async with wire_harness(
        kind, [["Let me see.", call("add", "c1", a=1, b=2)], "It is 3."], way, stream=stream
    ) as harness:
        ended = await harness.run_turn(tools=[add])
        assert ended.output == "It is 3."
        assert harness.server.requests[1].results == ["3"]
        assert ended.answers[0].tokens.total == 30


@every
async def test_calls_of_one_answer_run_side_by_side_and_their_results_keep_their_order(kind, way, stream):
    together = asyncio.Barrier(3)

    @Tool
    async def meet(number: int) -> str:
        async with asyncio.timeout(30):
            await together.wait()
        await asyncio.sleep(0.01 * (3 - number))
        return f"met {number}"

    asks = [call("meet", f"c{number}", number=number) for number in range(3)]
    async with wire_harness(kind, [asks, "done"], way, stream=stream) as harness:
        ended = await harness.run_turn(tools=[meet])
        assert ended.output == "done"
        assert harness.server.requests[1].results == ["met 0", "met 1", "met 2"]


@every
async def test_what_goes_wrong_in_a_call_is_read_by_the_model(kind, way, stream):
    @Tool
    def broken() -> None:
        raise RuntimeError("the disk is on fire")

    asks = [call("broken", "c1"), call("add", "c2", a=1), call("gone", "c3")]
    async with wire_harness(kind, [asks, "I see."], way, stream=stream) as harness:
        ended = await harness.run_turn(tools=[broken, add])
        assert ended.output == "I see."
        fire, missing, unknown = harness.server.requests[1].results
        assert "the disk is on fire" in fire
        assert "`b` is missing" in missing
        assert "no tool called 'gone'" in unknown
        assert all(isinstance(part.state, ToolError) for part in ended.calls)


@every
@pytest.mark.parametrize("allow", [None, False])
async def test_a_declined_call_ends_in_error_and_the_turn_continues(kind, way, stream, allow):
    ran: list[int] = []
    risky = Tool(lambda: ran.append(1), name="risky", policy="ask")
    async with wire_harness(
        kind, [[call("risky", "c1"), call("add", "c2", a=1, b=1)], "fine"], way, stream=stream
    ) as harness:
        ended = await harness.run_turn(tools=[risky, add], allow=allow)
        assert (ended.output, ran) == ("fine", [])
        declined, added = harness.server.requests[1].results
        assert ("no user is available" if allow is None else "The user denied this call") in declined
        assert added == "2"


@each
@pytest.mark.parametrize("way", ["run", "engine"])
async def test_an_approved_call_runs(kind, way):
    risky = Tool(lambda: "ran", name="risky", policy="ask")
    async with wire_harness(kind, [[call("risky", "c1")], "fine"], way) as harness:
        ended = await harness.run_turn(tools=[risky], allow=True)
        assert harness.server.requests[1].results == ["ran"]
        assert isinstance(ended.calls[0].state, ToolCompleted)


@every
async def test_an_agent_asks_another_and_each_has_its_own_conversation(kind, way, stream):
    def answer(body):
        if body.system.startswith("You are the clerk."):
            assert body.texts == ["Count to 2."]
            return "1, 2."
        given = body.results
        return (
            f"The clerk said: {given[0]}"
            if given
            else [call("call_agent", "c1", agent_name="clerk", message="Count to 2.")]
        )

    async with wire_harness(kind, answer, way, stream=stream) as harness:
        cast = [harness.agent("boss", "You are the boss."), harness.agent("clerk", "You are the clerk.")]
        ended = await harness.run_turn(agents=cast)
        assert ended.output == "The clerk said: 1, 2."
        assert len(harness.server.requests) == 3
        assert harness.events_of(AgentReturnedEvent)[0].success


@each
async def test_cancelling_during_an_answer_preserves_what_arrived_and_closes_the_connection(kind):
    never = asyncio.Event()
    async with wire_harness(kind, [["half an answer", never, "and more"], "fresh start"]) as harness:
        session, entry = Session(), harness.agent()
        running = asyncio.ensure_future(
            async_run(entry, "go", [entry], [], [harness.provider], session=session, bus=harness.bus)
        )
        while "".join(event.delta for event in harness.events_of(PartDeltaEvent)) != "half an answer":
            await asyncio.sleep(0.001)
        running.cancel()
        async with asyncio.timeout(30):
            with pytest.raises(asyncio.CancelledError):
                await running
        assert session.messages[-1].get_text_content() == "half an answer"
        assert session.messages[-1].error.type == "aborted"  # pyright: ignore
        await asyncio.wait_for(harness.server.disconnected.wait(), 30)
        again = await harness.run_turn("again", session=session)
        assert again.output == "fresh start"


@each
async def test_aborting_in_an_engine_preserves_what_arrived_and_the_session_continues(kind):
    never = asyncio.Event()
    script = [[SimulatedReasoning("hm"), "half ", call("add", "c1", a=1, b=1), never], "fresh start"]
    async with wire_harness(kind, script) as harness:
        session = Session()
        async with harness.engine([harness.agent()], [add], session) as engine:
            prompting = asyncio.ensure_future(engine.prompt(session.id, "go"))
            while not harness.events_of(ToolInputDeltaEvent):
                await asyncio.sleep(0.001)
            await asyncio.wait_for(engine.abort(session.id), 30)
            assert (await prompting).reason == "aborted"
            (part,) = (await engine.open(session.id)).messages[-1].get_parts_by_type(ToolPart)
            assert part.state.reason == "canceled"  # pyright: ignore
            assert (await engine.prompt(session.id, "again")).output == "fresh start"
            assert len(harness.server.requests[1].results) == 1


@every
async def test_a_refusal_of_the_provider_ends_the_turn_with_its_message_and_everything_stored(kind, way, stream):
    script = [[call("add", "c1", a=1, b=2)], SimulatedError(400, "this model does not like numbers")]
    async with wire_harness(kind, script, way, stream=stream) as harness:
        ended = await harness.run_turn(tools=[add])
        assert isinstance(ended.error, InvalidRequestError)
        assert ended.error.message == "this model does not like numbers"
        assert ended.error.status == 400
        assert isinstance(ended.calls[0].state, ToolCompleted)
        assert ended.answers[-1].error.message == "this model does not like numbers"  # pyright: ignore


@every
async def test_an_overloaded_provider_is_asked_again_and_the_retry_is_preserved(kind, way, stream):
    overloaded = SIMULATED_APIS[kind].overloaded
    async with wire_harness(kind, [overloaded, overloaded, "at last"], way, stream=stream) as harness:
        ended = await harness.run_turn()
        assert ended.output == "at last"
        retries = ended.answers[-1].get_parts_by_type(RetryPart)
        assert [retry.attempt for retry in retries] == [1, 2]
        assert all(overloaded.message in retry.error for retry in retries)
        assert [event.attempt for event in harness.events_of(RetryScheduledEvent)] == [1, 2]


@each
async def test_a_provider_that_stays_overloaded_ends_the_turn_and_the_next_one_starts_afresh(kind):
    overloaded = SIMULATED_APIS[kind].overloaded
    async with wire_harness(kind, [overloaded, overloaded, overloaded, "back again"]) as harness:
        ended = await harness.run_turn()
        assert isinstance(ended.error, OutriderError)
        assert overloaded.message in ended.error.message
        again = await harness.run_turn("and now?", session=ended.session)
        assert again.output == "back again"


@every
async def test_an_overflow_is_compacted_once_and_the_turn_continues(kind, way, stream):
    vendor = SIMULATED_APIS[kind]
    session = Session()
    for number in range(6):
        session.add_user_message(f"question {number}")
        session.add_assistant_message(f"answer {number} {LONG}")

    def answer(body):
        if "about to be shortened" in body.texts[-1]:
            return "## Goal\nto answer"
        shortened = any("Summary of the conversation" in text for text in body.texts)
        return "in short" if shortened else vendor.overflow

    async with wire_harness(kind, answer, way, stream=stream) as harness:
        ended = await harness.run_turn("and now?", session=session)
        assert (ended.output, ended.reason) == ("in short", "completed")
        (compaction,) = harness.events_of(ContextCompactionEvent)
        assert compaction.tokens_after < compaction.tokens_before
        parts = [part for message in ended.session.messages for part in message.get_parts_by_type(CompactionPart)]
        assert [part.overflow for part in parts] == [True]
        assert len(harness.server.requests) == 3


@each
async def test_a_context_that_still_overflows_ends_the_turn(kind):
    vendor = SIMULATED_APIS[kind]
    session = Session()
    session.add_user_message("question")
    session.add_assistant_message(f"answer {LONG}")

    def answer(body):
        return "a summary" if "about to be shortened" in body.texts[-1] else vendor.overflow

    async with wire_harness(kind, answer) as harness:
        assert isinstance((await harness.run_turn("and now?", session=session)).error, ContextOverflowError)


@dataclass
class City:
    name: str
    people: int


@each
@pytest.mark.parametrize("stream", [True, False])
async def test_structured_output_is_asked_for_in_the_vendors_own_way_and_repaired(kind, stream):
    good = '{"name": "Oslo", "people": 700000}'
    async with wire_harness(kind, ['{"name": "Oslo", "people": "many"}', good], stream=stream) as harness:
        entry = harness.agent()
        result = await async_run(entry, "which city?", [entry], [], [harness.provider], output_type=City)
        assert result.output == City("Oslo", 700000)
        schema = harness.server.requests[0].output_schema
        assert schema is not None
        assert schema["properties"].keys() == {"name", "people"}
        assert "people" in harness.server.requests[1].texts[-1]


@each
@pytest.mark.parametrize("stream", [True, False])
async def test_reasoning_goes_back_with_its_seal_and_never_to_another_vendor(kind, stream):
    first = [SimulatedReasoning("let me think"), call("add", "c1", a=1, b=2)]
    async with wire_harness(kind, [first, "It is 3."], stream=stream) as harness:
        ended = await harness.run_turn(tools=[add])
        sealed = harness.server.requests[1].signatures
        assert sealed == ([] if kind == "openai" else [SIGNATURES[kind]])
    other = KINDS[KINDS.index(kind) - 1]
    async with wire_harness(other, ["Hello."]) as harness:
        await harness.run_turn("and you?", session=ended.session)
        assert not any(signature in str(harness.server.requests[0].body) for signature in SIGNATURES.values())
        assert harness.server.requests[0].results == ["3"]


@every
async def test_calls_of_an_answer_that_was_cut_are_not_run_and_the_model_is_informed(kind, way, stream):
    script = [["so ", call("add", "c1", a=1, b=2), MaxTokens()], "again then"]
    async with wire_harness(kind, script, way, stream=stream) as harness:
        ended = await harness.run_turn(tools=[add])
        assert ended.output == "again then"
        assert "may be incomplete" in harness.server.requests[1].results[0]


@each
async def test_input_that_steers_is_received_with_the_next_request(kind):
    release = asyncio.Event()

    async def slow() -> str:
        await release.wait()
        return "done"

    async with wire_harness(kind, [[call("slow", "c1")], "as you wish"]) as harness:
        session = Session()
        async with harness.engine([harness.agent()], [Tool(slow)], session) as engine:
            first = asyncio.ensure_future(engine.prompt(session.id, "start"))
            while not harness.server.requests:
                await asyncio.sleep(0.001)
            steered = asyncio.ensure_future(engine.prompt(session.id, "be quick", delivery="steer"))
            while not await engine.store.inbox(session.id):
                await asyncio.sleep(0.001)
            release.set()
            assert (await first).output == (await steered).output == "as you wish"
        assert harness.server.requests[1].results == ["done"]
        assert harness.server.requests[1].texts == ["start", "be quick"]


@pytest.mark.parametrize("way", ["run", "engine"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "enabled",
    [{"extra": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}}, {"vendor_tools": ("web_search",)}],
    ids=["extra", "name"],
)
async def test_an_answer_that_the_vendor_paused_for_a_built_in_tool_continues(way, stream, enabled):
    script = [["Let me search.", ServerSearch("cats")], "Cats purr."]
    async with wire_harness("anthropic", script, way, stream=stream) as harness:
        searching = harness.agent(**enabled)
        ended = await harness.run_turn(agents=[searching], tools=[add])
        first, second = harness.server.requests
        assert sorted(tool["name"] for tool in first.body["tools"]) == ["add", "web_search"]
        assert second.body["messages"][-1]["role"] == "assistant"
        assert second.body["messages"][-1]["content"][-1]["type"] == "server_tool_use"
        assert (ended.output, ended.reason) == ("Cats purr.", "completed")


@pytest.mark.parametrize("way", ["run", "engine"])
async def test_an_answer_that_was_paused_and_never_continued_is_followed_by_new_input(way):
    """The request that continues the search fails; its use has no result when the user writes again."""
    script = [["Let me search.", ServerSearch("cats")], SimulatedError(400, "something else is wrong"), "Cats purr."]
    async with wire_harness("anthropic", script, way) as harness:
        searching = harness.agent(vendor_tools=("web_search",))
        session = Session()
        first = await harness.run_turn(agents=[searching], tools=[add], session=session)
        assert first.reason == "error"
        session = first.session
        ended = await harness.run_turn("and now?", agents=[searching], tools=[add], session=session)
        assert ended.output == "Cats purr."
        assert harness.server.rejected == []
        sent = harness.server.requests[-1].body["messages"]
        assert [
            block["type"] for message in sent if message["role"] == "assistant" for block in message["content"]
        ] == ["text"]


async def test_a_context_that_fills_is_compacted_before_it_overflows():
    session = Session()
    for number in range(8):
        session.add_user_message(f"question {number}")
        session.add_assistant_message(f"answer {number} " + "word " * 20_000)

    def answer(body):
        return "## Goal\nto answer" if "about to be shortened" in str(body.body["messages"][-1]) else "short again"

    async with wire_harness("anthropic", answer) as harness:
        ended = await harness.run_turn("and now?", session=session)
        summarising, asking = harness.server.requests
        assert ended.output == "short again"
        assert len(str(asking.body)) < len(str(summarising.body)) / 3
        (compaction,) = harness.events_of(ContextCompactionEvent)
        assert compaction.tokens_after < compaction.tokens_before / 3
        states = [event.new_state for event in harness.events_of(StateChangedEvent)]
        assert states == ["compacting", "calling_model", "done"]


async def test_money_is_limited_before_it_is_spent():
    """The answer may be no longer than what is left pays for."""
    async with wire_harness(
        "anthropic", lambda body: [call("add", f"c{new_id()}", a=len(body.body["messages"]), b=1)]
    ) as harness:
        result = await async_run(
            harness.agent(), "go", [], [add], [harness.provider], limits=Limits(cost=Decimal("0.006"), turns=20)
        )
        rooms = [body.body["max_tokens"] for body in harness.server.requests]
        assert result.termination_reason == "limit"
        assert result.usage.total_cost is not None
        assert result.usage.total_cost <= Decimal("0.006")
        assert rooms[1:] == sorted(rooms[1:], reverse=True)
        assert max(rooms) <= 400
