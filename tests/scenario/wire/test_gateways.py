"""Compatible servers reject optional fields in different ways; the request is repeated once without them."""

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from outrider import Agent, Engine, InvalidRequestError, Provider, Tokens, Tool, async_complete, async_run
from outrider.stores import MemoryStore
from outrider.testing import SimulatedError, SimulatedRequest, Simulator
from outrider.types.request import ModelSettings, OutputSchema, ToolChoice
from tests.fixtures.http_server import Reply, serving


def look(path: str) -> str:
    """Look at a file."""
    return f"{path} is empty"


def has_strict_tool(body: dict[str, Any]) -> bool:
    return any("strict" in tool["function"] for tool in body.get("tools", ()))


def has_schema(body: dict[str, Any]) -> bool:
    return body.get("response_format", {}).get("type") == "json_schema"


def has_field(name: str) -> Any:
    return lambda body: name in body


REJECTED_FIELDS = [
    ("stream_options", "[{'type': 'extra_forbidden', 'loc': ('body', 'stream_options'), 'msg': 'Extra inputs'}]"),
    ("stream_options", 'json: unknown field "stream_options"'),
    ("reasoning_effort", "Unrecognized request argument supplied: reasoning_effort"),
    ("reasoning_effort", "litellm.UnsupportedParamsError: openai does not support parameters: ['reasoning_effort']"),
    ("reasoning_effort", '"gpt-oss:20b" does not support thinking'),
    (
        "temperature",
        "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value.",
    ),
    ("temperature", "temperature: Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("field", "message"), REJECTED_FIELDS)
async def test_a_field_that_a_gateway_rejects_is_left_out_from_then_on(field, message):
    def answer(request: SimulatedRequest) -> Any:
        return SimulatedError(400, message) if field in request.body else "ok"

    async with Simulator(answer, any_model=True) as server:
        provider = server.provider("openai", "gateway", dialect="compatible")
        agent = Agent("writer", "You write.", "gpt-oss:20b", "gateway", temperature=0.2)
        session = None
        for _ in range(2):
            result = await async_run(
                agent, "hi", agents=[agent], tools=[Tool(look)], providers=[provider], session=session
            )
            session = result.session
            assert result.output == "ok"
        assert [field in request.body for request in server.requests][:2] == [True, False]
        assert "tools" in server.requests[-1].body


@pytest.mark.parametrize(
    ("is_rejected", "message"),
    [
        (has_strict_tool, "Unrecognized key(s) in object: 'strict' at tools.0.function"),
        (has_field("parallel_tool_calls"), "Unknown parameter: 'parallel_tool_calls'."),
        (has_field("tool_choice"), "tool_choice is not supported by this model"),
        (has_schema, "response_format type json_schema is not supported, use json_object"),
        (has_field("response_format"), "This response_format type is unavailable now"),
    ],
)
async def test_settings_of_one_call_that_a_gateway_rejects_are_left_out(is_rejected, message):
    def answer(request: SimulatedRequest) -> Any:
        return SimulatedError(400, message) if is_rejected(request.body) else "{}"

    settings = ModelSettings(
        tool_choice=ToolChoice("none", parallel=False),
        output=OutputSchema({"type": "object", "properties": {}, "additionalProperties": False}),
    )
    async with Simulator(answer, any_model=True) as server:
        tools = [replace(Tool(look).spec(), strict=True)]
        provider = server.provider("openai", "gateway", dialect="compatible")
        found = await async_complete(provider, "own", "hi", tools=tools, settings=settings)
        assert found.message.get_text_content() == "{}"
        assert is_rejected(server.requests[0].body)
        assert not is_rejected(server.requests[-1].body)


async def test_a_tool_that_must_be_called_is_not_left_out():
    script = lambda request: SimulatedError(400, "tool_choice is not supported by this model")  # noqa: E731
    async with Simulator(script, any_model=True) as server:
        provider = server.provider("openai", "gateway", dialect="compatible")
        settings = ModelSettings(tool_choice=ToolChoice("required"))
        with pytest.raises(InvalidRequestError, match="tool_choice"):
            await async_complete(provider, "own", "hi", tools=[Tool(look).spec()], settings=settings)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "registry.ollama.ai/library/gemma:2b does not support tools"),
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        (404, "No endpoints found that support tool use. To learn more about provider routing, visit the docs"),
        (500, "tools param requires --jinja flag"),
    ],
)
async def test_a_model_without_native_tools_gets_them_as_text(status, message):
    def answer(request: SimulatedRequest) -> Any:
        if "tools" in request.body:
            return SimulatedError(status, message)
        if "is empty" in request.texts[-1]:
            return "It is empty."
        return 'I look. <tool_call>\n{"name": "look", "arguments": {"path": "a.txt"}}\n</tool_call>'

    async with Simulator(answer, any_model=True) as server:
        provider = server.provider("openai", "gateway", dialect="compatible")
        agent = Agent("writer", "You write.", "gemma:2b", "gateway")
        result = await async_run(agent, "go", agents=[agent], tools=[Tool(look)], providers=[provider])
        assert result.output == "It is empty."
        assert ["tools" in request.body for request in server.requests] == [True, False, False]
        (called,) = [call for message in result.session.messages for call in message.get_calls()]
        assert (called.tool, called.state.input) == ("look", {"path": "a.txt"})


async def test_an_overload_says_nothing_about_tools():
    def answer(request: SimulatedRequest) -> Any:
        if len(server.requests) <= 2:
            return SimulatedError(503, "overloaded")
        if "tools" in request.body:
            return SimulatedError(400, "the model does not support tools")
        return "Done."

    async with Simulator(answer, any_model=True) as server:
        provider = server.provider(
            "openai", "gateway", dialect="compatible", retry={"attempts": 2, "first_window": 0.01}
        )
        agent = Agent("writer", "You write.", "gemma:2b", "gateway")
        async with Engine([agent], [provider], [Tool(look)], store=MemoryStore()) as engine:
            session = await engine.create()
            assert (await engine.prompt(session, "go")).reason == "error"
            assert (await engine.prompt(session, "go")).output == "Done."
        assert ["tools" in request.body for request in server.requests] == [True, True, True, False]


async def test_a_temperature_that_a_reasoning_model_rejects_is_left_out_after_a_switch():
    def answer(request: SimulatedRequest) -> Any:
        if "temperature" in request.body:
            return SimulatedError(400, "Unsupported parameter: 'temperature' is not supported with this model.")
        return "ok"

    async with Simulator(answer, any_model=True) as server:
        agent = Agent("writer", "You write.", "gpt-5.4", "vendor", temperature=0.2)
        provider = server.provider("openai-responses", "vendor")
        result = await async_run(agent, "hi", agents=[agent], tools=[], providers=[provider])
        assert result.output == "ok"
        assert ["temperature" in request.body for request in server.requests] == [True, False]


COSTS = [
    ({"cost": 0.0123}, "0.0123"),
    ({"cost": "0.5"}, "0.5"),
    ({"cost": 0}, "0"),
    ({"cost": {"total_cost": 0.006, "request_cost": 0.005}}, "0.006"),
    ({"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.02}}, "0.021"),
    ({"cost": 0.001, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.02}}, "0.001"),
    ({"cost": -5}, None),
    ({"cost": 1e300}, None),
    ({"cost": [1]}, None),
    ({"cost": True}, None),
    ({"cost": msgspec.Raw(b"1e999")}, None),
]


@pytest.mark.parametrize(("usage", "cost"), COSTS)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_cost_that_a_gateway_reports_is_used(usage, cost, stream):
    token_counts = {"prompt_tokens": 10, "completion_tokens": 5, **usage}
    text = {"content": "ok", "role": "assistant"}
    answer: dict[str, Any] = {
        "id": "1",
        "model": "own",
        "choices": [{"index": 0, "message": text}],
        "usage": token_counts,
    }
    answer["choices"][0] |= {"finish_reason": "stop"} | ({"delta": text} if stream else {})
    body = msgspec.json.encode(answer)
    async with serving(Reply([b"data: " + body + b"\n\ndata: [DONE]\n\n"] if stream else [body])) as server:
        agent = Agent("writer", "You write.", "own", "gateway", stream=stream)
        provider = Provider("gateway", "openai", "key", f"{server.url}/v1")
        result = await async_run(agent, "hi", agents=[agent], tools=[], providers=[provider])
        answered = result.session.messages[-1]
    assert answered.tokens == Tokens(10, 5)
    assert answered.cost == (None if cost is None else Decimal(cost))


def has_adaptive_thinking(body: dict[str, Any]) -> bool:
    return body.get("thinking", {}).get("type") == "adaptive"


def has_mark(body: dict[str, Any]) -> bool:
    return b"cache_control" in msgspec.json.encode(body)


def has_summary(body: dict[str, Any]) -> bool:
    return "summary" in body.get("reasoning", {})


def has_strict(body: dict[str, Any]) -> bool:
    return any("strict" in tool for tool in body["tools"])


CLAUDE, GPT = ("anthropic", "claude-opus-4-6"), ("openai-responses", "gpt-5.4")
REFUSALS = [
    (CLAUDE, has_field("thinking"), "thinking: Extra inputs are not permitted"),
    (CLAUDE, has_adaptive_thinking, "thinking.type: Input should be 'enabled' or 'disabled'"),
    (CLAUDE, has_adaptive_thinking, "thinking: Input tag 'adaptive' found using 'type' does not match 'enabled'"),
    (CLAUDE, has_field("output_config"), "output_config: Extra inputs are not permitted"),
    (CLAUDE, has_mark, "system.0.cache_control: Extra inputs are not permitted"),
    (CLAUDE, has_mark, "messages.0.content.0.text.cache_control: Extra inputs are not permitted"),
    (
        CLAUDE,
        lambda body: body["max_tokens"] > 8192,
        "The maximum tokens you requested exceeds the model limit of 8192.",
    ),
    (GPT, has_field("include"), "Unrecognized request argument supplied: include"),
    (GPT, has_field("store"), "Unknown parameter: 'store'."),
    (GPT, has_field("reasoning"), "Unknown parameter: 'reasoning'."),
    (GPT, has_field("reasoning"), "reasoning is not supported by this model"),
    (GPT, has_summary, "Unsupported parameter: 'reasoning.summary' is not supported with this model."),
    (GPT, has_strict, "Unknown parameter: 'tools[0].strict'."),
]


@pytest.mark.parametrize(("model", "is_rejected", "message"), REFUSALS)
async def test_a_gateway_to_a_vendor_that_lacks_a_field_is_asked_once_more_without(model, is_rejected, message):
    def answer(request: SimulatedRequest) -> Any:
        return SimulatedError(400, message) if is_rejected(request.body) else "ok"

    async with Simulator(answer, any_model=True) as server:
        agent = Agent("writer", "You write.", model[1], "vendor")
        provider = server.provider(model[0], "vendor")
        result = await async_run(agent, "hi", agents=[agent], tools=[Tool(look)], providers=[provider])
        assert result.output == "ok"
        assert [is_rejected(request.body) for request in server.requests] == [True, False]
        has_reasoning = server.requests[-1].body.keys() & {"thinking", "reasoning"}
        assert bool(has_reasoning) is not message.startswith(
            ("thinking: Extra", "reasoning is", "Unknown parameter: 'r")
        )
