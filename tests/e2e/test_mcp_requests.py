"""Requests of MCP servers during a call (forms, URLs, model answers) become questions in every front end."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from outrider import Agent, Engine, Provider
from outrider.engine.questions import QuestionQueue
from outrider.mcp import Elicitation, ElicitationReply, McpToolset, ServerLimits, StdioServer
from outrider.providers.scripted import call
from tests.e2e.test_mcp_engine import SCRIPTS, calls, entry, have, settled
from tests.fixtures.standard_engine import Place

ALLOWED = {"allow": ("mcp__*",)}
FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name", "minLength": 2},
        "age": {"type": "integer", "minimum": 0, "maximum": 150, "default": 30},
        "member": {"type": "boolean"},
        "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}, "maxItems": 2},
        "mail": {"type": "string", "format": "email"},
    },
    "required": ["name", "age", "member", "size", "tags"],
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def form(schema: dict[str, Any] = FORM, message: str = "Who are you?") -> str:
    return json.dumps({"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}})


async def answered(
    place: Place, script: list[Any], answers: list[Any], **options: Any
) -> tuple[list[Any], list[str], list[Any]]:
    """Runs the script with a user who gives these answers; returns the calls, the texts of the questions, and the
    questions."""
    questions = QuestionQueue()
    asked: list[Any] = []

    async def answer() -> None:
        for text in answers:
            while not questions.open_questions():
                await asyncio.sleep(0.01)
            (question,) = questions.open_questions()
            asked.append(question)
            await asyncio.sleep(text if isinstance(text, float) else 0)
            questions.answer(question.id, ["Done"] if isinstance(text, float) else text)
            await asyncio.sleep(0.02)

    async with place.engine(
        script, attended=True, bus=questions.bus, ask=questions.ask, **(ALLOWED | options)
    ) as engine:
        await settled(engine)
        session = await engine.create(workspace=place.workspace)
        user = asyncio.create_task(answer())
        await asyncio.wait_for(engine.prompt(session, "go"), 60)
        user.cancel()
        found = await calls(engine, session)
        assert {question.session_id for question in asked} <= {session}
    return found, [question.text for question in asked], asked


async def test_a_form_is_asked_field_by_field_and_invalid_answers_are_asked_again(place):
    have(place, one=entry("raw_server.py"))
    answers = [["Ada"], ["old"], ["36"], ["Yes"], ["Large"], ["a", "c"], ["Skip"]]
    (part,), texts, asked = await answered(place, [[call("mcp__one__ask", text=form())], "done"], answers)
    expected = {"name": "Ada", "age": 36, "member": True, "size": "l", "tags": ["a", "c"]}
    assert json.loads(part.state.output) == {"action": "accept", "content": expected}
    assert texts[0].startswith("The MCP server one asks: Who are you? (1 of 6)")
    assert "'old' is not a whole number" in texts[2]
    assert asked[1].options == ("30", "Decline")
    assert asked[4].options == ("Small", "Large", "Decline")
    assert asked[5].multiple
    assert part.state.metadata["waited_ms"] > 0


@pytest.mark.parametrize(("text", "action"), [(["Decline"], "decline"), ([], "cancel"), (["x"], "cancel")])
async def test_a_form_can_be_declined_or_left(place, text, action):
    have(place, one=entry("raw_server.py"))
    (part,), _, _ = await answered(place, [[call("mcp__one__ask", text=form())], "done"], [text] * 3)
    assert json.loads(part.state.output)["action"] == action


async def test_a_form_with_nested_values_or_too_many_fields_is_declined_unasked(place):
    have(place, one=entry("raw_server.py"))
    many = {"type": "object", "properties": {f"f{n}": {"type": "string"} for n in range(21)}}
    nested = {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}}
    script = [[call("mcp__one__ask", text=form(schema))] for schema in (many, nested)]
    found, texts, _ = await answered(place, [*script, "done"], [])
    assert [json.loads(part.state.output)["action"] for part in found] == ["decline", "decline"]
    assert not texts


async def test_an_address_is_shown_in_full_and_nothing_else_opens_it(place):
    have(place, one=entry("raw_server.py"))

    def visit(url: str) -> str:
        params = {"mode": "url", "message": "Log in", "url": url, "elicitationId": "1"}
        return json.dumps({"method": "elicitation/create", "params": params})

    urls = ("https://login.example/a?b=c", "javascript:alert(1)", "file:///etc/passwd")
    script = [[call("mcp__one__ask", text=visit(url))] for url in urls]
    found, texts, _ = await answered(place, [*script, "done"], [["Done"]])
    assert [json.loads(part.state.output)["action"] for part in found] == ["accept", "decline", "decline"]
    assert "login.example" in texts[0]
    assert "https://login.example/a?b=c" in texts[0]


async def test_a_call_that_needs_a_visit_is_repeated_after_it(place):
    have(place, one=entry("raw_server.py"))
    wanted = call("mcp__one__visit", text="https://login.example/grant")
    (part,), texts, _ = await answered(place, [[wanted], "done"], [["Done"]])
    assert part.state.output == "visited"
    assert "https://login.example/grant" in texts[0]
    (refused,), _, _ = await answered(place, [[wanted], "done"], [["Decline"]])
    assert "visit first" in refused.state.error


async def test_the_time_limit_pauses_while_the_user_answers(tmp_path):
    async def accept_slowly(question: Elicitation) -> ElicitationReply:
        await asyncio.sleep(2)
        return ElicitationReply("accept")

    params = {"mode": "url", "message": "Log in", "url": "https://login.example/", "elicitationId": "1"}
    text = json.dumps({"method": "elicitation/create", "params": params})
    script = [[call("mcp__one__ask", text=text)], [call("mcp__one__hang", text="")], "done"]
    agent = Agent("helper", "You help.", model="any", provider="scripted")
    one = StdioServer(name="one", command=sys.executable, args=("-S", str(SCRIPTS / "raw_server.py")))
    async with (
        McpToolset(one, limits=ServerLimits(call=1), workspace=tmp_path, ask=accept_slowly) as toolset,
        Engine([agent], [Provider("scripted", "scripted", options={"script": script})], toolset.tools) as engine,
    ):
        session = await engine.create()
        await asyncio.wait_for(engine.prompt(session, "go"), 60)
        found = await calls(engine, session)
    assert json.loads(found[0].state.output)["action"] == "accept"
    assert found[1].state.reason == "timeout"


async def test_the_model_answers_for_a_server_after_the_user_allows_it(place):
    have(place, one=entry("raw_server.py"))
    message = {"role": "user", "content": {"type": "text", "text": "What is the capital of France?"}}
    params = {"messages": [message], "systemPrompt": "Be short.", "maxTokens": 100}
    sample = call("mcp__one__ask", text=json.dumps({"method": "sampling/createMessage", "params": params}))
    script = [[sample], "Paris", [sample], "Paris!", "done"]
    found, texts, _ = await answered(place, script, [["Allow for this session"]])
    assert [json.loads(part.state.output)["content"]["text"] for part in found] == ["Paris", "Paris!"]
    assert len(texts) == 1
    assert "What is the capital of France?" in texts[0]
    sampled = place.requests[1]
    assert (sampled.system, sampled.tools, sampled.settings.max_output_tokens) == ("Be short.", (), 100)
    assert len(sampled.prompt) == 1
    assert len(place.requests) == 5
    (refused,), _, _ = await answered(place, [[sample], "done"], [["No"]])
    assert "the user has refused it" in refused.state.output


async def test_without_a_user_servers_are_not_offered_to_ask(place):
    have(place, one=entry("raw_server.py"))
    async with place.engine([[call("mcp__one__ask", text=form())], "done"], **ALLOWED) as engine:
        await settled(engine)
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
        (part,) = await calls(engine, session)
    assert "action" not in part.state.output


async def test_in_background_mode_no_one_is_asked(place):
    have(place, one=entry("raw_server.py"))
    (part,), texts, _ = await answered(place, [[call("mcp__one__ask", text=form())], "done"], [], mode="background")
    assert json.loads(part.state.output)["action"] == "decline"
    assert not texts
