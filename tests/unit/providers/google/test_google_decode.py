"""Answers of Gemini: deltas as they arrive, signatures where they stood, every way to end."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from outrider.errors import MalformedAnswerError, NetworkError, OverloadedError
from outrider.providers.google.client import FAMILY
from outrider.providers.google.decode import GENERATED_ID_PREFIX, GeminiDecoder
from outrider.providers.provider import AnswerAssembler
from outrider.types.parts import CacheTokens, FilePart, ReasoningPart, TextPart, Tokens, ToolPart
from outrider.types.request import (
    Answer,
    AnswerStart,
    Delta,
    Finish,
    InputDelta,
    PartEnd,
    PartStart,
    ReasoningDelta,
    TextDelta,
    UsageReport,
)

Fields = dict[str, Any]


def chunk(*parts: Fields, finish: str | int | None = None, **fields: Any) -> Fields:
    candidate: Fields = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    return {"candidates": [candidate | ({"finishReason": finish} if finish is not None else {})], **fields}


def fed(decoder: GeminiDecoder, *chunks: Fields) -> list[Delta]:
    return [delta for value in chunks for delta in decoder.feed("", json.dumps(value).encode())]


def streamed(*chunks: Fields) -> Answer:
    decoder = GeminiDecoder()
    return folded([*fed(decoder, *chunks), *decoder.close()])


def whole(value: Any) -> Answer:
    return folded(GeminiDecoder().decode_body(json.dumps(value).encode()))


def folded(deltas: Iterable[Delta]) -> Answer:
    assembler = AnswerAssembler(FAMILY)
    for delta in deltas:
        assembler.add(delta)
    return assembler.build_answer()


def call(name: str = "read", **fields: Any) -> Fields:
    return {"functionCall": {"name": name, **fields}}


def test_text_and_thoughts_are_given_as_they_arrive():
    decoder = GeminiDecoder()
    first = chunk({"text": "Hm", "thought": True}, responseId="r1", modelVersion="gemini-x")
    assert fed(decoder, first) == [AnswerStart("r1", "gemini-x"), PartStart(0, "reasoning"), ReasoningDelta(0, "Hm")]
    assert fed(decoder, chunk({"text": "Hel"})) == [PartEnd(0), PartStart(1, "text"), TextDelta(1, "Hel")]
    assert fed(decoder, chunk({"text": "lo"}, finish="STOP")) == [TextDelta(1, "lo")]
    assert list(decoder.close()) == [PartEnd(1), Finish("stop", "STOP")]


def test_a_signed_text_is_a_separate_part_even_an_empty_one():
    parts = streamed(chunk({"text": "Hi"}), chunk({"text": "", "thoughtSignature": "s"}, finish="STOP")).message.parts
    assert [(part.text, part.metadata) for part in parts] == [("Hi", {}), ("", {FAMILY: {"thought_signature": "s"}})]


def test_a_signed_thought_has_its_signature():
    (part,) = streamed(chunk({"thought": True, "thoughtSignature": "s"}, finish="STOP")).message.parts
    assert isinstance(part, ReasoningPart)
    assert part.provider_state == {"family": FAMILY, "thought_signature": "s"}


def test_an_empty_part_without_a_signature_is_ignored():
    assert streamed(chunk({"text": ""}, finish="STOP")).message.parts == []


def test_calls_that_end_with_stop_are_tool_use():
    signed = call(args={"path": "a"}) | {"thoughtSignature": "s"}
    answer = streamed(chunk(signed), chunk(call(args={"path": "b"}), finish="STOP", responseId="r1"))
    calls = answer.message.get_parts_by_type(ToolPart)
    assert [found.state.input for found in calls] == [{"path": "a"}, {"path": "b"}]
    assert [found.metadata for found in calls] == [{FAMILY: {"thought_signature": "s"}}, {}]
    assert (answer.finish, answer.finish_raw) == ("tool_use", "STOP")


def test_a_call_without_an_id_gets_one_that_is_the_same_however_it_arrives():
    both = chunk(call(), call(), finish="STOP", responseId="r/1")
    ids = [use.tool_id for use in whole(both).message.get_tool_uses()]
    assert ids == [f"{GENERATED_ID_PREFIX}r_1_0", f"{GENERATED_ID_PREFIX}r_1_1"]
    assert [use.tool_id for use in streamed(both).message.get_tool_uses()] == ids


def test_an_id_that_google_gave_is_preserved():
    assert whole(chunk(call(id="c1"), finish="STOP")).message.get_tool_uses()[0].tool_id == "c1"


def test_arguments_in_pieces_are_shown_while_they_are_written():
    decoder = GeminiDecoder()
    started = chunk(call(willContinue=True) | {"thoughtSignature": "s"}, responseId="r")
    assert fed(decoder, started)[-1] == PartStart(0, "tool", f"{GENERATED_ID_PREFIX}r_0", "read")
    piece = {"jsonPath": "$.path", "stringValue": "a.t", "willContinue": True}
    more = {"functionCall": {"partialArgs": [piece], "willContinue": True}}
    assert fed(decoder, chunk(more)) == [InputDelta(0, '{"path":"a.t')]
    last = {"functionCall": {"partialArgs": [{"jsonPath": "$.path", "stringValue": "xt"}], "willContinue": True}}
    assert fed(decoder, chunk(last)) == [InputDelta(0, 'xt"')]
    assert fed(decoder, chunk({"functionCall": {}})) == [InputDelta(0, "}"), PartEnd(0, {"thought_signature": "s"})]
    assert fed(decoder, chunk({"functionCall": {}})) == []


def test_arguments_in_pieces_end_with_the_answer_at_the_latest():
    piece = {"jsonPath": "$.n", "numberValue": 1}
    answer = streamed(chunk(call(partialArgs=[piece], willContinue=True)), chunk({"text": "so"}, finish="STOP"))
    assert answer.message.get_tool_uses()[0].tool_input == {"n": 1}


def test_a_call_without_a_name_is_still_a_call():
    (found,) = whole(chunk({"functionCall": {"args": {"a": 1}}}, finish="STOP")).message.get_parts_by_type(ToolPart)
    assert (found.tool, found.state.input) == ("", {"a": 1})


def test_what_google_did_itself_is_preserved_whole_and_in_place():
    code = {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "s"}
    outcome = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}
    parts = whole(chunk({"text": "a"}, code, outcome, {"text": "b"}, finish="STOP")).message.parts
    assert [type(part) for part in parts] == [TextPart, ReasoningPart, ReasoningPart, TextPart]
    assert [part.provider_state["part"] for part in parts[1:3]] == [code, outcome]


def test_an_image_is_a_file():
    image = {"inlineData": {"mimeType": "image/png", "data": "QUJD"}, "thoughtSignature": "s"}
    (part,) = whole(chunk(image, finish="STOP")).message.parts
    assert isinstance(part, FilePart)
    assert (part.url, part.metadata[FAMILY]) == (
        "data:image/png;base64,QUJD",
        {"by_model": True, "thought_signature": "s"},
    )


@pytest.mark.parametrize(
    ("raw", "finish"),
    [
        ("STOP", "stop"),
        (1, "stop"),
        ("MAX_TOKENS", "length"),
        (2, "length"),
        ("SAFETY", "refusal"),
        ("PROHIBITED_CONTENT", "refusal"),
        ("MALFORMED_FUNCTION_CALL", "other"),
        ("SOMETHING_NEW", "other"),
    ],
)
def test_the_finish_reason_is_one_of_ours_with_the_one_of_google(raw: str | int, finish: str):
    answer = whole({"candidates": [{"finishReason": raw}]})
    assert (answer.finish, answer.finish_raw) == (finish, str(raw))


def test_a_call_of_a_tool_that_does_not_exist_can_be_answered():
    assert whole(chunk(call(), finish="UNEXPECTED_TOOL_CALL")).finish == "tool_use"


def test_a_call_that_was_cut_off_is_no_tool_use():
    assert whole(chunk(call(), finish="MAX_TOKENS")).finish == "length"


def test_a_blocked_prompt_is_a_refusal():
    answer = whole({"promptFeedback": {"blockReason": "SAFETY"}})
    assert (answer.finish, answer.finish_raw, answer.message.parts) == ("refusal", "SAFETY", [])


def test_tokens_are_distinguished_and_add_up():
    usage = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 60,
        "toolUsePromptTokenCount": 7,
        "candidatesTokenCount": 10,
        "thoughtsTokenCount": 20,
        "totalTokenCount": 137,
    }
    tokens = whole(chunk(finish="STOP", usageMetadata=usage)).tokens
    assert tokens == Tokens(47, 10, 20, CacheTokens(60))
    assert tokens.total == usage["totalTokenCount"]


def test_usage_is_reported_when_it_changes():
    decoder = GeminiDecoder()
    usages = [{"promptTokenCount": 5}, {"promptTokenCount": 5}, {"promptTokenCount": 5, "candidatesTokenCount": 2}, {}]
    found = fed(decoder, *({"usageMetadata": count} for count in usages))
    assert found == [UsageReport(Tokens(5)), UsageReport(Tokens(5, 2))]


def test_a_reason_in_every_chunk_does_not_end_the_answer_early():
    answer = streamed(chunk({"text": "Hel"}, finish="STOP"), chunk({"text": "lo"}, finish="MAX_TOKENS"))
    assert (answer.message.get_text_content(), answer.finish) == ("Hello", "length")


def test_a_stream_that_is_an_array_is_read_like_events():
    answer = whole([chunk({"text": "Hel"}), chunk({"text": "lo"}, finish="STOP")])
    assert answer.message.get_text_content() == "Hello"


def test_of_several_candidates_the_first_is_used():
    second = {"index": 1, "content": {"parts": [{"text": "no"}]}, "finishReason": "MAX_TOKENS"}
    value = chunk({"text": "yes"}, finish="STOP")
    value["candidates"].append(second)
    answer = whole(value)
    assert (answer.message.get_text_content(), answer.finish) == ("yes", "stop")


@pytest.mark.parametrize("noise", [b"[DONE]", b"ping", b"", b"{}", b'{"candidates": [{"content": {"role": "model"}}]}'])
def test_empty_chunks_give_no_deltas(noise: bytes):
    assert list(GeminiDecoder().feed("", noise)) == []


def test_a_stream_that_stops_early_is_a_broken_connection():
    decoder = GeminiDecoder()
    fed(decoder, chunk({"text": "Hal"}))
    with pytest.raises(NetworkError):
        list(decoder.close())


@pytest.mark.parametrize("wrap", [lambda error: {"error": error}, lambda error: [{"error": error}]])
def test_an_error_inside_a_stream_is_raised_with_its_message(wrap: Any):
    error = {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}
    with pytest.raises(OverloadedError, match="The model is overloaded"):
        fed(GeminiDecoder(), wrap(error))


def test_what_cannot_be_read_is_malformed():
    with pytest.raises(MalformedAnswerError):
        list(GeminiDecoder().feed("", b'{"candidates": '))
