"""The public modules as a program uses them: fallback models, workspaces, MCP servers, providers of its own."""

import socket
from typing import Any

import pytest

from outrider import Agent, ConfigurationError, Provider, RetryPart, RetryPolicy, async_run
from outrider.testing import SimulatedError, Simulator

QUICK = RetryPolicy(first_window=0.0)
MODELS = {"anthropic": "claude-opus-4-6", "openai": "gpt-5", "openai-responses": "gpt-5", "google": "gemini-3-pro"}
OUTAGES = {
    "overload": {
        "anthropic": SimulatedError(529, "Overloaded", "overloaded_error"),
        "openai": SimulatedError(503, "The server is overloaded.", "server_error"),
        "openai-responses": SimulatedError(503, "The server is overloaded.", "server_error"),
        "google": SimulatedError(503, "The model is overloaded.", "UNAVAILABLE"),
    },
    "quota": {
        "anthropic": SimulatedError(400, "Your credit balance is too low to access the API.", "invalid_request_error"),
        "openai": SimulatedError(429, "You exceeded your current quota.", "insufficient_quota"),
        "openai-responses": SimulatedError(429, "You exceeded your current quota.", "insufficient_quota"),
        "google": SimulatedError(429, "You exceeded your current quota, check your plan.", "RESOURCE_EXHAUSTED"),
    },
}


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("outage", ["overload", "quota", "unreachable"])
@pytest.mark.parametrize("kind", list(MODELS))
async def test_the_next_model_of_a_list_answers_once_and_the_change_is_recorded(kind: Any, outage: str):
    def answer(request: Any) -> Any:
        return OUTAGES[outage][kind] if outage in OUTAGES and request.kind == kind else "from the next model"

    other: Any = "openai" if kind == "anthropic" else "anthropic"
    async with Simulator(answer) as simulator:
        first = simulator.provider(kind)
        if outage == "unreachable":
            first = Provider("x", kind, "key", f"http://127.0.0.1:{closed_port()}")
        providers = [
            Provider("first", kind, first.api_key, first.base_url),
            Provider("second", other, "key", simulator.provider(other).base_url),
        ]
        names = [f"first/{MODELS[kind]}", f"second/{MODELS[other]}", f"second/{MODELS[other]}-never"]
        agent = Agent("helper", "You help.", model=names, provider="first", retry=QUICK)
        result = await async_run(agent, "Hello", providers=providers)
        requested = [request.kind for request in simulator.requests]
        assert {request.model for request in simulator.requests} <= set(MODELS.values())
    assert result.output == "from the next model"
    assert requested.count(other) == 1
    answers = [message for message in result.session.messages if message.role == "assistant"]
    assert [str(message.model) for message in answers] == [f"second/{MODELS[other]}"]
    assert [str(part.model) for part in answers[0].get_parts_by_type(RetryPart) if part.model] == [
        f"second/{MODELS[other]}"
    ]
    assert [message.role for message in result.session.messages] == ["user", "assistant"]


def test_a_list_of_models_has_at_least_one_name():
    for models in ([], [""], [3]):
        with pytest.raises(ConfigurationError, match="'helper'.*model"):
            Agent("helper", "", model=models, provider="p")  # type: ignore[arg-type]
