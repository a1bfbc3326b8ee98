"""The Messages API as a whole: stable prefixes, addresses, headers, and what is learnt from refusals."""

import json
from itertools import pairwise
from typing import Any

import pytest

from outrider.errors import ConfigurationError, InvalidRequestError, OverloadedError, RateLimitError, ServerError
from outrider.providers.anthropic.client import AnthropicWire
from outrider.providers.anthropic.encode import PROBE_MAX_TOKENS
from outrider.providers.client import WireClient
from outrider.providers.provider import AdaptiveWireFormat
from outrider.types.agents import Provider
from outrider.types.parts import FilePart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, Prompt, Request, TextDelta, ToolSpec
from tests.fixtures.http_server import Reply, serving
from tests.unit.providers.anthropic.stream import end, message_start, text

MODEL = "claude-haiku-4-5"
TOOL = ToolSpec("read", "Reads.", {"type": "object", "properties": {}})
MARK = {"type": "ephemeral"}


def wire(*, limit: int | None = 64_000, key: str | None = "k", **provider: Any) -> AnthropicWire:
    return AnthropicWire(Provider("anthropic", "anthropic", key, **provider), lambda _: limit)


def user(text: str) -> ModelMessage:
    return ModelMessage("user", (TextPart(text),))


def request(prompt: Prompt | None = None, model: str = MODEL, **fields: Any) -> Request:
    settings = ModelSettings(
        **{name: fields.pop(name) for name in list(fields) if name in ModelSettings.__struct_fields__}
    )
    return Request(model, prompt if prompt is not None else Prompt([user("hi")]), settings=settings, **fields)


def body(of: AnthropicWire, asked: Request) -> dict[str, Any]:
    return json.loads(of.build_request(asked).body)


def test_a_turn_starts_with_the_bytes_of_the_turn_before_it() -> None:
    anthropic = wire()
    prompt = Prompt([user("read a")])
    asked = request(prompt, system="Be brief.", tools=(TOOL,))
    bodies = [anthropic.build_request(asked).body]
    for number in range(3):
        call_id = f"t{number}"
        prompt.append(ModelMessage("assistant", (ToolUsePart(tool_id=call_id, tool_name="read"),)))
        prompt.append(ModelMessage("user", (ToolResultPart(tool_use_id=call_id, content="ä"),)))
        bodies.append(anthropic.build_request(asked).body)
    for before, after in pairwise(bodies):
        assert before.endswith(b"]}]}")
        assert after.startswith(before[: -len(b"]}")])
        assert json.loads(after)["messages"][: len(json.loads(before)["messages"])] == json.loads(before)["messages"]


def test_earlier_messages_are_not_written_again() -> None:
    anthropic = wire()
    tool_input = {"path": "a"}
    prompt = Prompt([user("one"), ModelMessage("assistant", (ToolUsePart("t", "read", tool_input),))])
    anthropic.build_request(request(prompt))
    tool_input["path"] = "changed behind its back"
    prompt.append(ModelMessage("user", (ToolResultPart(tool_use_id="t", content="two"),)))
    _, call, _ = body(anthropic, request(prompt))["messages"]
    assert call["content"][0]["input"] == {"path": "a"}


def test_the_same_prompt_can_go_to_models_of_several_families() -> None:
    part = TextPart("x", metadata={"anthropic": {"citations": [{"cited_text": "c"}]}})
    prompt = Prompt([ModelMessage("assistant", (part,))])
    anthropic = wire()
    assert "citations" in body(anthropic, request(prompt))["messages"][0]["content"][0]
    assert "citations" not in body(anthropic, request(prompt, model="other"))["messages"][0]["content"][0]


def test_all_of_claude_is_one_family_and_every_other_model_its_own() -> None:
    assert wire().model_family("claude-3-5-haiku") == wire().model_family("anthropic/claude-opus-4.8") == "anthropic"
    assert wire().model_family("kimi-k2") != wire().model_family("glm-5")


def test_caching_is_left_to_the_server_by_one_mark_outside_the_messages() -> None:
    sent = body(wire(), request(system="s", tools=(TOOL,)))
    assert sent["cache_control"] == sent["system"][-1]["cache_control"] == sent["tools"][-1]["cache_control"] == MARK
    assert "cache_control" not in json.dumps(sent["messages"])


def test_caching_can_be_marked_by_us_lengthened_or_switched_off() -> None:
    marked = body(wire(options={"caching": "marks"}), request(system="s"))
    assert "cache_control" not in marked
    assert marked["messages"][-1]["content"][-1] == {"type": "text", "text": "hi", "cache_control": MARK}
    longer = body(wire(options={"cache_ttl": "1h"}), request(system="s"))
    assert longer["cache_control"] == longer["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert "cache_control" not in json.dumps(body(wire(options={"caching": "off"}), request(system="s", tools=(TOOL,))))


def test_extra_is_merged_last() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    extra = {"tools": [search], "metadata": {"user_id": "u"}, "max_tokens": 5, "thinking": {"type": "disabled"}}
    sent = body(wire(), request(tools=(TOOL,), reasoning=True, temperature=0.5, extra=extra))
    assert [tool["name"] for tool in sent["tools"]] == ["read", "web_search"]
    assert (sent["metadata"], sent["max_tokens"]) == ({"user_id": "u"}, 5)
    assert (sent["thinking"], sent["temperature"]) == ({"type": "disabled"}, 0.5)


def test_anthropic_itself_gets_the_key_in_its_own_header() -> None:
    call = wire().build_request(request())
    assert call.url == "https://api.anthropic.com/v1/messages"
    assert call.headers == {"content-type": "application/json", "anthropic-version": "2023-06-01", "x-api-key": "k"}
    assert json.loads(call.body)["stream"] is True
    assert "stream" not in body(wire(), request(stream=False))


@pytest.mark.parametrize(
    "base", ["https://openrouter.ai/api", "https://openrouter.ai/api/", "https://openrouter.ai/api/v1"]
)
def test_compatible_servers_get_the_key_where_they_look_for_it(base: str) -> None:
    call = wire(base_url=base, headers={"X-Title": "t"}).build_request(request())
    assert call.url == "https://openrouter.ai/api/v1/messages"
    assert call.headers["authorization"] == "Bearer k"
    assert call.headers["x-api-key"] == "k"
    assert call.headers["x-title"] == "t"


def test_a_providers_own_headers_count_last_and_no_key_is_no_header() -> None:
    call = wire(key=None, base_url="http://localhost:1", headers={"Authorization": "Bearer t"}).build_request(request())
    assert call.headers["authorization"] == "Bearer t"
    assert "x-api-key" not in call.headers


def test_vertex_has_the_model_in_the_address_and_the_version_in_the_body() -> None:
    vertex = wire(options={"project": "p", "region": "us-east5"})
    call = vertex.build_request(request(model="claude-sonnet-4-5@20250929"))
    assert call.url == (
        "https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/us-east5"
        "/publishers/anthropic/models/claude-sonnet-4-5@20250929:streamRawPredict"
    )
    sent = json.loads(call.body)
    assert "model" not in sent and "cache_control" not in sent
    assert sent["anthropic_version"] == "vertex-2023-10-16"
    assert sent["messages"][-1]["content"][-1]["cache_control"] == MARK
    assert call.headers["authorization"] == "Bearer k"
    assert "x-api-key" not in call.headers
    assert vertex.build_request(request(stream=False)).url.endswith(":rawPredict")
    world = wire(options={"project": "p", "region": "global"}).build_request(request())
    assert world.url.startswith("https://aiplatform.googleapis.com/v1/projects/p/locations/global/")


def test_vertex_without_a_region_is_a_mistake_that_is_reported_at_once() -> None:
    with pytest.raises(ConfigurationError, match="region"):
        wire(options={"project": "p"})


def test_beta_headers_are_sent_when_they_are_needed_and_joined_with_the_users() -> None:
    betas = wire(options={"betas": ["mine-1"]}).build_request(request()).headers["anthropic-beta"]
    assert betas == "mine-1"
    uploaded = Prompt([ModelMessage("user", (FilePart(mime="application/pdf", url="file-id:f"),))])
    call = wire(headers={"Anthropic-Beta": "mine-2"}).build_request(request(uploaded, tools=(TOOL,), reasoning=True))
    assert call.headers["anthropic-beta"].split(",") == [
        "mine-2",
        "interleaved-thinking-2025-05-14",
        "files-api-2025-04-14",
    ]
    assert (
        "anthropic-beta"
        not in wire().build_request(request(model="claude-sonnet-4-6", tools=(TOOL,), reasoning=True)).headers
    )


def refused(message: str, status: int = 400) -> Any:
    error_body = {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": message},
        "request_id": "req_1",
    }
    return wire().decode_error(status, {}, json.dumps(error_body).encode())


def test_the_largest_answer_is_found_by_asking_and_remembered() -> None:
    anthropic = wire(limit=None)
    assert isinstance(anthropic, AdaptiveWireFormat)
    assert body(anthropic, request())["max_tokens"] == PROBE_MAX_TOKENS
    message = "max_tokens: 10000000 > 64000, which is the maximum allowed number of output tokens for claude-haiku-4-5"
    assert anthropic.adapt_to_error(request(), refused(message))
    assert body(anthropic, request())["max_tokens"] == 64_000
    assert body(anthropic, request(model="claude-opus-4-1"))["max_tokens"] == PROBE_MAX_TOKENS
    assert not anthropic.adapt_to_error(request(), refused(message)), "the same lesson twice changes nothing"


async def test_a_client_asks_once_more_with_the_maximum_that_it_was_given() -> None:
    error = {"type": "invalid_request_error", "message": "max_tokens: 10000000 > 8192, which is the maximum allowed"}
    no = Reply([json.dumps({"type": "error", "error": error}).encode()], 400, {"content-type": "application/json"})
    events = [message_start(), *text(0, "Hi"), *end()]
    yes = Reply([b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)])
    async with serving(no, yes) as server:
        client = WireClient("anthropic", AnthropicWire(Provider("anthropic", "anthropic", "k", server.url)))
        for _ in range(2):
            deltas = [delta async for delta in client.stream(request())]
            assert TextDelta(0, "Hi") in deltas
        await client.aclose()
        assert [json.loads(seen.body)["max_tokens"] for seen in server.requests] == [PROBE_MAX_TOKENS, 8192, 8192]


def test_values_of_the_api_override_the_catalog_and_not_the_user() -> None:
    anthropic = wire(limit=99_000)
    error = refused("max_tokens: 99000 > 64000, which is the maximum")
    assert not anthropic.adapt_to_error(request(max_output_tokens=99_000), error)
    assert body(anthropic, request(max_output_tokens=99_000))["max_tokens"] == 99_000
    assert body(anthropic, request())["max_tokens"] == 64_000


@pytest.mark.parametrize(
    ("asked", "message", "field", "value"),
    [
        (
            {"model": "claude-sonnet-4-5", "reasoning": True},
            '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive"',
            "thinking",
            {"type": "adaptive"},
        ),
        (
            {"model": "claude-opus-4-7", "reasoning": True, "reasoning_effort": "max"},
            "This model does not support effort level 'max'. Supported levels: high, low, medium.",
            "output_config",
            {"effort": "high"},
        ),
        ({"temperature": 0.3}, "`temperature` is deprecated for this model.", "temperature", None),
        ({"temperature": 0.3}, "temperature: Extra inputs are not permitted", "temperature", None),
    ],
)
def test_what_a_model_refuses_is_not_sent_to_it_again(
    asked: dict[str, Any], message: str, field: str, value: Any
) -> None:
    anthropic = wire()
    assert anthropic.adapt_to_error(request(**asked), refused(message))
    assert body(anthropic, request(**asked)).get(field) == value
    assert not anthropic.adapt_to_error(request(**asked), refused(message))


def test_other_refusals_teach_nothing() -> None:
    assert not wire().adapt_to_error(request(), refused("messages.0: something else is wrong"))
    assert not wire().adapt_to_error(request(), refused("max_tokens: 9 > 5", status=429))


@pytest.mark.parametrize(
    ("status", "content", "kind", "name", "message"),
    [
        (
            400,
            b'{"type":"error","error":{"type":"invalid_request_error","message":"bad"}}',
            InvalidRequestError,
            "invalid_request_error",
            "bad",
        ),
        (
            529,
            b'{"type":"error","error":{"type":"overloaded_error","message":"o"}}',
            OverloadedError,
            "overloaded_error",
            "o",
        ),
        (
            429,
            b'[{"error":{"code":429,"message":"q","status":"RESOURCE_EXHAUSTED"}}]',
            RateLimitError,
            "RESOURCE_EXHAUSTED",
            "q",
        ),
        (500, b'{"error":"in words"}', ServerError, None, "in words"),
        (500, b'{"detail":"why"}', ServerError, None, "why"),
        (502, b"<html>Bad Gateway \xff</html>", ServerError, None, "<html>Bad Gateway \ufffd</html>"),
        (500, b"{}", ServerError, None, "the provider returned status 500 without a message"),
        (500, b"", ServerError, None, "the provider returned status 500 without a message"),
    ],
)
def test_refusals_are_typed_in_every_envelope(status: int, content: bytes, kind: Any, name: Any, message: str) -> None:
    error = wire().decode_error(status, {}, content)
    assert (type(error), error.status, error.type, error.message) == (kind, status, name, message)


def test_the_providers_name_of_the_request_is_preserved_for_its_support() -> None:
    assert refused("bad").details["request_id"] == "req_1"
    assert wire().decode_error(500, {"request-id": "req_2"}, b"").details["request_id"] == "req_2"
