"""A session continues with another model of any vendor, between turns and in the middle of one, and none refuses it."""

from itertools import product
from typing import Any

import pytest

from outrider import Agent, Attachment, Engine, FilePart, ReasoningPart, Session, TextPart, Tool, ToolResult, async_run
from outrider.providers.openai.responses_client import ResponsesWire
from outrider.providers.scripted import call
from outrider.testing.simulator import Simulator
from outrider.testing.simulator_answers import MaxTokens, SimulatedReasoning
from outrider.testing.simulator_rules import SIGNATURES

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
MODELS = [
    ("anthropic", "claude-sonnet-4-5"),  # a thinking budget: the strictest rules for earlier answers
    ("anthropic", "claude-opus-5-5"),
    ("openai", "gpt-5.4"),
    ("openai-responses", "gpt-5.4"),
    ("google", "gemini-2.5-pro"),
    ("google", "gemini-3.1-pro"),
]
each_pair = pytest.mark.parametrize(("first", "second"), list(product(MODELS, MODELS)))
CALL_IDS = {
    "anthropic": "toolu_01A09q90qw90lq917835lq9",
    "openai": "call_abc",
    "openai-responses": "call_" + "x" * 59,
    "google": "function-call-1234567890.5|long-" + "y" * 60,
}


def look(path: str) -> ToolResult:
    """Look at a picture."""
    return ToolResult(f"this is {path}", (Attachment("image/png", PIXEL, name="dot.png"),))


def fail() -> str:
    """Always fails."""
    raise ValueError("it broke")


TOOLS = [Tool(look), Tool(fail)]


def turn(kind: str, number: int) -> list[Any]:
    """Two steps: reasoning with parallel calls, one of which fails, then an answer."""
    thought = [SimulatedReasoning("hm")] if kind in SIGNATURES else []
    calls = [call("look", f"{CALL_IDS[kind]}_{number}", path="a.png"), call("fail", f"f{number}-{CALL_IDS[kind]}")]
    return [[*thought, "Let me see.", *calls], [*thought, "It is a dot."]]


async def answer(server: Simulator, kind: Any, model: str, session: Session, message: Any) -> None:
    provider = server.provider(kind, "vendor")
    agent = Agent("writer", "You write.", model, "vendor")
    await async_run(agent, message, agents=[agent], tools=TOOLS, providers=[provider], session=session)


@each_pair
async def test_a_turn_of_one_model_is_continued_by_another_and_back(first, second):
    session = Session()
    refused: list[str] = []
    for number, (kind, model) in enumerate((first, second, first)):
        async with Simulator(turn(kind, number)) as server:
            picture = FilePart("image/png", f"data:image/png;base64,{PIXEL}", "dot.png")
            session.add_user_message([f"What is this? ({number})", picture])
            await answer(server, kind, model, session, "Look at it.")
            assert len(server.requests) == 2
            refused += server.rejected
    assert refused == []


@each_pair
async def test_an_answer_that_waits_for_results_is_continued_by_another_model(first, second):
    """The first model makes calls and its next request fails; the second one gets the results."""
    session = Session()
    async with Simulator([turn(first[0], 0)[0], MaxTokens()]) as server:
        await answer(server, *first, session, "Look at it.")
        assert server.rejected == []
    del session.messages[-1]  # the answer that broke off
    async with Simulator([turn(second[0], 1)[1]]) as server:
        provider = server.provider(second[0], "vendor")
        agent = Agent("writer", "You write.", second[1], "vendor")
        await async_run(agent, "", agents=[agent], tools=TOOLS, providers=[provider], session=session)
        assert server.rejected == []
        (request,) = server.requests
        assert request.results


@each_pair
async def test_an_empty_answer_and_a_broken_one_do_not_stop_the_next_model(first, second):
    session = Session()
    thought = [SimulatedReasoning("hm")] if first[0] in SIGNATURES else []
    async with Simulator([[*thought, MaxTokens()]]) as server:
        await answer(server, *first, session, "Go.")
    async with Simulator(["Done."]) as server:
        await answer(server, *second, session, "Go on.")
        assert (server.rejected, len(server.requests)) == ([], 1)


SEARCHED = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "dots"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
RAN = {
    "type": "code_interpreter_call",
    "id": "ci_1",
    "code": "1",
    "container_id": "c",
    "status": "completed",
    "outputs": [],
}
OF_VENDORS = {
    "anthropic": [{"block": SEARCHED}, {"block": FOUND}],
    "openai-responses": [{"item": {"type": "web_search_call", "id": "ws_1", "status": "completed"}}, {"item": RAN}],
    "google": [{"part": {"executableCode": {"code": "1"}}}, {"part": {"codeExecutionResult": {"outcome": "OK"}}},
               {"grounding": {"webSearchQueries": ["dots"]}}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "kind", "model"),
    [(family, kind, model) for family, (kind, model) in product(OF_VENDORS, MODELS) if kind != family],
)
@pytest.mark.parametrize("expected", [True, False])
async def test_what_tools_of_another_vendor_left_is_not_sent(family, kind, model, expected):
    session = Session()
    session.add_user_message("Search for dots.")
    parts = [ReasoningPart("", provider_state={"family": family, **state}) for state in OF_VENDORS[family]]
    session.add_assistant_message([*parts, *([TextPart("Dots.")] if expected else [])], finish="stop")
    async with Simulator(["Done."]) as server:
        await answer(server, kind, model, session, "Go on.")
        assert (server.rejected, len(server.requests)) == ([], 1)
        sent = str(server.requests[0].body)
    assert not any(mark in sent for mark in ("srvtoolu_1", "ws_1", "executableCode", "webSearchQueries"))


@pytest.mark.parametrize(
    ("kind", "model", "marks"),
    [
        ("anthropic", "claude-sonnet-4-6", ("srvtoolu_1", "web_search_tool_result")),
        ("openai-responses", "gpt-5.4", ("ws_1", "ci_1")),
        ("google", "gemini-3.1-pro", ("executableCode", "codeExecutionResult")),
    ],
)
async def test_what_tools_of_the_vendor_left_is_sent_back_to_it(kind, model, marks):
    session = Session()
    session.add_user_message("Search for dots.")
    async with Simulator(["Done."]) as server:
        is_openai = kind == "openai-responses"  # a family for each service
        family = ResponsesWire(server.provider(kind, "vendor")).model_family(model) if is_openai else kind
        parts = [ReasoningPart("", provider_state={"family": family, **state}) for state in OF_VENDORS[kind]]
        session.add_assistant_message([*parts, TextPart("Dots.")], finish="stop")
        await answer(server, kind, model, session, "Go on.")
        assert (server.rejected, len(server.requests)) == ([], 1)
        sent = str(server.requests[0].body)
    assert [mark for mark in marks if mark not in sent] == []
    assert "webSearchQueries" not in sent  # metadata of an answer, which the API does not take back


@pytest.mark.parametrize("model", ["gemini-2.5-pro", "gemini-3.1-pro"])
async def test_a_signature_without_text_is_sent_back_in_a_summary_request_without_tools(model):
    """The first summary request is answered with a call, so the second one has the calls as text."""

    def answer(request):
        if "about to be shortened" in request.texts[-1]:
            return [call("look", "s1", path="b.png")] if "tools" in request.body else "a summary"
        if len(request.texts) % 2:
            return [
                SimulatedReasoning("hm"),
                SimulatedReasoning("more"),
                "Let me see.",
                call("look", "c1", path="a.png"),
            ]
        return "It is a dot. " + "word " * 500

    async with Simulator(answer) as server:
        agent = Agent("writer", "You write.", model, "vendor", stream=False)
        async with Engine([agent], [server.provider("google", "vendor")], TOOLS) as engine:
            session = await engine.create()
            for number in range(3):
                await engine.prompt(session, f"Look at it. ({number})")
            assert await engine.compact(session) is not None
        assert server.rejected == []
