"""Whole chat requests: where they go, what they ask for, and what stays the same from turn to turn."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from outrider.errors import (
    AuthenticationError,
    ConfigurationError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    RateLimitError,
)
from outrider.providers.openai.chat_client import ChatWire
from outrider.providers.openai.chat_encode import ChatDialect, dialect_for_model
from outrider.providers.provider import AdaptiveWireFormat, WireFormat
from outrider.types.agents import Provider
from outrider.types.parts import FilePart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, OutputSchema, Prompt, Request, ToolChoice, ToolSpec
from outrider.types.tool_state import Attachment

CLOSED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
OPEN = {"type": "object", "properties": {"n": {"type": "integer"}}}
FREE = {"type": "object", "additionalProperties": {"type": "integer"}}
READ = ToolSpec("read", "Read a file.", OPEN)


def wire(dialect: str | None = None, **fields: Any) -> ChatWire:
    options = {"dialect": dialect} if dialect else {}
    return ChatWire(Provider("p", "openai", **{"api_key": "secret", "options": options} | fields))


def asked(*texts: str) -> Prompt:
    return Prompt(ModelMessage("user", (TextPart(text),)) for text in texts)


def body(
    dialect: str = "compatible", model: str = "m", settings: ModelSettings | None = None, **fields: Any
) -> dict[str, Any]:
    request = Request(model, asked("Hi"), settings=settings or ModelSettings(), **{"stream": False} | fields)
    return json.loads(wire(dialect).build_request(request).body)


def test_the_chat_wire_is_an_adaptive_wire_format():
    found: WireFormat = wire()
    assert isinstance(found, AdaptiveWireFormat)


def test_a_request_without_settings_asks_for_nothing_else():
    assert body() == {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def test_openai_is_where_requests_go_by_default():
    call = wire().build_request(Request("m", asked("Hi")))
    assert call.url == "https://api.openai.com/v1/chat/completions"
    assert call.headers["authorization"] == "Bearer secret"


def test_azure_wants_its_version_in_the_address_and_its_key_in_a_header():
    place = "https://r.openai.azure.com/openai/deployments/d"
    for base_url, options in ((f"{place}?api-version=2024-10-21", {}), (f"{place}/", {"api_version": "2024-10-21"})):
        call = wire(base_url=base_url, options=options).build_request(Request("m", asked("Hi")))
        assert call.url == f"{place}/chat/completions?api-version=2024-10-21"
        assert call.headers["api-key"] == "secret"
        assert "authorization" not in call.headers


def test_an_address_may_be_given_in_full():
    call = wire(base_url="http://127.0.0.1:8080/v1/chat/completions").build_request(Request("m", asked("Hi")))
    assert call.url == "http://127.0.0.1:8080/v1/chat/completions"


@pytest.mark.parametrize(
    ("base_url", "streams_with_options"),
    [("https://api.mistral.ai/v1", False), ("http://localhost:11434/v1", True), (None, True)],
)
def test_usage_is_asked_for_where_it_may_be(base_url: str | None, streams_with_options: bool):
    sent = json.loads(wire(base_url=base_url).build_request(Request("m", asked("Hi"))).body)
    assert sent["stream"] is True
    assert (sent.get("stream_options") == {"include_usage": True}) is streams_with_options


def test_an_unknown_dialect_is_a_mistake():
    with pytest.raises(ConfigurationError, match="klingon"):
        wire("klingon")


@pytest.mark.parametrize(
    ("dialect", "model", "role"),
    [
        ("openai", "gpt-4o", "system"),
        ("openai", "gpt-5-mini", "developer"),
        ("openai", "o3", "developer"),
        ("openrouter", "openai/gpt-5", "system"),
        ("compatible", "qwen3", "system"),
    ],
)
def test_the_system_text_comes_first_under_the_name_that_the_model_knows(dialect: str, model: str, role: str):
    assert body(dialect, model, system="Be kind.")["messages"][0] == {"role": role, "content": "Be kind."}


@pytest.mark.parametrize(
    ("dialect", "model", "field"),
    [
        ("openai", "gpt-4o", "max_completion_tokens"),
        ("openai", "gpt-5", "max_completion_tokens"),
        ("azure", "gpt-4o", "max_tokens"),
        ("azure", "o4-mini", "max_completion_tokens"),
        ("compatible", "gpt-5", "max_completion_tokens"),
        ("compatible", "gpt-oss-20b", "max_tokens"),
        ("mistral", "mistral-small", "max_tokens"),
    ],
)
def test_the_limit_has_the_name_that_the_model_knows(dialect: str, model: str, field: str):
    sent = body(dialect, model, ModelSettings(max_output_tokens=9))
    assert {name: sent[name] for name in sent if name.startswith("max_")} == {field: 9}


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-5"])
def test_a_row_that_names_the_field_of_the_limit_names_it_for_all_models(model: str):
    assert dialect_for_model(ChatDialect(name="old", limit="max_tokens"), model).limit == "max_tokens"


def test_sampling_is_sent_when_it_is_given():
    sent = body(settings=ModelSettings(temperature=0.0, top_p=0.5, stop=("a", "b")))
    assert (sent["temperature"], sent["top_p"], sent["stop"]) == (0.0, 0.5, ["a", "b"])


@pytest.mark.parametrize(
    ("dialect", "settings", "expected"),
    [
        ("openai", {"reasoning_effort": "max"}, {"reasoning_effort": "xhigh"}),
        ("groq", {"reasoning_effort": "minimal"}, {"reasoning_effort": "low"}),
        ("mistral", {"reasoning_effort": "low"}, {"reasoning_effort": "high"}),
        ("openrouter", {}, {"reasoning": {"effort": "medium"}}),
        ("openrouter", {"reasoning_budget": 2000}, {"reasoning": {"max_tokens": 2000}}),
        ("deepseek", {"reasoning_effort": "high"}, {"thinking": {"type": "enabled"}, "reasoning_effort": "high"}),
        ("moonshot", {}, {"thinking": {"type": "enabled"}}),
        ("alibaba", {"reasoning_budget": 99}, {"enable_thinking": True, "thinking_budget": 99}),
    ],
)
def test_reasoning_is_requested_in_the_servers_format(dialect: str, settings: Any, expected: dict[str, Any]):
    plain, reasoning = body(dialect), body(dialect, settings=ModelSettings(reasoning=True, **settings))
    assert reasoning == plain | expected


def test_tools_and_the_choice_among_them():
    function = {"name": "read", "description": "Read a file.", "parameters": OPEN}
    sent = body(tools=(READ,))
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert "tool_choice" not in sent


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (ToolChoice("required"), {"tool_choice": "required"}),
        (ToolChoice("none"), {"tool_choice": "none"}),
        (ToolChoice("tool", "read"), {"tool_choice": {"type": "function", "function": {"name": "read"}}}),
        (ToolChoice(parallel=False), {"parallel_tool_calls": False}),
    ],
)
def test_a_choice_is_sent_with_tools_only(choice: ToolChoice, expected: dict[str, Any]):
    settings = ModelSettings(tool_choice=choice)
    assert body(settings=settings, tools=(READ,)).items() >= expected.items()
    assert not body(settings=settings).keys() & expected.keys()


@pytest.mark.parametrize(("schema", "strict"), [(CLOSED, True), (OPEN, True), (FREE, False)])
def test_a_tool_is_strict_only_if_its_schema_can_be(schema: dict[str, Any], strict: bool):
    sent = body(tools=(ToolSpec("t", "", schema, strict=True),))
    assert sent["tools"][0]["function"].get("strict", False) is strict


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (CLOSED, True),
        (FREE, False),
        (CLOSED | {"properties": {"n": FREE}}, False),
        (CLOSED | {"properties": {"n": {}}}, False),
        (CLOSED | {"properties": {"n": {"type": "array", "items": CLOSED}}}, True),
        (CLOSED | {"properties": {"n": {"anyOf": [{"type": "null"}, FREE]}}}, False),
        (CLOSED | {"properties": {"n": {"$ref": "#/$defs/x"}}, "$defs": {"x": CLOSED}}, True),
        (CLOSED | {"properties": {"n": {"$ref": "#/$defs/x"}}, "$defs": {"x": FREE}}, False),
        (CLOSED | {"allOf": []}, False),
        ({"type": "array", "items": CLOSED}, False),
    ],
)
def test_the_shape_of_an_answer_is_strict_only_if_its_schema_can_be(schema: dict[str, Any], strict: bool):
    sent = body(settings=ModelSettings(output=OutputSchema(schema, name="n")))
    assert sent["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": strict},
    }


def test_a_server_without_schemas_gets_a_description():
    sent = body("deepseek", settings=ModelSettings(output=OutputSchema(CLOSED)), system="Be kind.")
    assert sent["response_format"] == {"type": "json_object"}
    text = sent["messages"][0]["content"]
    assert text.startswith("Be kind.\n\n") and json.dumps(CLOSED, separators=(",", ":")) in text


def test_only_openai_routes_caches_by_the_conversation():
    assert body("openai", conversation="c")["prompt_cache_key"] == "c"
    assert "prompt_cache_key" not in body("compatible", conversation="c")


def test_extra_fields_come_last():
    settings = ModelSettings(temperature=1.0, extra={"temperature": 0.2, "seed": 7})
    assert body(settings=settings).items() >= {"temperature": 0.2, "seed": 7}.items()


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("deepseek-reasoner", "openai-chat/deepseek"),
        ("deepseek/deepseek-r1:free", "openai-chat/deepseek"),
        ("Qwen/Qwen3-32B", "openai-chat/qwen"),
        ("anthropic/claude-sonnet-4.5", "openai-chat/claude"),
        ("gpt-5-mini", "openai-chat/gpt"),
        ("openai/gpt-oss-120b", "openai-chat/gpt-oss"),
        ("@cf/meta/llama-3.3-70b", "openai-chat/llama"),
        ("7b", "openai-chat/model"),
    ],
)
def test_a_family_is_named_by_the_makers_of_the_model(model: str, family: str):
    assert wire().model_family(model) == family


def conversation() -> list[ModelMessage]:
    return [
        ModelMessage("user", (TextPart("Hi"),)),
        ModelMessage("assistant", (TextPart("Look"), ToolUsePart(tool_id="a", tool_name="read", tool_input={"p": 1}))),
        ModelMessage("user", (ToolResultPart(tool_use_id="a", content="x", tool_name="read"), TextPart("And?"))),
        ModelMessage("assistant", (TextPart("Done"),)),
        ModelMessage("user", (TextPart("Thanks"),)),
    ]


@pytest.mark.parametrize("dialect", ["openai", "mistral", "deepseek", "compatible"])
def test_each_request_starts_with_the_bytes_of_the_one_before(dialect: str):
    found, prompt, before = wire(dialect), Prompt(), b""
    for message in conversation():
        prompt.append(message)
        sent = found.build_request(Request("m", prompt, system="Be kind.", tools=(READ,))).body
        assert sent.startswith(before)
        assert json.loads(sent)["messages"]
        before = sent.removesuffix(b"]}")


class CountingPrompt(Prompt):
    """A prompt that knows how many messages were written for it."""

    written = 0

    def encoded(self, form: str, encode: Callable[[ModelMessage], bytes]) -> bytearray:
        def counted(message: ModelMessage) -> bytes:
            self.written += 1
            return encode(message)

        return super().encoded(form, counted)


def test_a_message_is_written_once_however_often_it_is_sent():
    prompt, found = CountingPrompt(), wire("openai")
    for message in conversation():
        prompt.append(message)
        found.build_request(Request("gpt-4o", prompt, system="Be kind."))
        found.build_request(Request("gpt-4o", prompt, system="Be brief.", tools=(READ,)))
    assert prompt.written == len(conversation())


@pytest.mark.slow
def test_a_request_with_everything_is_what_the_sdk_would_send():
    from openai.types.chat import CompletionCreateParams

    """The SDK's types drop what they do not know, so nothing may be lost in the validation."""
    files = (
        FilePart(mime="image/png", url="data:image/png;base64,AA=="),
        FilePart(mime="application/pdf", url="data:application/pdf;base64,JVBERg==", filename="a.pdf"),
        FilePart(mime="application/pdf", url="file-id:f1"),
        FilePart(mime="audio/mpeg", url="data:audio/mpeg;base64,SUQz"),
    )
    shot = Attachment("image/png", data="AA==")
    refusal = TextPart("No.", metadata={"openai-chat/gpt": {"refusal": True}})
    prompt = Prompt(
        [
            *conversation(),
            ModelMessage("assistant", (refusal,)),
            ModelMessage("user", (TextPart("See"), *files)),
            ModelMessage("assistant", (ToolUsePart(tool_id="b", tool_name="shot"),)),
            ModelMessage("user", (ToolResultPart(tool_use_id="b", content="", attachments=(shot,), is_error=True),)),
        ]
    )
    settings = ModelSettings(
        max_output_tokens=9,
        reasoning=True,
        reasoning_effort="max",
        temperature=1.0,
        top_p=0.5,
        stop=("x",),
        tool_choice=ToolChoice("tool", "read", parallel=False),
        output=OutputSchema(CLOSED, description="d"),
    )
    tools = (READ, ToolSpec("n", "", CLOSED, strict=True))
    request = Request("gpt-5", prompt, "Be kind.", tools, settings, conversation="c")
    sent = json.loads(wire("openai").build_request(request).body)
    assert plain(TypeAdapter[Any](CompletionCreateParams).validate_python(sent)) == sent


def plain(value: Any) -> Any:
    """The validator checks lists only while they are read."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, str | int | float | None):
        return value
    return [plain(inner) for inner in value]


@pytest.mark.parametrize(
    ("message", "before", "after"),
    [
        (
            "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.",
            "max_tokens",
            "max_completion_tokens",
        ),
        ("body.stream_options: Extra inputs are not permitted", "stream_options", None),
    ],
)
def test_the_wire_learns_from_an_error_which_fields_a_server_accepts(message: str, before: str, after: str | None):
    found = wire("compatible")
    request = Request("m", asked("Hi"), settings=ModelSettings(max_output_tokens=9))
    assert before in json.loads(found.build_request(request).body)
    assert found.adapt_to_error(request, InvalidRequestError(message))
    sent = json.loads(found.build_request(request).body)
    assert before not in sent
    assert after is None or sent[after] == 9


@pytest.mark.parametrize(
    "refusal",
    [
        "'messages.1' : for 'role:assistant' this must be satisfied: property 'reasoning_content' is unsupported",
        "body.messages.1.assistant.reasoning: Extra inputs are not permitted",
    ],
)
def test_the_wire_sends_no_reasoning_after_a_server_has_rejected_it(refusal: str):
    thought = ReasoningPart("Hm.", provider_state={"family": "openai-chat/m", "field": "reasoning_content"})
    messages = [ModelMessage("user", (TextPart("Hi"),)), ModelMessage("assistant", (thought, TextPart("Ho")))]
    found = ChatWire(Provider("p", "openai", "k", "http://127.0.0.1:1/v1"))
    request = Request("m", Prompt(messages))
    assert b"Hm." in found.build_request(request).body
    assert found.adapt_to_error(request, InvalidRequestError(refusal))
    assert b"Hm." not in found.build_request(request).body
    assert not found.adapt_to_error(request, InvalidRequestError(refusal))
    assert not found.adapt_to_error(Request("n", Prompt(messages[:1])), InvalidRequestError(refusal))


def test_the_wire_sends_no_developer_message_after_a_model_has_rejected_it():
    found = wire("openai")
    request = Request("o1-mini", asked("Hi"), system="Be kind.")
    refusal = "Unsupported value: 'messages[0].role' does not support 'developer' with this model."
    assert found.adapt_to_error(request, InvalidRequestError(refusal))
    assert json.loads(found.build_request(request).body)["messages"][0]["role"] == "system"


def test_the_wire_retries_each_adaptation_only_once():
    found = wire("compatible")
    request = Request("m", asked("Hi"), settings=ModelSettings(max_output_tokens=9))
    either = InvalidRequestError("unsupported: max_tokens, max_completion_tokens")
    assert found.adapt_to_error(request, either)
    assert not found.adapt_to_error(request, either)
    assert not found.adapt_to_error(request, AuthenticationError("unsupported: stream_options"))
    assert not found.adapt_to_error(request, InvalidRequestError("the temperature is too high"))


@pytest.mark.parametrize(
    ("status", "answer", "kind", "message"),
    [
        (401, '{"error": {"message": "bad key", "type": "invalid_request_error"}}', AuthenticationError, "bad key"),
        (404, '{"error": "no such model"}', NotFoundError, "no such model"),
        (400, '{"object": "error", "message": "wrong", "code": 3, "type": "x"}', InvalidRequestError, "wrong"),
        (422, '{"detail": "wrong"}', InvalidRequestError, "wrong"),
        (429, '[{"error": {"message": "slow down"}}]', RateLimitError, "slow down"),
        (400, '{"errors": [{"message": "wrong"}]}', InvalidRequestError, "wrong"),
        (
            400,
            '{"error": {"message": "too long", "code": "context_length_exceeded"}}',
            ContextOverflowError,
            "too long",
        ),
        (500, "<html>oops</html>", Exception, "<html>oops</html>"),
    ],
)
def test_a_refusal_is_typed_with_the_servers_message(status: int, answer: str, kind: type, message: str):
    error = wire().decode_error(status, {}, answer.encode())
    assert isinstance(error, kind)
    assert (error.status, error.message) == (status, message)


def test_what_changes_between_two_requests_of_a_conversation_is_in_the_second():
    prompt, chat = asked("Hi"), wire("compatible")
    first = Request("m", prompt, "Be kind.", (READ,), stream=False)
    other = Request("m", prompt, "Be brief.", (READ,), ModelSettings(temperature=0.5), stream=False)
    assert chat.build_request(first).body == chat.build_request(first).body
    sent = json.loads(chat.build_request(other).body)
    assert (sent["messages"][0]["content"], sent["temperature"]) == ("Be brief.", 0.5)
    assert "temperature" not in json.loads(chat.build_request(first).body)
    assert "tools" not in json.loads(chat.build_request(Request("m", prompt, stream=False)).body)


def test_a_field_of_the_user_is_sent_unchanged():
    extra: dict[str, Any] = {"user": {"name": "a"}}
    request = Request("m", asked("Hi"), settings=ModelSettings(extra=extra), stream=False)
    chat = wire("compatible")
    assert json.loads(chat.build_request(request).body)["user"] == {"name": "a"}
    extra["user"]["name"] = "b"
    assert json.loads(chat.build_request(request).body)["user"] == {"name": "b"}
