"""The simulator rejects what the vendors reject, with their error bodies."""

import copy
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from outrider import Agent, ContextOverflowError, Tool, async_complete, async_run, complete
from outrider.errors import InvalidRequestError
from outrider.testing import BrokenConnection, SimulatedError, SimulatedReasoning, Simulator, call
from outrider.testing.simulator import SIMULATED_APIS, ApiKind
from outrider.testing.simulator_rules import claude_version

KINDS: list[ApiKind] = ["anthropic", "openai", "openai-responses", "google"]
each = pytest.mark.parametrize("kind", KINDS)


@Tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def accepted_body(kind: ApiKind) -> dict[str, Any]:
    """Body of a request with a call and its result."""
    async with Simulator([["Let me see.", call("add", "c1", a=1, b=2)], "3"]) as simulator:
        agent = Agent("writer", "You write.", SIMULATED_APIS[kind].model, "simulator")
        await async_run(agent, "add", [agent], [add], [simulator.provider(kind)])
        simulator.check()
        return simulator.requests[1].body


def problem_of(kind: ApiKind, body: dict[str, Any], model: str = "") -> str:
    rules, model = SIMULATED_APIS[kind].rules, model or SIMULATED_APIS[kind].model
    return next((one for rule in (rules.conversation_problems, rules.model_problems) for one in rule(body, model)), "")


def entries(body: dict[str, Any]) -> list[Any]:
    return body.get("messages") or body.get("input") or body["contents"]


def end_with_assistant(kind: ApiKind, body: dict[str, Any]) -> None:
    last = {"role": "model", "parts": [{"text": "so"}]} if kind == "google" else {"role": "assistant", "content": "so"}
    entries(body).append(last)


def remove_content(kind: ApiKind, body: dict[str, Any]) -> None:
    entries(body)[1 if kind == "openai" else 0]["parts" if kind == "google" else "content"] = []


def use_other_role(kind: ApiKind, body: dict[str, Any]) -> None:
    entries(body)[0]["role"] = "wizard"


def repeat_calls(kind: ApiKind, body: dict[str, Any]) -> None:
    position = next(at for at, one in enumerate(entries(body)) if "c1" in str(one) or "functionCall" in str(one))
    entries(body).insert(position, copy.deepcopy(entries(body)[position]))


def add_unknown_field(kind: ApiKind, body: dict[str, Any]) -> None:
    body["colour"] = "red"


def break_schema(kind: ApiKind, body: dict[str, Any]) -> None:
    if kind == "google":
        body["tools"][0]["functionDeclarations"][0]["parameters"] = {"type": "object", "patternProperties": {}}
    else:
        tool = body["tools"][0].get("function", body["tools"][0])
        tool["input_schema" if kind == "anthropic" else "parameters"] = {"type": "string"}


def repeat_tools(kind: ApiKind, body: dict[str, Any]) -> None:
    tools = body["tools"][0]["functionDeclarations"] if kind == "google" else body["tools"]
    tools.append(tools[0])


@each
@pytest.mark.parametrize(
    "damage", [remove_content, use_other_role, repeat_calls, add_unknown_field, break_schema, repeat_tools]
)
async def test_a_damaged_request_is_rejected(kind, damage):
    body = await accepted_body(kind)
    assert problem_of(kind, body) == ""
    damage(kind, body)
    assert problem_of(kind, body)


@pytest.mark.parametrize(
    ("kind", "model", "rejected"),
    [
        ("anthropic", "claude-sonnet-4-5", False),
        ("anthropic", "claude-opus-4-6", True),
        ("anthropic", "claude-opus-5-5", True),
        ("google", "gemini-2.5-flash", True),
        ("openai", "gpt-4.1", False),
        ("openai-responses", "gpt-5-mini", False),
    ],
)
async def test_claude_4_6_and_gemini_reject_a_conversation_that_ends_with_the_assistant(kind, model, rejected):
    body = await accepted_body(kind)
    end_with_assistant(kind, body)
    assert bool(problem_of(kind, body, model)) is rejected


@pytest.mark.parametrize(
    ("model", "version"),
    [
        ("claude-3-5-haiku", (3, 5)),
        ("claude-3-haiku-20240307", (3, 0)),
        ("claude-sonnet-4-20250514", (4, 0)),
        ("claude-haiku-4-5", (4, 5)),
        ("claude-opus-4-6-20260101", (4, 6)),
        ("claude-opus-5", (5, 0)),
        ("some-claude", (99, 0)),
    ],
)
def test_the_version_of_a_claude_model_is_read_from_its_name(model, version):
    assert claude_version(model) == version


@each
def test_it_runs_in_a_thread_for_synchronous_programs_and_answers_with_the_error_of_the_vendor(kind):
    with Simulator(["Hello.", SimulatedError(400, "no numbers")]) as simulator:
        provider, model = simulator.provider(kind), SIMULATED_APIS[kind].model
        assert complete(provider, model, "hi").message.get_text_content() == "Hello."
        with pytest.raises(InvalidRequestError, match="no numbers") as error:
            complete(provider, model, "hi")
        assert error.value.status == 400
        assert [request.texts for request in simulator.requests] == [["hi"], ["hi"]]


@each
async def test_a_request_over_the_size_limit_gets_the_overflow_error(kind):
    async with Simulator(["never"], context_tokens=500) as simulator:
        with pytest.raises(ContextOverflowError):
            await async_complete(simulator.provider(kind), SIMULATED_APIS[kind].model, "word " * 5_000)
        assert (simulator.requests, len(simulator.rejected)) == ([], 1)


def test_a_request_without_a_key_and_one_for_no_api_are_rejected():
    with Simulator(["never"]) as simulator:
        for path, status in (("/v1/messages", 400), ("/v1/chat/completions", 401), ("/other", 404)):
            with pytest.raises(HTTPError) as error, urlopen(simulator.url() + path, data=b"{}"):
                pass
            assert error.value.code == status
            error.value.close()


@each
async def test_a_broken_connection_is_repeated_and_reasoning_returns_with_its_signature(kind):
    script = [["half ", BrokenConnection()], [SimulatedReasoning("hm"), call("add", "c1", a=1, b=2)], "3"]
    async with Simulator(script) as simulator:
        agent = Agent("writer", "You write.", SIMULATED_APIS[kind].model, "simulator")
        provider = simulator.provider(kind, retry={"attempts": 2, "first_window": 0.01})
        result = await async_run(agent, "add", [agent], [add], [provider])
        assert result.output == "3"
        simulator.check()
        assert len(simulator.requests[2].signatures) == (0 if kind == "openai" else 1)


async def test_an_error_of_the_script_is_reported_and_not_repeated():
    async with Simulator(lambda request: request.body["nothing"]) as simulator:
        agent = Agent("writer", "You write.", "claude-opus-4-6", "simulator")
        with pytest.raises(InvalidRequestError, match="the script raised"):
            await async_run(agent, "hi", [agent], [], [simulator.provider()])
        with pytest.raises(AssertionError, match="rejected"):
            simulator.check()
