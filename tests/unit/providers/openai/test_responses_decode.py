"""Answers of the Responses API: deltas in order, complete items, every end state."""

import json
from typing import Any

import pytest

from outrider.errors import MalformedAnswerError, NetworkError, QuotaExceededError, RateLimitError, ServerError
from outrider.providers.openai.responses_client import FAMILY
from outrider.providers.openai.responses_decode import ResponsesDecoder
from outrider.types.parts import CacheTokens, FilePart, ReasoningPart, TextPart, Tokens, ToolPart
from outrider.types.request import AnswerStart, Finish, InputDelta, PartEnd, PartStart, ReasoningDelta, TextDelta
from tests.unit.providers.openai.responses_answers import (
    completed,
    created,
    event,
    fed,
    folded,
    function_call,
    message,
    streamed,
    whole,
)


def added(item: dict[str, Any], at: int = 0) -> dict[str, Any]:
    return event("output_item.added", output_index=at, item=item)


def done(item: dict[str, Any], at: int = 0) -> dict[str, Any]:
    return event("output_item.done", output_index=at, item=item)


def text(delta: str, at: int = 0, content: int = 0) -> dict[str, Any]:
    return event("output_text.delta", output_index=at, content_index=content, delta=delta)


def arguments(delta: str, at: int = 0) -> dict[str, Any]:
    return event("function_call_arguments.delta", output_index=at, delta=delta)


def test_text_is_given_as_it_arrives():
    decoder = ResponsesDecoder()
    assert fed(decoder, [created()]) == [AnswerStart("resp_1", "gpt-x")]
    assert fed(decoder, [added({"type": "message", "id": "msg_1", "content": []})]) == []
    assert fed(decoder, [text("Hel")]) == [PartStart(0, "text"), TextDelta(0, "Hel")]
    assert fed(decoder, [text("lo")]) == [TextDelta(0, "lo")]
    assert fed(decoder, [done(message("Hello"))]) == [PartEnd(0, {"id": "msg_1", "status": "completed"})]
    assert fed(decoder, [completed(message("Hello"))]) == [Finish("stop", "completed")]
    assert list(decoder.close()) == []


def test_a_call_shows_its_name_first_and_its_input_while_it_is_written():
    decoder = ResponsesDecoder()
    assert fed(decoder, [added(function_call(""))]) == [PartStart(0, "tool", "call_1", "read")]
    assert fed(decoder, [arguments('{"a"'), arguments(":1}")]) == [InputDelta(0, '{"a"'), InputDelta(0, ":1}")]
    assert fed(decoder, [done(function_call('{"a":1}'))]) == [PartEnd(0, {"id": "fc_1"})]
    assert fed(decoder, [completed()])[-1] == Finish("tool_use", "completed")


def test_summary_parts_are_joined_by_a_blank_line_and_the_item_is_preserved_whole():
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"text": "One"}, {"text": "Two"}], "encrypted_content": "x"}
    summary = [
        event("reasoning_summary_text.delta", output_index=0, summary_index=number, delta=delta)
        for number, delta in ((0, "On"), (0, "e"), (1, "Two"))
    ]
    decoder = ResponsesDecoder()
    found = fed(decoder, [added({"type": "reasoning", "id": "rs_1", "summary": []}), *summary, done(item)])
    assert [delta.text for delta in found if isinstance(delta, ReasoningDelta)] == ["On", "e", "\n\nTwo"]
    (part,) = folded(found).message.parts
    assert part.text == "One\n\nTwo"
    assert part.provider_state == {"family": FAMILY, "item": item}


def test_reasoning_that_a_model_shows_is_reasoning_too():
    item = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm. So."}],
    }
    delta = event("reasoning_text.delta", output_index=0, content_index=0, delta="Hm.")
    answer = streamed(added({"type": "reasoning", "id": "rs_1"}), delta, done(item), completed())
    assert [part.text for part in answer.message.get_parts_by_type(ReasoningPart)] == ["Hm. So."]


def test_items_that_are_only_in_events_make_the_answer():
    answer = streamed(created(), added(function_call("")), arguments("{}"), done(function_call("{}")), completed())
    assert [call.call_id for call in answer.message.get_parts_by_type(ToolPart)] == ["call_1"]


def test_items_that_are_only_in_the_end_make_the_answer():
    answer = streamed(created(), completed(message("Hello"), function_call('{"a": 1}')))
    assert answer.message.get_text_content() == "Hello"
    assert answer.message.get_tool_uses()[0].tool_input == {"a": 1}


def test_an_id_that_changes_in_mid_stream_does_not_make_a_second_item():
    answer = streamed(
        added({"type": "message", "id": "msg_a", "content": []}),
        text("Hi"),
        done(message("Hi", id="msg_b")),
        completed(message("Hi", id="msg_c")),
    )
    assert answer.message.get_text_content() == "Hi"
    assert answer.message.parts[0].metadata[FAMILY]["id"] == "msg_b"


def test_content_with_an_index_from_one_is_not_returned_twice():
    answer = streamed(
        added({"type": "message", "content": []}), text("Hi", content=1), done(message("Hi")), completed()
    )
    assert [part.text for part in answer.message.parts] == ["Hi"]


def test_an_end_that_leaves_out_an_item_does_not_give_another_one_twice():
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    answer = streamed(
        added(reasoning), done(reasoning), added({"type": "message"}, 1), text("Hi", 1), done(message("Hi"), 1),
        completed(message("Hi")),
    )  # fmt: skip
    assert answer.message.get_text_content() == "Hi"


def test_an_item_that_is_reported_twice_is_one_item():
    start = added({"type": "message", "id": "msg_1", "content": []})
    assert (
        streamed(start, text("Hel"), start, text("lo"), done(message("Hello")), completed()).message.get_text_content()
        == "Hello"
    )


def test_two_items_under_one_index_are_two_items():
    second = function_call("", id="fc_2", call_id="call_2")
    answer = streamed(
        added(function_call("")), arguments('{"a":1}'), done(function_call('{"a":1}')),
        added(second), arguments('{"a":2}'), done(second | {"arguments": '{"a":2}'}), completed(),
    )  # fmt: skip
    assert [use.tool_input for use in answer.message.get_tool_uses()] == [{"a": 1}, {"a": 2}]


def test_a_stream_without_indexes_goes_by_ids_and_order():
    start = {"type": "response.output_item.added", "item": {"type": "message", "id": "msg_1", "content": []}}
    delta = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "Hi"}
    call = {"type": "response.output_item.done", "item": function_call("{}")}
    answer = streamed(start, delta, call, completed())
    assert answer.message.get_text_content() == "Hi"
    assert answer.message.get_tool_uses()[0].tool_name == "read"


def test_text_whose_beginning_was_never_announced_is_text():
    assert streamed(text("Hi"), completed()).message.get_text_content() == "Hi"


def test_a_call_without_a_name_is_still_a_call():
    answer = streamed(
        added(function_call("", name="")), arguments("{}"), done(function_call("{}", name="")), completed()
    )
    assert [(call.tool, call.state.raw) for call in answer.message.get_parts_by_type(ToolPart)] == [("", "{}")]


def test_free_text_for_a_custom_tool_is_one_field_of_an_object_and_streams():
    item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "run"}
    pieces = [event("custom_tool_call_input.delta", output_index=0, delta=delta) for delta in ('print("a', '")\n')]
    answer = streamed(added(item | {"input": ""}), *pieces, done(item | {"input": 'print("a")\n1'}), completed())
    (call,) = answer.message.get_parts_by_type(ToolPart)
    assert call.state.input == {"input": 'print("a")\n1'}
    assert call.metadata[FAMILY] == {"id": "ctc_1", "custom": True}


def test_what_the_provider_did_itself_is_preserved_whole_and_in_place():
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    parts = streamed(added(search), done(search), completed(search, message("Found"))).message.parts
    assert [type(part) for part in parts] == [ReasoningPart, TextPart]
    assert (parts[0].text, parts[0].provider_state["item"]) == ("", search)


def test_an_image_is_a_file():
    item = {"type": "image_generation_call", "id": "ig_1", "output_format": "webp", "result": "QUJD"}
    (part,) = whole({"status": "completed", "output": [item]}).message.parts
    assert isinstance(part, FilePart)
    assert (part.mime, part.url) == ("image/webp", "data:image/webp;base64,QUJD")


def test_a_refusal_is_shown_and_distinguished():
    piece = {"type": "refusal", "refusal": "I cannot."}
    delta = event("refusal.delta", output_index=0, content_index=0, delta="I can")
    answer = streamed(delta, done({"type": "message", "id": "m", "content": [piece]}), completed())
    (part,) = answer.message.parts
    assert (part.text, part.metadata[FAMILY]["refusal"]) == ("I cannot.", True)
    assert answer.finish == "refusal"


def test_citations_stay_with_their_text():
    cited = {"type": "output_text", "text": "Hi", "annotations": [{"type": "url_citation", "url": "https://a.example"}]}
    (part,) = whole({"status": "completed", "output": [message("", content=[cited])]}).message.parts
    assert part.metadata[FAMILY]["annotations"] == cited["annotations"]


@pytest.mark.parametrize(
    ("status", "details", "finish", "raw"),
    [
        ("incomplete", {"reason": "max_output_tokens"}, "length", "incomplete:max_output_tokens"),
        ("incomplete", {"reason": "content_filter"}, "refusal", "incomplete:content_filter"),
        ("incomplete", None, "other", "incomplete"),
        ("queued", None, "other", "queued"),
        ("cancelled", None, "other", "cancelled"),
    ],
)
def test_an_answer_that_is_not_completed_has_a_reason(status: str, details: Any, finish: str, raw: str):
    answer = whole({"status": status, "output": [message("Hal")], "incomplete_details": details})
    assert (answer.finish, answer.finish_raw, answer.message.get_text_content()) == (finish, raw, "Hal")


def test_a_call_that_was_cut_off_ends_in_an_input_error():
    end = event("incomplete", response={"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}})
    answer = streamed(added(function_call("")), arguments('{"a": 1'), end)
    (call,) = answer.message.get_parts_by_type(ToolPart)
    assert "not valid JSON" in call.metadata["input_error"]
    assert answer.finish == "length"


def test_tokens_are_distinguished():
    usage = {
        "input_tokens": 100,
        "output_tokens": 30,
        "total_tokens": 130,
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
        "output_tokens_details": {"reasoning_tokens": 20},
    }
    assert whole({"status": "completed", "output": [], "usage": usage}).tokens == Tokens(
        30, 10, 20, CacheTokens(60, 10)
    )


def test_reasoning_that_a_server_counts_separately_is_not_subtracted():
    usage = {
        "input_tokens": 5,
        "output_tokens": 30,
        "total_tokens": 55,
        "output_tokens_details": {"reasoning_tokens": 20},
    }
    assert whole({"status": "completed", "output": [], "usage": usage}).tokens == Tokens(5, 30, 20)


def test_events_after_the_end_are_ignored():
    decoder = ResponsesDecoder()
    fed(decoder, [completed(message("Hi"))])
    assert fed(decoder, [text("more")]) == []
    assert list(decoder.feed("", b"[DONE]")) == []


def test_the_name_of_the_event_is_used_where_the_payload_has_no_type():
    decoder = ResponsesDecoder()
    found = list(decoder.feed("response.incomplete", b'{"response": {"id": "r"}}'))
    assert found[-1] == Finish("other", "incomplete")


@pytest.mark.parametrize("noise", [b"[DONE]", b"ping", b"", b'{"type": "response.new_thing", "delta": {"a": 1}}'])
def test_unknown_events_are_ignored(noise: bytes):
    assert list(ResponsesDecoder().feed("", noise)) == []


def test_a_stream_that_stops_early_is_a_broken_connection():
    decoder = ResponsesDecoder()
    fed(decoder, [created(), text("Hal")])
    with pytest.raises(NetworkError):
        list(decoder.close())


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "slow"}, RateLimitError),
        ({"type": "error", "error": {"type": "server_error", "message": "slow"}}, ServerError),
        ({"error": {"code": "insufficient_quota", "message": "slow"}}, QuotaExceededError),
        (
            event("failed", response={"status": "failed", "error": {"code": "server_error", "message": "slow"}}),
            ServerError,
        ),
    ],
)
def test_an_error_inside_a_stream_is_raised_with_its_message(value: dict[str, Any], error: type[Exception]):
    with pytest.raises(error, match="slow"):
        fed(ResponsesDecoder(), [value])


def test_a_failed_answer_still_states_its_usage():
    decoder = ResponsesDecoder()
    failed = {"status": "failed", "error": {"code": "server_error", "message": "x"}, "usage": {"input_tokens": 7}}
    deltas = iter(decoder.feed("", b'{"type": "response.failed", "response": %b}' % json.dumps(failed).encode()))
    assert next(deltas).tokens == Tokens(7)  # type: ignore[union-attr]
    with pytest.raises(ServerError):
        next(deltas)


def test_half_a_surrogate_pair_does_not_end_the_answer():
    decoder = ResponsesDecoder()
    found = list(decoder.feed("", b'{"type": "response.output_text.delta", "output_index": 0, "delta": "a\\ud800b"}'))
    assert found[-1] == TextDelta(0, "a\ufffdb")


def test_a_body_that_is_no_answer_is_malformed():
    with pytest.raises(MalformedAnswerError):
        whole({"hello": "world"})
