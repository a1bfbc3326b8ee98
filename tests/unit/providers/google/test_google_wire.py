"""Requests to Gemini: URL, settings, returned provider state, and parts that stay equal between requests."""

import json
from itertools import pairwise
from typing import Any

import pytest

from outrider.errors import AuthenticationError, ContextOverflowError, NotFoundError, QuotaExceededError, RateLimitError
from outrider.providers.google.client import FAMILY, GoogleWire
from outrider.providers.google.decode import GENERATED_ID_PREFIX, GeminiDecoder
from outrider.providers.provider import WireFormat
from outrider.types.agents import Provider
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, OutputSchema, Prompt, Request, ToolChoice, ToolSpec
from outrider.types.tool_state import Attachment
from tests.unit.providers.google.test_google_decode import call, chunk, folded

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
READ = ToolSpec("read", "Read a file.", SCHEMA)
OLD, NEW = "gemini-2.5-flash", "gemini-3-flash-preview"


def wire(**fields: Any) -> GoogleWire:
    return GoogleWire(Provider("google", "google", **{"api_key": "secret"} | fields))


def asked(*texts: str) -> Prompt:
    return Prompt(ModelMessage("user", (TextPart(text),)) for text in texts)


def body(model: str = OLD, settings: ModelSettings | None = None, **fields: Any) -> dict[str, Any]:
    request = Request(model, asked("Hi"), settings=settings or ModelSettings(), **fields)
    return json.loads(wire().build_request(request).body)


def contents(*messages: ModelMessage, model: str = OLD) -> list[dict[str, Any]]:
    return json.loads(wire().build_request(Request(model, Prompt(messages))).body)["contents"]


def parts(role: Any, *given: ModelPart, model: str = OLD) -> list[dict[str, Any]]:
    return contents(ModelMessage(role, given), model=model)[0]["parts"]


def result(**fields: Any) -> ToolResultPart:
    return ToolResultPart(**{"tool_use_id": "c1", "tool_name": "read", "content": "text"} | fields)


def use(**fields: Any) -> ToolUsePart:
    return ToolUsePart(**{"tool_id": "c1", "tool_name": "read"} | fields)


def test_a_request_without_settings_asks_for_nothing_else():
    found: WireFormat = wire()
    sent = found.build_request(Request(OLD, asked("Hi")))
    assert json.loads(sent.body) == {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
    assert sent.headers["x-goog-api-key"] == "secret"


@pytest.mark.parametrize(
    ("fields", "stream", "url"),
    [
        ({}, True, "https://generativelanguage.googleapis.com/v1beta/models/m:streamGenerateContent?alt=sse"),
        ({}, False, "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent"),
        ({"base_url": "http://a.example/x/"}, False, "http://a.example/x/v1beta/models/m:generateContent"),
        ({"options": {"api_version": "v1"}}, False, "https://generativelanguage.googleapis.com/v1/models/m:generateContent"),
        (
            {"options": {"project": "p", "location": "us-east5"}},
            False,
            "https://us-east5-aiplatform.googleapis.com/v1beta1/projects/p/locations/us-east5/publishers/google/models/m:generateContent",
        ),
        (
            {"options": {"project": "p"}},
            True,
            "https://aiplatform.googleapis.com/v1beta1/projects/p/locations/global/publishers/google/models/m:streamGenerateContent?alt=sse",
        ),
    ],
)  # fmt: skip
def test_where_requests_go(fields: dict[str, Any], stream: bool, url: str):
    assert wire(**fields).build_request(Request("m", asked("Hi"), stream=stream)).url == url


def test_a_model_may_be_named_with_its_folder():
    assert (
        wire()
        .build_request(Request("tunedModels/a", asked("Hi")))
        .url.endswith("/v1beta/tunedModels/a:streamGenerateContent?alt=sse")
    )


def test_vertex_takes_a_token():
    headers = wire(options={"project": "p"}).build_request(Request("m", asked("Hi"))).headers
    assert headers["authorization"] == "Bearer secret"
    assert "x-goog-api-key" not in headers


def test_settings_are_sent_in_this_apis_format():
    settings = ModelSettings(
        max_output_tokens=9, temperature=0.5, top_p=0.9, stop=("END",), output=OutputSchema(SCHEMA)
    )
    assert body(settings=settings)["generationConfig"] == {
        "maxOutputTokens": 9,
        "temperature": 0.5,
        "topP": 0.9,
        "stopSequences": ["END"],
        "responseMimeType": "application/json",
        "responseJsonSchema": SCHEMA,
    }


@pytest.mark.parametrize(
    ("model", "settings", "written"),
    [
        (OLD, ModelSettings(), None),
        (OLD, ModelSettings(reasoning_budget=0), {"thinkingBudget": 0}),
        (OLD, ModelSettings(reasoning=True), {"includeThoughts": True, "thinkingBudget": 8192}),
        (OLD, ModelSettings(reasoning=True, reasoning_budget=99), {"includeThoughts": True, "thinkingBudget": 99}),
        (NEW, ModelSettings(reasoning=True), {"includeThoughts": True, "thinkingLevel": "medium"}),
        (
            NEW,
            ModelSettings(reasoning=True, reasoning_effort="max"),
            {"includeThoughts": True, "thinkingLevel": "high"},
        ),
        ("gemini-3-pro-preview", ModelSettings(reasoning=True), {"includeThoughts": True, "thinkingLevel": "high"}),
        ("gemini-3.1-pro", ModelSettings(reasoning=True), {"includeThoughts": True, "thinkingLevel": "medium"}),
        ("gemini-flash-latest", ModelSettings(reasoning=True), {"includeThoughts": True, "thinkingLevel": "medium"}),
    ],
)
def test_thinking_is_a_budget_or_a_level_by_generation(model: str, settings: ModelSettings, written: Any):
    assert body(model, settings).get("generationConfig", {}).get("thinkingConfig") == written


@pytest.mark.parametrize(
    ("choice", "written"),
    [
        (ToolChoice(), None),
        (ToolChoice("required"), {"mode": "ANY"}),
        (ToolChoice("none"), {"mode": "NONE"}),
        (ToolChoice("tool", "read"), {"mode": "ANY", "allowedFunctionNames": ["read"]}),
    ],
)
def test_tools_and_the_choice_among_them(choice: ToolChoice, written: Any):
    found = body(tools=(READ,), system="Be brief.", settings=ModelSettings(tool_choice=choice))
    declared = {"name": "read", "description": "Read a file.", "parametersJsonSchema": SCHEMA}
    assert found["tools"] == [{"functionDeclarations": [declared]}]
    assert found.get("toolConfig", {}).get("functionCallingConfig") == written
    assert found["systemInstruction"] == {"parts": [{"text": "Be brief."}]}


def test_extra_fields_are_merged_last():
    extra = {"generationConfig": {"seed": 7}, "tools": [{"googleSearch": {}}], "safetySettings": []}
    found = body(tools=(READ,), settings=ModelSettings(temperature=0.0, extra=extra))
    assert found["generationConfig"] == {"temperature": 0.0, "seed": 7}
    assert [list(tool) for tool in found["tools"]] == [["functionDeclarations"], ["googleSearch"]]
    assert found["safetySettings"] == []


def test_an_answer_goes_back_as_it_came():
    came = [
        {"text": "Hm", "thought": True},
        {"text": "Look."},
        {"text": "", "thoughtSignature": "s1"},
        {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "s2"},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        {"inlineData": {"mimeType": "image/png", "data": "QUJD"}, "thoughtSignature": "s3"},
        call(args={"n": 1}) | {"thoughtSignature": "s4"},
        call(id="c2", args={"n": 2}),
    ]
    answer = folded(GeminiDecoder().decode_body(json.dumps(chunk(*came, finish="STOP")).encode()))
    answer_parts = [part.use() if isinstance(part, ToolPart) else part for part in answer.message.parts]
    assert parts("assistant", *answer_parts, model=NEW) == came


def test_an_id_that_was_made_up_never_leaves():
    made_up = f"{GENERATED_ID_PREFIX}r_0"
    assert parts("assistant", use(tool_id=made_up))[0]["functionCall"] == {"name": "read", "args": {}}
    found = parts("user", result(tool_use_id=made_up))[0]["functionResponse"]
    assert found == {"name": "read", "response": {"output": "text"}}
    assert parts("user", result())[0]["functionResponse"]["id"] == "c1"


def test_a_failed_call_is_marked():
    assert parts("user", result(is_error=True))[0]["functionResponse"]["response"] == {"error": "text"}


def test_a_result_without_a_name_takes_the_name_of_its_call():
    messages = (ModelMessage("assistant", (use(),)), ModelMessage("user", (result(tool_name=""),)))
    assert contents(*messages)[1]["parts"][0]["functionResponse"]["name"] == "read"


def test_files_of_a_result_are_next_to_it_before_generation_3_and_inside_it_since():
    image, sound = Attachment("image/png", data="QUJD"), Attachment("audio/wav", data="REVG")
    given = (result(attachments=(image, sound)), result(tool_use_id="c2"), TextPart("so"))
    inline = {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}
    audio = {"inlineData": {"mimeType": "audio/wav", "data": "REVG"}}
    old, new = parts("user", *given), parts("user", *given, model=NEW)
    assert old[2:] == [inline, audio, {"text": "so"}]
    assert new[0]["functionResponse"]["parts"] == [inline]
    assert new[2:] == [audio, {"text": "so"}]


@pytest.mark.parametrize(
    ("mime", "url", "written"),
    [
        ("image/png", "data:image/png;base64,QUJD", {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}),
        ("text/plain", "data:text/plain,abc", {"inlineData": {"mimeType": "text/plain", "data": "YWJj"}}),
        ("application/json", "data:application/json,{}", {"text": "{}"}),
        ("video/mp4", "https://a.example/b", {"fileData": {"mimeType": "video/mp4", "fileUri": "https://a.example/b"}}),
        ("image/png", "file-id:https://a.example/files/1", {"fileData": {"mimeType": "image/png", "fileUri": "https://a.example/files/1"}}),
    ],
)  # fmt: skip
def test_a_file_is_sent_in_the_way_it_is_given(mime: str, url: str, written: dict[str, Any]):
    assert parts("user", FilePart(mime=mime, url=url)) == [written]


def test_the_first_call_of_another_model_gets_a_placeholder_signature_for_generation_3():
    found = parts("assistant", use(), use(tool_id="c2"), model=NEW)
    assert ["thoughtSignature" in part for part in found] == [True, False]
    assert all("thoughtSignature" not in part for part in parts("assistant", use(), use(tool_id="c2")))


def test_private_state_of_other_families_stays_at_home():
    foreign = ReasoningPart("Hm", provider_state={"family": "anthropic", "signature": "s"})
    assert parts("assistant", foreign, TextPart("Hi", metadata={"anthropic": {"id": "x"}})) == [{"text": "Hi"}]


def test_a_message_with_nothing_to_say_is_left_out():
    assert (
        contents(ModelMessage("assistant", (ReasoningPart("Hm"),)), ModelMessage("user", (TextPart("Hi"),)))[0]["role"]
        == "user"
    )


def test_a_turn_starts_with_the_bytes_of_the_turn_before_and_encodes_no_message_twice():
    found, prompt = wire(), asked("Hi")
    bodies = [found.build_request(Request(OLD, prompt, "Be brief.", (READ,))).body]
    for number in range(5):
        prompt.append(ModelMessage("assistant", (use(tool_id=f"c{number}", tool_input={"n": number}),)))
        prompt.append(ModelMessage("user", (result(tool_use_id=f"c{number}"),)))
        bodies.append(found.build_request(Request(OLD, prompt, "Be brief.", (READ,))).body)
    for before, after in pairwise(bodies):
        assert after.startswith(before.removesuffix(b"]}"))
    written: list[ModelMessage] = []
    prompt.encoded(f"{FAMILY}/2", lambda message: bytes(written.append(message) or b""))
    assert written == []


@pytest.mark.parametrize(
    ("status", "kind", "message", "error"),
    [
        (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", AuthenticationError),
        (404, "NOT_FOUND", "models/m is not found", NotFoundError),
        (400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum (8).", ContextOverflowError),
        (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota.", QuotaExceededError),
    ],
)  # fmt: skip
@pytest.mark.parametrize("listed", [False, True])
def test_a_refusal_is_typed_with_the_message_of_google(status: int, kind: str, message: str, error: Any, listed: bool):
    error_body = {"error": {"code": status, "message": message, "status": kind}}
    found = wire().decode_error(status, {}, json.dumps([error_body] if listed else error_body).encode())
    assert type(found) is error
    assert (found.message, found.type, found.status) == (message, kind, status)


def test_the_wait_that_a_refusal_asks_for_is_reported():
    details = [
        {"@type": "x/QuotaFailure"},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"},
    ]
    error_body = {"error": {"code": 429, "message": "You exceeded your current quota.", "details": details}}
    found = wire().decode_error(429, {}, json.dumps(error_body).encode())
    assert isinstance(found, RateLimitError)
    assert found.retry_after == 34.5


def test_a_refusal_that_is_no_json_is_reported_as_it_is():
    assert "bad gateway" in wire().decode_error(502, {}, b"<h1>bad gateway</h1>").message
