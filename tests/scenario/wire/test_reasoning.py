"""Reasoning is requested from every model that supports it, and no model refuses the request."""

from typing import Any

import pytest

from outrider import Agent, Tool, async_run
from outrider.testing.simulator import Simulator
from outrider.types.modes import REASONING_EFFORTS

ADD = Tool(lambda a, b: str(a + b), name="add")
MODELS = [
    ("anthropic", "claude-3-5-haiku", None),
    ("anthropic", "claude-haiku-4-5", {"type": "enabled", "budget_tokens": 8192}),
    ("anthropic", "claude-sonnet-4-6", {"type": "adaptive"}),
    ("anthropic", "claude-opus-4-8", {"type": "adaptive", "display": "summarized"}),
    ("anthropic", "claude-opus-5-5", {"type": "adaptive", "display": "summarized"}),
    ("openai-responses", "gpt-4.1", None),
    ("openai-responses", "gpt-5-chat-latest", None),
    ("openai-responses", "gpt-5", {"effort": "medium", "summary": "auto"}),
    ("openai-responses", "gpt-5.4", {"effort": "medium", "summary": "auto"}),
    ("openai", "gpt-4.1", None),
    ("openai", "gpt-5.1", "medium"),
    ("google", "gemini-2.0-flash", None),
    ("google", "gemini-2.5-pro", {"includeThoughts": True, "thinkingBudget": 8192}),
    ("google", "gemini-3.1-pro", {"includeThoughts": True, "thinkingLevel": "medium"}),
    ("google", "gemini-3.8-flash", {"includeThoughts": True, "thinkingLevel": "medium"}),
]


def reasoning_in(kind: str, body: Any) -> Any:
    match kind:
        case "anthropic":
            return body.get("thinking")
        case "openai":
            return body.get("reasoning_effort")
        case "openai-responses":
            return body.get("reasoning")
        case _:
            return body.get("generationConfig", {}).get("thinkingConfig")


async def request_of(
    kind: Any, model: str, *, tools: bool = False, dialect: str = "", **fields: Any
) -> tuple[Any, Any]:
    """The request that the model accepted, and why it refused others before."""
    async with Simulator(["done"] * 3) as server:
        options = {"dialect": dialect} if dialect else {}
        provider = server.provider(kind, "vendor", **options)
        agent = Agent("writer", "You write.", model, "vendor", **fields)
        await async_run(agent, "go", agents=[agent], tools=[ADD] if tools else [], providers=[provider])
        assert len(server.requests) == 1
        return server.requests[0].body, server.rejected


@pytest.mark.parametrize(("kind", "model", "expected"), MODELS)
async def test_reasoning_is_on_by_default_where_the_model_supports_it(kind, model, expected):
    body, refused = await request_of(kind, model)
    assert reasoning_in(kind, body) == expected
    assert refused == [], "known models never refuse a request"


@pytest.mark.parametrize("effort", REASONING_EFFORTS)
@pytest.mark.parametrize(("kind", "model", "expected"), MODELS)
async def test_every_effort_is_accepted_by_every_model(kind, model, expected, effort):
    body, refused = await request_of(kind, model, reasoning_effort=effort)
    assert refused == []
    if effort != "none":
        assert bool(reasoning_in(kind, body)) == bool(expected)


@pytest.mark.parametrize(
    ("kind", "model", "expected"),
    [
        ("anthropic", "claude-opus-4-8", None),  # reasons only on request
        ("anthropic", "claude-opus-5", {"type": "disabled"}),
        ("anthropic", "claude-opus-5-5", None),  # cannot stop; the effort is low
        ("openai-responses", "gpt-5", {"effort": "minimal"}),
        ("openai-responses", "gpt-5.4", {"effort": "none"}),
        ("openai", "gpt-5.1", "none"),
        ("google", "gemini-2.5-pro", {"thinkingBudget": 128}),
        ("google", "gemini-3.8-flash", {"thinkingLevel": "low"}),
    ],
)
async def test_none_turns_reasoning_off_as_far_as_the_model_allows(kind, model, expected):
    body, refused = await request_of(kind, model, reasoning_effort="none")
    assert (reasoning_in(kind, body), refused) == (expected, [])
    if model == "claude-opus-5-5":
        assert body["output_config"] == {"effort": "low"}


async def test_without_reasoning_nothing_is_sent():
    for kind, model, _ in MODELS:
        body, _ = await request_of(kind, model, reasoning=False)
        assert reasoning_in(kind, body) is None


@pytest.mark.parametrize(("model", "sent"), [("gpt-5.4", None), ("gpt-5.6-terra", "none")])
async def test_chat_requests_with_tools_have_no_effort_where_openai_refuses_it(model, sent):
    body, refused = await request_of("openai", model, tools=True)
    assert (body.get("reasoning_effort"), refused) == (sent, [])


@pytest.mark.parametrize("model", ["gpt-5.4", "gpt-5.6-terra"])
async def test_a_gateway_that_refuses_effort_with_tools_is_asked_once_more_without(model):
    body, refused = await request_of("openai", model, tools=True, dialect="compatible")
    assert body.get("reasoning_effort") in (None, "none")
    assert len(refused) == 1


async def test_unknown_levels_of_a_new_model_are_learned_from_one_refusal():
    body, refused = await request_of("openai-responses", "gpt-7-mini", reasoning_effort="xhigh")
    assert body["reasoning"]["effort"] == "high"
    assert len(refused) == 1


async def test_what_was_learned_holds_for_the_next_request():
    async with Simulator(["one", "two"]) as server:
        provider = server.provider("openai", "vendor", dialect="compatible")
        agent = Agent("writer", "You write.", "gpt-4.1", "vendor", reasoning=True)
        for _ in range(2):
            await async_run(agent, "go", agents=[agent], tools=[], providers=[provider])
        assert len(server.rejected) == 1
        assert [reasoning_in("openai", request.body) for request in server.requests] == [None, None]
