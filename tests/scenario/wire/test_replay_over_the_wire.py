"""Recorded over a real connection with each API, and run again without one."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from outrider import RequestDiffers, Session, Tool, ToolPart, replay, what_if
from outrider.providers.scripted import call
from outrider.testing.simulator_answers import SIMULATED_APIS, SimulatedError, SimulatedReasoning
from tests.scenario.wire.wire_runs import wire_harness

each = pytest.mark.parametrize("kind", list(SIMULATED_APIS))
both = pytest.mark.parametrize("stream", [True, False])


@Tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@each
@both
async def test_a_session_goes_again_without_a_server(kind, stream, tmp_path: Path):
    asks = [SimulatedReasoning("hm"), "Let me see.", call("add", "c1", a=1, b=2), call("add", "c2", a=3, b=4)]
    async with wire_harness(kind, [asks, "It is 3 and 7.", "You are welcome."], stream=stream) as harness:
        session = Session()
        async with harness.engine([harness.agent()], [add], session, cassettes=tmp_path) as held:
            await held.prompt(session.id, "add")
            await held.prompt(session.id, "thanks")
    again = await replay(held, session.id)
    assert again.same, again.text()
    assert (len(again.steps), again.unused_exchanges) == (3, 0)
    assert again.session.usage == again.recorded.usage
    other = await replay(held.replace(agents=[harness.agent(instructions="You sing.")]), session.id)
    assert [type(one) for one in other.differences] == [RequestDiffers] * 3


@each
async def test_refused_and_retried_requests_are_sent_again_and_no_waiter_hangs(kind, tmp_path: Path):
    overloaded = SIMULATED_APIS[kind].overloaded
    script = [overloaded, [call("add", "c1", a=1, b=2)], SimulatedError(400, "no numbers, please"), "fine"]
    async with wire_harness(kind, script) as harness:
        session = Session()
        async with harness.engine([harness.agent()], [add], session, cassettes=tmp_path) as held:
            assert (await held.prompt(session.id, "add")).reason == "error"
            await held.prompt(session.id, "again")
    again = await replay(held, session.id)
    assert again.same, again.text()
    assert again.session.messages[-1].get_text_content() == "fine"


@each
async def test_no_key_is_on_the_cassette(kind, tmp_path: Path):
    async with wire_harness(kind, ["Hello."]) as harness:
        session = Session()
        harness.provider = replace(harness.provider, api_key="sk-very-secret-key-1234")
        async with harness.engine([harness.agent()], [], session, cassettes=tmp_path) as held:
            await held.prompt(session.id, "hi")
    (tape,) = tmp_path.glob("*.jsonl")
    assert tape.read_text().count("\n") == 2
    assert "sk-very-secret-key-1234" not in tape.read_text()
    assert (await replay(held, session.id)).same


@each
async def test_a_fork_asks_the_provider_and_its_request_is_accepted(kind, tmp_path: Path):
    script = [[call("add", "c1", a=1, b=2)], "It is 3.", "So it is 4."]
    async with wire_harness(kind, script) as harness:
        session = Session()
        async with harness.engine([harness.agent()], [add], session, cassettes=tmp_path) as held:
            await held.prompt(session.id, "add")
            (asked,) = (await held.open(session.id)).messages[1].get_parts_by_type(ToolPart)
            found = await what_if(held, session.id, results={asked.call_id: "4"})
            assert found.end.output == "So it is 4."
            assert harness.server.requests[2].results == ["4"]
            assert (found.comparison.a.answer, found.comparison.b.answer) == ("It is 3.", "So it is 4.")
        again = await replay(held, found.session.id)
        assert again.same, again.text()
