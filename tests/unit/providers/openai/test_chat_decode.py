"""Responses of Chat Completions and of compatible servers, with their variants."""

import json

import pytest

from outrider.errors import (
    ContextOverflowError,
    MalformedAnswerError,
    NetworkError,
    OverloadedError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from outrider.providers.openai.chat_decode import ChatDecoder
from outrider.types.parts import CacheTokens, FilePart, ReasoningPart, TextPart, Tokens
from outrider.types.request import AnswerStart, Finish, PartEnd, PartStart, TextDelta, UsageReport
from tests.unit.providers.openai.chat_answers import (
    DONE,
    FAMILY,
    answer,
    call,
    calls,
    chunk,
    partial_answer,
    reasoning,
    stream,
    streamed,
    text,
    whole,
)


def test_text_comes_out_as_it_arrives():
    assert stream(
        chunk({"role": "assistant", "content": ""}), chunk({"content": "Hi"}), chunk(finish="stop"), DONE
    ) == [
        AnswerStart("c1", "m"),
        PartStart(0, "text"),
        TextDelta(0, "Hi"),
        PartEnd(0),
        Finish("stop", "stop"),
    ]


def test_usage_may_come_after_the_finish_reason_and_is_reported_before_the_end():
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    deltas = stream(chunk({"content": "Hi"}), chunk(finish="stop"), {"choices": [], "usage": usage}, DONE)
    assert deltas.index(UsageReport(Tokens(input=5, output=2))) < len(deltas) - 1
    assert deltas[-1] == Finish("stop", "stop")


def test_a_stream_with_a_finish_reason_is_whole_without_its_end_mark():
    assert streamed(chunk({"content": "Hi"}), chunk(finish="stop")).finish == "stop"


def test_a_stream_without_either_is_cut_and_what_arrived_is_preserved():
    found, error = partial_answer(chunk({"content": "Hi"}), chunk({"content": " there"}))
    assert isinstance(error, NetworkError)
    assert text(found) == "Hi there"


def test_an_end_mark_without_a_finish_reason_is_an_end_without_a_reason():
    found = streamed(chunk({"content": "Hi"}), DONE)
    assert (found.finish, found.finish_raw, text(found)) == ("other", "", "Hi")


@pytest.mark.parametrize(
    ("word", "reason"),
    [("stop", "stop"), ("eos", "stop"), ("length", "length"), ("content_filter", "refusal"), ("weather", "other")],
)
def test_the_servers_finish_reason_is_stored_next_to_its_meaning(word: str, reason: str):
    found = streamed(chunk({"content": "Hi"}, finish=word), DONE)
    assert (found.finish, found.finish_raw) == (reason, word)


def test_a_finish_reason_of_no_letters_is_a_stop():
    assert whole({"content": "4"}, finish="").finish == "stop"


def test_calls_that_finish_with_stop_are_calls():
    assert streamed(call(0, "a", "read", "{}"), chunk(finish="stop"), DONE).finish == "tool_use"


def test_a_cut_call_that_is_labelled_as_whole_carries_what_is_wrong():
    found = whole(
        {"tool_calls": [{"id": "a", "function": {"name": "read", "arguments": '{"path": "/t'}}]}, "tool_calls"
    )
    [part] = found.message.parts
    assert part.state.raw == '{"path": "/t'
    assert "not valid JSON" in part.metadata["input_error"]


def test_the_first_choice_is_used():
    other = {"choices": [{"index": 1, "delta": {"content": "No"}, "finish_reason": "length"}]}
    found = streamed(chunk({"content": "Yes"}), other, chunk(finish="stop"), DONE)
    assert (text(found), found.finish) == ("Yes", "stop")


def test_chunks_without_choices_or_delta_say_nothing():
    bare = {"id": "", "model": "", "choices": []}
    found = streamed(bare, {"choices": [{"index": 0}]}, {"object": "ping"}, chunk({"content": "Hi"}, "stop"), DONE)
    assert text(found) == "Hi"


@pytest.mark.parametrize("sign", ["", "   ", "null", "1", '"ping"', "ping", "[]"])
def test_signs_of_life_say_nothing(sign: str):
    assert text(streamed(sign, chunk({"content": "Hi"}, "stop"), sign, DONE)) == "Hi"


def test_what_comes_after_the_end_is_not_read():
    assert text(streamed(chunk({"content": "Hi"}, "stop"), DONE, chunk({"content": " again"}))) == "Hi"


def test_the_id_and_the_model_are_those_that_come_first():
    first = {"id": "", "model": "", "choices": []}
    deltas = stream(first, chunk({"content": "a"}), chunk({"content": "b"}, "stop", id="c2", model="n"), DONE)
    assert [delta for delta in deltas if isinstance(delta, AnswerStart)] == [AnswerStart("c1", "m")]


def test_a_message_that_is_repeated_whole_in_every_chunk_is_read_once():
    pieces = [("Hi", "Hi"), (" you", "Hi you")]
    chunks = [chunk({"content": new}) for new, _ in pieces]
    for event, (_, so_far) in zip(chunks, pieces, strict=True):
        event["choices"][0]["message"] = {"content": so_far}
    assert text(streamed(*chunks, chunk(finish="stop"))) == "Hi you"


def test_a_message_in_place_of_a_delta_is_read():
    assert text(streamed({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}, DONE)) == "Hi"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_distinguished_and_remembers_its_field(field: str):
    found = streamed(chunk({field: "Hm"}), chunk({field: "m."}), chunk({"content": "4"}, "stop"), DONE)
    thought, text = found.message.parts
    assert (thought.text, text.text) == ("Hmm.", "4")
    assert thought.provider_state == {"family": FAMILY, "field": field}


def test_reasoning_that_comes_under_two_names_is_read_once():
    twice = [{"reasoning": t, "reasoning_details": [{"type": "reasoning.text", "text": t, "index": 0}]} for t in "ab"]
    found = streamed(*map(chunk, twice), chunk({"content": "4"}, "stop"), DONE)
    assert reasoning(found) == "ab"
    [thought] = found.message.get_parts_by_type(ReasoningPart)
    assert thought.provider_state["details"] == [{"type": "reasoning.text", "text": "ab", "index": 0}]


def test_reasoning_that_is_only_in_details_is_read():
    summary = {"type": "reasoning.summary", "summary": "Plan", "index": 0}
    assert reasoning(whole({"content": "4", "reasoning_details": [summary]})) == "Plan"


def test_a_signature_joins_its_text_and_encrypted_items_stand_alone():
    details = [
        {"type": "reasoning.text", "text": "a", "index": 0, "format": None},
        {"type": "reasoning.text", "text": "b", "index": 0, "format": "f"},
        {"type": "reasoning.text", "signature": "s", "index": 0},
        {"type": "reasoning.text", "text": "c", "index": 0},
        {"type": "reasoning.encrypted", "data": "x", "index": 1},
        {"type": "reasoning.encrypted", "data": "y", "index": 1},
    ]
    found = streamed(*(chunk({"reasoning_details": [item]}) for item in details), chunk({"content": "4"}, "stop"), DONE)
    [thought] = found.message.get_parts_by_type(ReasoningPart)
    assert thought.provider_state["details"] == [
        {"type": "reasoning.text", "text": "ab", "signature": "s", "index": 0, "format": "f"},
        {"type": "reasoning.text", "text": "c", "index": 0},
        {"type": "reasoning.encrypted", "data": "x", "index": 1},
        {"type": "reasoning.encrypted", "data": "y", "index": 1},
    ]


def test_details_that_come_late_are_preserved_and_split_no_text():
    late = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "index": 0}]}
    found = streamed(chunk({"content": "one "}), chunk(late), chunk({"content": "two"}, "stop"), DONE)
    text, sealed = found.message.parts
    assert text.text == "one two"
    assert sealed.provider_state["details"] == late["reasoning_details"]


def test_content_in_blocks_holds_thinking_and_text():
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}], "closed": True}
    found = streamed(chunk({"content": [thinking]}), chunk({"content": [{"type": "text", "text": "4"}]}, "stop"), DONE)
    assert (reasoning(found), text(found)) == ("Hm.", "4")
    assert found.message.parts[0].provider_state["field"] == "content"


def test_reasoning_with_a_summary_among_the_blocks_is_reasoning():
    block = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Plan"}]}
    assert reasoning(whole({"content": [block, {"type": "text", "text": "4"}]})) == "Plan"


def test_content_that_is_the_object_itself_is_its_text():
    assert json.loads(text(whole({"content": {"name": "Ada", "age": 36}}))) == {"name": "Ada", "age": 36}


def test_a_refusal_is_marked_text():
    found = streamed(chunk({"refusal": "I "}), chunk({"refusal": "won't."}), chunk(finish="stop"), DONE)
    [part] = found.message.parts
    assert (part.text, part.metadata, found.finish) == ("I won't.", {FAMILY: {"refusal": True}}, "refusal")


def test_citations_are_stored_with_the_text():
    cited = {"url_citation": {"url": "https://a.example"}}
    found = streamed(
        chunk({"content": "Hi"}, citations=["https://b.example"]),
        chunk({"annotations": [cited]}, "stop", citations=["https://b.example", "https://c.example"]),
        DONE,
    )
    [part] = found.message.parts
    assert part.metadata[FAMILY] == {
        "citations": ["https://b.example", "https://c.example"],
        "annotations": [cited],
    }


def test_pictures_and_sound_are_files():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    sound = {"id": "audio_1", "data": "UklG", "transcript": "Hello"}
    found = whole({"content": None, "images": [picture], "audio": sound})
    files = found.message.get_parts_by_type(FilePart)
    assert [(file.mime, file.url) for file in files] == [
        ("image/png", "data:image/png;base64,AAAA"),
        ("audio/wav", "data:audio/wav;base64,UklG"),
    ]
    assert files[1].metadata[FAMILY] == {"audio": "audio_1", "transcript": "Hello"}


def test_streamed_sound_is_put_together():
    pieces = [
        chunk({"audio": {"id": "a"}}),
        chunk({"audio": {"data": "Ukl"}}),
        chunk({"audio": {"data": "G="}}, "stop"),
    ]
    [file] = streamed(*pieces, DONE).message.get_parts_by_type(FilePart)
    assert file.url == "data:audio/wav;base64,UklG="


def test_an_error_inside_a_stream_is_raised_and_what_arrived_is_preserved():
    found, error = partial_answer(chunk({"content": "Hi"}), {"error": {"message": "slow down", "code": 429}})
    assert isinstance(error, RateLimitError)
    assert (text(found), error.message) == ("Hi", "slow down")


def test_an_error_after_the_finish_reason_is_raised_and_the_reason_is_preserved():
    found, error = partial_answer(
        chunk({"content": "Hi"}, "length"), {"error": {"message": "Token limit reached", "code": 400}}
    )
    assert error is not None
    assert (found.finish, text(found)) == ("length", "Hi")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("error", ServerError), ("NETWORK_ERROR", NetworkError), ("Insufficient_System_Resource", OverloadedError)],
)
def test_a_finish_reason_that_reports_a_failure_is_an_error_in_either_case(reason: str, kind: type[ProviderError]):
    found, error = partial_answer(chunk({"content": "Hi"}), chunk(finish=reason))
    assert type(error) is kind
    assert (reason in error.message, text(found)) == (True, "Hi")


@pytest.mark.parametrize(
    "event",
    [
        {"error": "broken"},
        {"error": {"message": "broken"}, "choices": []},
        [{"error": {"message": "broken"}}],
        {"object": "error", "message": "broken", "code": 500},
        {"detail": "broken"},
        {"errors": [{"message": "broken"}]},
        {"choices": [{"index": 0, "error": {"message": "broken", "code": 502}, "finish_reason": "error"}]},
    ],
)
def test_every_shape_of_an_error_is_one(event: object):
    _, error = partial_answer(event)
    assert error is not None
    assert error.message == "broken"


def test_an_error_event_with_plain_text_is_raised_with_it():
    with pytest.raises(Exception, match="out of memory"):
        list(ChatDecoder().feed("error", b"out of memory"))


def test_an_error_with_status_200_is_an_error():
    body = {"error": {"message": "maximum context length is 10 tokens", "code": "context_length_exceeded"}}
    with pytest.raises(ContextOverflowError):
        list(ChatDecoder().decode_body(json.dumps(body).encode()))


@pytest.mark.parametrize("body", [b"{}", b'{"choices": []}', b"[]", b'{"choices": [{"index": 0}]}', b'{"choices": ['])
def test_a_body_that_holds_no_answer_is_malformed(body: bytes):
    with pytest.raises(MalformedAnswerError):
        list(ChatDecoder().decode_body(body))


def test_a_body_may_start_with_white_space():
    body = b'\n\n   {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}'
    assert text(answer(list(ChatDecoder().decode_body(body)))) == "Hi"


def test_a_chunk_that_breaks_off_is_malformed():
    _, error = partial_answer(chunk({"content": "Hi"}), '{"choices": [{"delta": {"con')
    assert isinstance(error, MalformedAnswerError)


def test_half_a_surrogate_pair_is_replaced():
    damaged = json.dumps(chunk({"content": "X"})).replace("X", r"a\ud83db")
    assert text(streamed(damaged, chunk(finish="stop"))) == "a\ufffdb"


def test_numbers_that_come_as_text_are_numbers():
    found = streamed(chunk({"content": "Hi"}, "stop", usage={"prompt_tokens": "5", "completion_tokens": 2.0}), DONE)
    assert found.tokens == Tokens(input=5, output=2)


def test_text_between_calls_is_a_separate_part():
    found = streamed(
        chunk({"content": "First"}), call(0, "a", "read", "{}"), chunk({"content": "Then"}), chunk(finish="stop"), DONE
    )
    assert [part.text for part in found.message.get_parts_by_type(TextPart)] == ["First", "Then"]
    assert calls(found) == [("a", "read", {})]


def test_empty_usage_changes_nothing():
    nothing = {"choices": [], "usage": {"prompt_tokens": None, "completion_tokens": None}}
    counted = chunk({"content": "Hi"}, "stop", usage={"prompt_tokens": 1, "completion_tokens": 1})
    assert streamed(counted, nothing, DONE).tokens == Tokens(input=1, output=1)


@pytest.mark.parametrize("place", ["usage", "x_groq", "choice"])
def test_usage_is_found_wherever_a_server_puts_it(place: str):
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    event = chunk({"content": "Hi"}, "stop")
    match place:
        case "choice":
            event["choices"][0]["usage"] = usage
        case "x_groq":
            event["x_groq"] = {"usage": usage}
        case _:
            event["usage"] = usage
    assert streamed(event, DONE).tokens == Tokens(input=5, output=3, cache=CacheTokens(read=4))
