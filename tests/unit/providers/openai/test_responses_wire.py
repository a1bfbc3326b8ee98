"""Whole requests to the Responses API: where they go, what they ask for, and what stays the same from turn to turn."""

import json
from itertools import pairwise
from typing import Any

import pytest

from outrider.errors import (
    AuthenticationError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    RateLimitError,
)
from outrider.providers.openai.responses_client import ResponsesWire
from outrider.providers.provider import AdaptiveWireFormat, WireFormat
from outrider.types.agents import Provider
from outrider.types.parts import TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, OutputSchema, Prompt, Request, ToolChoice, ToolSpec

CLOSED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
OPEN = {"type": "object", "properties": {"n": {"type": "integer"}}}
READ = ToolSpec("read", "Read a file.", OPEN)


def wire(**fields: Any) -> ResponsesWire:
    return ResponsesWire(Provider("openai", "openai-responses", **{"api_key": "secret"} | fields))


def asked(*texts: str) -> Prompt:
    return Prompt(ModelMessage("user", (TextPart(text),)) for text in texts)


def body(model: str = "gpt-5", settings: ModelSettings | None = None, **fields: Any) -> dict[str, Any]:
    request = Request(model, asked("Hi"), settings=settings or ModelSettings(), **fields)
    return json.loads(wire().build_request(request).body)


def test_the_responses_wire_is_an_adaptive_wire_format():
    found: WireFormat = wire()
    assert isinstance(found, AdaptiveWireFormat)


def test_a_request_without_settings_depends_on_nothing_that_a_server_remembers():
    assert body() == {
        "model": "gpt-5",
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
    }


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4.1-mini", "openai/gpt-4o-mini"])
def test_a_model_that_never_reasons_is_not_asked_for_encrypted_reasoning(model: str):
    assert "include" not in body(model)


def test_the_system_text_and_the_name_of_the_conversation_have_separate_fields():
    found = body(system="Be brief.", conversation="c1", stream=False)
    assert (found["instructions"], found["prompt_cache_key"], "stream" in found) == ("Be brief.", "c1", False)


def test_settings_are_sent_in_this_apis_format():
    settings = ModelSettings(
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        reasoning=True,
        reasoning_effort="high",
        output=OutputSchema(CLOSED, "number", "a number"),
    )
    found = body(settings=settings)
    assert (found["max_output_tokens"], found["temperature"], found["top_p"]) == (9, 0.5, 0.9)
    assert found["reasoning"] == {"effort": "high", "summary": "auto"}
    assert found["text"]["format"] == {
        "type": "json_schema",
        "name": "number",
        "schema": CLOSED,
        "strict": True,
        "description": "a number",
    }


def test_a_schema_that_cannot_be_enforced_is_not_reported_to_be_strict():
    free = {"type": "object", "additionalProperties": {"type": "integer"}}
    sent = body(settings=ModelSettings(output=OutputSchema(free)))["text"]["format"]
    assert (sent["strict"], sent["schema"]) == (False, free)


@pytest.mark.parametrize(
    ("choice", "written"),
    [
        (ToolChoice(), {}),
        (ToolChoice("required"), {"tool_choice": "required"}),
        (ToolChoice("none", parallel=False), {"tool_choice": "none", "parallel_tool_calls": False}),
        (ToolChoice("tool", "read"), {"tool_choice": {"type": "function", "name": "read"}}),
    ],
)
def test_tools_and_the_choice_among_them(choice: ToolChoice, written: dict[str, Any]):
    found = body(tools=(READ,), settings=ModelSettings(tool_choice=choice))
    assert found["tools"] == [
        {"type": "function", "name": "read", "description": "Read a file.", "parameters": OPEN, "strict": False}
    ]
    assert {name: found[name] for name in ("tool_choice", "parallel_tool_calls") if name in found} == written


def test_extra_fields_are_merged_last():
    extra = {"store": True, "tools": [{"type": "web_search"}], "include": ["web_search_call.action.sources"]}
    found = body(tools=(READ,), settings=ModelSettings(extra=extra))
    assert found["store"] is True
    assert [tool["type"] for tool in found["tools"]] == ["function", "web_search"]
    assert found["include"] == ["reasoning.encrypted_content", "web_search_call.action.sources"]


def test_openai_is_where_requests_go_by_default():
    call = wire().build_request(Request("m", asked("Hi")))
    assert call.url == "https://api.openai.com/v1/responses"
    assert call.headers["authorization"] == "Bearer secret"


def test_azure_wants_a_version_and_a_separate_header():
    azure = wire(base_url="https://a.openai.azure.com/openai/", options={"api_version": "2025-04-01-preview"})
    call = azure.build_request(Request("m", asked("Hi")))
    assert call.url == "https://a.openai.azure.com/openai/responses?api-version=2025-04-01-preview"
    assert call.headers["api-key"] == "secret"


def test_private_state_belongs_to_the_service_that_wrote_it():
    families = [
        wire(base_url=url).model_family("m") for url in (None, "https://eu.api.openai.com/v1", "https://api.x.ai/v1")
    ]
    assert families == ["openai-responses", "openai-responses", "openai-responses@api.x.ai"]


def test_a_turn_starts_with_the_bytes_of_the_turn_before_and_encodes_no_message_twice():
    found, prompt = wire(), asked("Hi")
    bodies = [found.build_request(Request("m", prompt, "Be brief.", (READ,))).body]
    for number in range(5):
        use = ToolUsePart(tool_id=f"call_{number}", tool_name="read", tool_input={"n": number})
        prompt.append(ModelMessage("assistant", (use,)))
        prompt.append(ModelMessage("user", (ToolResultPart(tool_use_id=f"call_{number}", content="ok"),)))
        bodies.append(found.build_request(Request("m", prompt, "Be brief.", (READ,))).body)
    for before, after in pairwise(bodies):
        assert after.startswith(before.removesuffix(b"]}"))
    written: list[ModelMessage] = []
    prompt.encoded(found.model_family("m"), lambda message: bytes(written.append(message) or b""))
    assert written == []


@pytest.mark.parametrize(
    ("status", "error_body", "error"),
    [
        (401, {"error": {"message": "bad key", "type": "x", "code": "invalid_api_key"}}, AuthenticationError),
        (400, {"error": {"message": "m", "type": "invalid_request_error", "code": "model_not_found"}}, NotFoundError),
        (400, {"error": {"message": "m", "code": "context_length_exceeded"}}, ContextOverflowError),
        (429, {"error": {"message": "slow down", "type": "requests"}}, RateLimitError),
        (400, {"code": "invalid-argument", "error": "this is wrong"}, InvalidRequestError),
        (401, {"detail": "sign in again"}, AuthenticationError),
    ],
)  # fmt: skip
def test_a_refusal_is_typed_with_the_providers_message(status: int, error_body: dict[str, Any], error: type[Exception]):
    found = wire().decode_error(status, {}, json.dumps(error_body).encode())
    assert type(found) is error
    assert found.status == status
    assert found.message in json.dumps(error_body)


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        ("Encrypted content is not supported with this model.", "include"),
        ("Your organization must be verified to generate reasoning summaries.", "summary"),
        ("Unknown parameter: 'prompt_cache_key'.", "prompt_cache_key"),
    ],
)
def test_what_a_model_does_not_take_is_left_out_from_then_on(message: str, lost: str):
    found = wire()
    request = Request("m", asked("Hi"), settings=ModelSettings(reasoning=True), conversation="c")
    assert lost in found.build_request(request).body.decode()
    assert found.adapt_to_error(request, InvalidRequestError(message))
    assert lost not in found.build_request(request).body.decode().replace("encrypted", "")
    assert not found.adapt_to_error(request, InvalidRequestError(message))


def test_other_refusals_teach_nothing():
    request = Request("m", asked("Hi"))
    assert not wire().adapt_to_error(request, InvalidRequestError("temperature is too high"))
    assert not wire().adapt_to_error(request, RateLimitError("prompt_cache_key"))
