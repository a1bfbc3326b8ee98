"""The simulator rejects what the vendors reject, with their error bodies."""

import asyncio
import copy
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from outrider import Agent, ContextOverflowError, Tool, async_complete, async_run, complete
from outrider.errors import InvalidRequestError
from outrider.testing import BrokenConnection, SimulatedError, SimulatedReasoning, Simulator, call
from outrider.testing.model_rules import claude_version, model_exists
from outrider.testing.simulator_answers import SIMULATED_APIS, ApiKind

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
        ("google", "gemini-2.5-flash", False),
        ("google", "gemini-3-flash-preview", True),
        ("openai", "gpt-4.1", False),
        ("openai-responses", "gpt-5-mini", False),
    ],
)
async def test_claude_4_6_and_gemini_3_reject_a_conversation_that_ends_with_the_assistant(kind, model, rejected):
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
        ("claude-fable-5-1", (5, 1)),
        ("claude-sonnet-4@20250514", (4, 0)),
        ("claude-2.1", (2, 1)),
        ("some-claude", (99, 0)),
    ],
)
def test_the_version_of_a_claude_model_is_read_from_its_name(model, version):
    assert claude_version(model) == version


@each
def test_the_simulator_runs_in_a_thread_for_synchronous_programs_and_returns_vendor_errors(kind):
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


async def test_requests_are_read_in_every_form_that_http_allows():
    first = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
    chunked = (
        b"POST /v1/messages/count_tokens HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n"
        b'trailer: digest\r\n\r\n4;name=value\r\n{"a"\r\n4\r\n: 1}\r\n0\r\ndigest: x\r\n\r\n'
    )
    async with Simulator([]) as simulator:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(simulator.url()).port)
        writer.write(first + chunked + b"no request\r\n\r\n")
        answers = (await reader.read()).decode()  # the server closes the connection after the last one
        writer.close()
    statuses = [answer[:3] for answer in answers.split("HTTP/1.1 ")[1:]]
    assert statuses == ["100", "200", "200", "400"]
    assert '{"input_tokens":2}' in answers


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


@pytest.mark.slow
async def test_every_field_of_the_current_sdks_is_accepted():
    """The vendors add fields and models; their SDKs, which the tests install, have the current ones."""
    from anthropic.types import message_create_params as messages
    from anthropic.types.beta import message_create_params as beta_messages
    from openai.types.chat import completion_create_params as chat
    from openai.types.responses import response_create_params as responses

    fields: dict[ApiKind, set[str]] = {
        "anthropic": {*messages.MessageCreateParamsBase.__annotations__}
        | ({*beta_messages.MessageCreateParamsBase.__annotations__} - {"betas"}),  # a header
        "openai": {*chat.CompletionCreateParamsBase.__annotations__},
        "openai-responses": {*responses.ResponseCreateParamsBase.__annotations__},
    }
    for kind, names in fields.items():
        found = [name for name in names if _unknown_field(kind, {**await accepted_body(kind), name: None}, name)]
        assert found == [], kind


def _unknown_field(kind: ApiKind, body: dict[str, Any], name: str) -> bool:
    try:
        return any(name in one for one in SIMULATED_APIS[kind].rules.model_problems(body, SIMULATED_APIS[kind].model))
    except (TypeError, AttributeError):  # an empty value of a known field
        return False


@pytest.mark.slow
def test_every_model_of_the_current_sdks_exists():
    from typing import get_args

    from anthropic.types import ModelParam
    from openai.types.shared import AllModels, ChatModel

    for kind, names in (("anthropic", ModelParam), ("openai", ChatModel), ("openai-responses", AllModels)):
        listed = [name for part in (names, *get_args(names)) for name in get_args(part) if isinstance(name, str)]
        assert len(listed) > 15
        assert [name for name in listed if not model_exists(kind, name)] == []


def message(text: str = "hi") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 100}


def contents(*parts: dict[str, Any]) -> dict[str, Any]:
    roles = ["user" if "functionCall" not in part else "model" for part in parts]
    return {"contents": [{"role": role, "parts": [part]} for role, part in zip(roles, parts, strict=True)]}


ASK = {"text": "hi"}
USE = {"functionCall": {"name": "add", "args": {}}}
RESULT = {"functionResponse": {"name": "another_name", "response": {"result": 3}}}
LIMITED = {"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}, "additionalProperties": False}
FORMAT = {"type": "json_schema", "name": "x", "strict": True, "schema": {**LIMITED, "required": ["a"]}}


@pytest.mark.parametrize(
    ("kind", "model", "body", "problem"),
    [
        ("anthropic", "claude-sonnet-4-0", message() | {"temperature": 0.5, "top_p": 0.9}, ""),
        ("anthropic", "claude-opus-4-1", message() | {"temperature": 0.5, "top_p": 0.9}, "cannot both"),
        ("anthropic", "claude-sonnet-4-6", message() | {"temperature": 0.5}, ""),
        ("anthropic", "claude-opus-4-7", message() | {"temperature": 0.5}, "`temperature` is deprecated"),
        ("anthropic", "claude-fable-5", message() | {"top_k": 3}, "`top_k` is deprecated"),
        ("anthropic", "claude-opus-4-7", message() | {"temperature": 1}, ""),
        ("anthropic", "claude-sonnet-4-5", message() | {"output_format": {"type": "json_schema"}}, "Field required"),
        ("google", "gemini-2.5-flash", contents(ASK, USE, RESULT) | {"labels": {"team": "a"}}, ""),
        ("google", "gemini-2.5-flash", contents(ASK, USE, RESULT, RESULT), "number of function response parts"),
        ("google", "gemini-2.5-flash", {"contents": {"parts": {"text": "hi"}}, "tools": {"google_search": {}}}, ""),
        ("google", "gemini-2.5-flash", contents(ASK) | {"generationConfig": {"temperature": None}}, ""),
        ("openai", "gpt-4o", message() | {"temperature": None}, ""),
        ("openai-responses", "gpt-4o", {"input": "hi", "text": {"format": FORMAT}}, ""),
    ],
)
def test_rules_that_recordings_and_reports_of_users_show(kind: ApiKind, model: str, body: Any, problem: str):
    found = problem_of(kind, body, model)
    assert problem in found if problem else found == ""
