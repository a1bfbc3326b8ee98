"""Answers of the Messages API, usual and damaged, become deltas as they arrive."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import (
    InvalidRequestError,
    MalformedAnswerError,
    NetworkError,
    OverloadedError,
    ProviderError,
    RateLimitError,
    ServerError,
)
from outrider.providers.anthropic.decode import AnthropicDecoder, error_from_response
from outrider.types.parts import CacheTokens, ReasoningPart, Tokens, ToolPart
from outrider.types.request import (
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
from tests.unit.providers.anthropic.stream import (
    answered,
    call,
    end,
    folded,
    message_start,
    piece,
    read,
    start,
    stop,
    text,
)


def test_each_event_gives_its_deltas_at_once() -> None:
    events = [message_start(input_tokens=5, output_tokens=1), *text(0, "Hel", "lo"), *end(output_tokens=7)]
    decoder = AnthropicDecoder()
    found = [list(decoder.feed("", json.dumps(event).encode())) for event in events]
    assert found == [
        [AnswerStart("msg_1", "claude-x"), UsageReport(Tokens(input=5, output=1))],
        [PartStart(0, "text")],
        [TextDelta(0, "Hel")],
        [TextDelta(0, "lo")],
        [PartEnd(0)],
        [UsageReport(Tokens(input=5, output=7))],
        [Finish("stop", "end_turn")],
    ]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_use"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "other"),
        ("a_reason_of_tomorrow", "other"),
    ],
)
def test_the_providers_finish_reason_is_stored_next_to_ours(raw: str, reason: str) -> None:
    answer = answered(message_start(), text(0, "x"), end(raw))
    assert (answer.finish, answer.finish_raw) == (reason, raw)


def test_calls_that_wait_for_results_are_the_finish_reason_for_any_reason_of_the_provider() -> None:
    assert answered(message_start(), call(0, "{}"), end("end_turn")).finish == "tool_use"
    assert answered(message_start(), call(0, '{"a'), end("max_tokens")).finish == "length"


def test_counts_are_disjoint_and_a_later_report_revises_an_earlier_one() -> None:
    answer = answered(
        message_start(input_tokens=3, output_tokens=1, cache_read_input_tokens=70, cache_creation_input_tokens=None),
        text(0, "x"),
        end(input_tokens=4, output_tokens=50, output_tokens_details={"thinking_tokens": 30}),
    )
    assert answer.tokens == Tokens(input=4, output=20, reasoning=30, cache=CacheTokens(read=70))


def test_without_usage_nothing_is_reported() -> None:
    events = [
        {"type": "message_start", "message": {"id": "m"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    ]
    assert not [delta for delta in read(events) if isinstance(delta, UsageReport)]


def test_parallel_calls_are_read_each_with_its_own_input() -> None:
    answer = answered(
        message_start(), call(0, "", '{"path":', '"a"}', id="t1"), call(1, id="t2", name="list"), end("tool_use")
    )
    first, second = answer.message.get_parts_by_type(ToolPart)
    assert (first.call_id, first.tool, first.state.input) == ("t1", "read", {"path": "a"})
    assert (second.call_id, second.tool, second.state.input) == ("t2", "list", {})


def test_an_input_in_the_start_event_is_used_when_no_chunks_follow() -> None:
    whole = answered(
        message_start(), start(0, "tool_use", id="t", name="read", input={"a": 1}), stop(0), end("tool_use")
    )
    assert whole.message.get_parts_by_type(ToolPart)[0].state.input == {"a": 1}
    streamed = answered(
        message_start(),
        start(0, "tool_use", id="t", name="read", input={"a": 1}),
        piece(0, "input_json_delta", partial_json='{"b":2}'),
        stop(0),
        end("tool_use"),
    )
    assert streamed.message.get_parts_by_type(ToolPart)[0].state.input == {"b": 2}


def test_damaged_input_is_preserved_and_flagged() -> None:
    answer = answered(message_start(), call(0, '{"path": "a', id="t1"), call(1, '{"a":1}', id="t2"), end("max_tokens"))
    damaged, good = answer.message.get_parts_by_type(ToolPart)
    assert damaged.state.raw == '{"path": "a'
    assert "input_error" in damaged.metadata
    assert "input_error" not in good.metadata


def test_call_ids_that_repeat_or_are_missing_are_made_unique() -> None:
    answer = answered(
        message_start(), call(0, id="t"), call(1, id="t"), call(2, id=""), call(3, id=""), end("tool_use")
    )
    ids = [part.call_id for part in answer.message.get_parts_by_type(ToolPart)]
    assert ids[0] == "t"
    assert all(ids)
    assert len(set(ids)) == 4


def test_thinking_is_shown_and_its_signature_preserved() -> None:
    answer = answered(
        message_start(),
        start(0, "thinking", thinking="", signature=""),
        piece(0, "thinking_delta", thinking="let me", estimated_tokens=None),
        piece(0, "thinking_delta", thinking=" see"),
        piece(0, "signature_delta", signature="abc"),
        stop(0),
        end(),
    )
    (part,) = answer.message.get_parts_by_type(ReasoningPart)
    assert part.text == "let me see"
    assert part.provider_state == {"family": "anthropic", "signature": "abc"}


def test_thinking_with_a_signature_and_no_text_is_preserved() -> None:
    events = (start(0, "thinking", thinking="", signature=""), piece(0, "signature_delta", signature="abc"), stop(0))
    (part,) = answered(message_start(), *events, end()).message.parts
    assert part.to_api_format() == {"type": "thinking", "thinking": "", "signature": "abc"}


def test_fields_of_thinking_that_have_no_name_here_go_back_with_it() -> None:
    events = (start(0, "thinking", thinking="", signature="s", bound="x"), piece(0, "thinking_delta", thinking="hm"))
    (part,) = answered(message_start(), *events, stop(0), end()).message.parts
    assert part.to_api_format() == {"type": "thinking", "thinking": "hm", "signature": "s", "bound": "x"}


def test_blocks_that_only_the_provider_understands_are_preserved_in_their_place() -> None:
    result = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"encrypted_content": "e"}]}
    answer = answered(
        message_start(),
        start(0, "redacted_thinking", data="xyz"),
        stop(0),
        text(1, "I look."),
        start(2, "server_tool_use", id="s1", name="web_search", input={}),
        piece(2, "input_json_delta", partial_json='{"query":'),
        piece(2, "input_json_delta", partial_json='"cats"}'),
        stop(2),
        {"type": "content_block_start", "index": 3, "content_block": result},
        stop(3),
        start(4, "compaction", content=None),
        piece(4, "compaction_delta", content="so "),
        piece(4, "compaction_delta", content="far"),
        stop(4),
        start(5, "block_of_tomorrow", field=1),
        stop(5),
        end(),
    )
    assert [part.to_api_format() for part in answer.message.parts] == [
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "I look."},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "cats"}},
        result,
        {"type": "compaction", "content": "so far"},
        {"type": "block_of_tomorrow", "field": 1},
    ]
    assert answer.finish == "stop"


def test_citations_and_callers_are_preserved_with_their_part() -> None:
    answer = answered(
        message_start(),
        start(0, "text", text="", citations=[]),
        piece(0, "text_delta", text="Cats purr."),
        piece(0, "citations_delta", citation={"cited_text": "purr"}),
        piece(0, "citations_delta", citation={"cited_text": "cat"}),
        stop(0),
        call(1, "{}", caller={"type": "direct"}),
        end("tool_use"),
    )
    text, asked = answer.message.parts
    assert text.metadata == {"anthropic": {"citations": [{"cited_text": "purr"}, {"cited_text": "cat"}]}}
    assert asked.metadata == {"anthropic": {"caller": {"type": "direct"}}}


@pytest.mark.parametrize(
    "noise",
    [{"type": "ping"}, b"[DONE]", b" [DONE] ", b"", {"type": "event_of_tomorrow", "x": 1}, b"[1]", {"type": None}],
)
def test_empty_events_change_nothing(noise: Any) -> None:
    answer = answered(message_start(), noise, text(0, "Hi"), noise, end(), noise)
    assert answer.message.get_text_content() == "Hi"
    assert answer.finish == "stop"


def test_the_name_of_the_event_is_used_where_the_body_has_no_type() -> None:
    decoder = AnthropicDecoder()
    found = list(decoder.feed("content_block_delta", b'{"index":0,"delta":{"type":"text_delta","text":"x"}}'))
    assert found == [PartStart(0, "text"), TextDelta(0, "x")]


def test_padding_nulls_and_numbers_as_text_are_read() -> None:
    events = (
        b'   {"type":"message_start","message":{"id":null,"model":null,"usage":{"input_tokens":"5"}}}     ',
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": None}},
        {"type": "content_block_delta", "index": None, "delta": {"type": "text_delta", "text": "x"}},
    )
    answer = answered(*events, end())
    assert answer.message.get_text_content() == "x"
    assert answer.tokens.input == 5


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (rb'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\ud800b"}}', "a\ufffdb"),
        (b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\xffb"}}', "a\ufffdb"),
        (b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\nb"}}', "a\nb"),
    ],
)
def test_text_with_damaged_characters_is_shown_and_can_be_stored(data: bytes, text: str) -> None:
    answer = answered(message_start(), data, end())
    assert answer.message.get_text_content() == text
    assert answer.message.get_text_content().encode()


def test_pieces_of_a_block_that_never_started_start_it() -> None:
    answer = answered(
        message_start(),
        piece(0, "text_delta", text="Hi"),
        piece(1, "thinking_delta", thinking="hm"),
        piece(2, "input_json_delta", partial_json="{}"),
        piece(3, "compaction_delta", content="c"),
        end(),
    )
    assert [part.type for part in answer.message.parts] == ["text", "reasoning", "tool", "reasoning"]


def test_a_piece_of_another_kind_does_not_spoil_a_block() -> None:
    events = (*call(0, '{"a":')[:-1], piece(0, "text_delta", text="Hi"), stop(0))
    answer = answered(message_start(), *events, end())
    assert answer.message.get_text_content() == "Hi"
    assert answer.message.get_parts_by_type(ToolPart)[0].state.raw == '{"a":'


def test_a_start_that_repeats_is_one_start_and_another_one_is_another_part() -> None:
    once = answered(message_start(), start(0, "text", text=""), text(0, "Hi"), end())
    assert len(once.message.parts) == 1
    twice = answered(message_start(), call(0, "{}", id="t1")[0], call(0, "{}", id="t2"), end("tool_use"))
    assert [part.call_id for part in twice.message.parts] == ["t1", "t2"]


def test_indices_may_start_anywhere_and_message_start_may_repeat() -> None:
    answer = answered(message_start(input_tokens=5), message_start(input_tokens=5), text(9, "a"), text(3, "b"), end())
    assert answer.message.get_text_content() == "a\nb"
    assert answer.tokens.input == 5


def test_what_comes_after_the_end_is_not_looked_at() -> None:
    assert answered(message_start(), text(0, "Hi"), end(), text(0, "late")).message.get_text_content() == "Hi"


def test_blocks_that_are_still_open_at_the_end_are_ended() -> None:
    answer = answered(message_start(), call(0, '{"a":1}')[:-1], end("tool_use"))
    assert answer.message.get_parts_by_type(ToolPart)[0].state.input == {"a": 1}


def test_a_stream_that_ends_before_the_model_did_is_an_error_and_what_arrived_stays() -> None:
    decoder = AnthropicDecoder()
    found: list[Delta] = []
    for event in [message_start(), *text(0, "Hel")[:-1]]:
        found += decoder.feed("", json.dumps(event).encode())
    with pytest.raises(NetworkError):
        decoder.close()
    assert folded(found).message.get_text_content() == "Hel"


def test_nothing_at_all_is_an_error_that_may_be_tried_again() -> None:
    with pytest.raises(NetworkError) as caught:
        read([])
    assert caught.value.retryable


def test_a_stream_whose_stop_reason_is_known_is_whole() -> None:
    answer = folded(read([message_start(), *text(0, "Hi"), end(output_tokens=7)[0]]))
    assert (answer.message.get_text_content(), answer.finish, answer.tokens.output) == ("Hi", "stop", 7)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, OverloadedError, "Overloaded"),
        ({"type": "rate_limit_error", "message": "slow"}, RateLimitError, "slow"),
        ({"type": "invalid_request_error", "message": "bad"}, InvalidRequestError, "bad"),
        ({"type": "api_error", "message": "Internal"}, ServerError, "Internal"),
        ({"code": 503, "message": "gone"}, OverloadedError, "gone"),
        ("in plain words", ServerError, "in plain words"),
    ],
)
def test_an_error_inside_the_stream_is_typed(error: Any, kind: type[ProviderError], message: str) -> None:
    for event in ({"type": "error", "error": error}, {"error": error}):
        with pytest.raises(kind) as caught:
            read([message_start(), event])
        assert caught.value.message == message
        assert caught.value.status is None


@pytest.mark.parametrize(
    "data",
    [b'{"type":"content_block_delta","ind', b'{"type":"message_delta", delta'],
)
def test_an_event_that_cannot_be_read_is_an_error_and_no_crash(data: bytes) -> None:
    with pytest.raises(MalformedAnswerError):
        read([message_start(), data])


@pytest.mark.parametrize("depth", [400, 900, 990, 1500, 100_000])
def test_excessive_nesting_is_an_error_and_no_crash(depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    for data in (
        b'{"type":"content_block_start","index":0,"content_block":{"type":"odd","x":' + deep + b"}}",
        b'{"type":"odd","x":' + deep + b"}",
        b'{"type":"error","error":' + deep + b"}",
    ):
        with suppress(ProviderError):
            read([data], close=False)
        with pytest.raises(ProviderError):
            list(AnthropicDecoder().decode_body(data))
        assert isinstance(error_from_response(500, {}, data), ServerError)


def whole(**fields: Any) -> list[Delta]:
    message = {"type": "message", "id": "m", "model": "c", "role": "assistant", "stop_reason": "end_turn"} | fields
    return list(AnthropicDecoder().decode_body(json.dumps(message).encode()))


def test_an_answer_in_one_piece_gives_the_same_deltas() -> None:
    found = whole(
        content=[
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Hi", "citations": None},
            {"type": "tool_use", "id": "t", "name": "read", "input": {"a": 1}},
            {"type": "redacted_thinking", "data": "x"},
        ],
        usage={"input_tokens": 2, "output_tokens": 3},
        stop_reason="tool_use",
    )
    assert found == [
        AnswerStart("m", "c"),
        PartStart(0, "reasoning"),
        ReasoningDelta(0, "hm"),
        PartEnd(0, {"signature": "s"}),
        PartStart(1, "text"),
        TextDelta(1, "Hi"),
        PartEnd(1),
        PartStart(2, "tool", "t", "read"),
        InputDelta(2, '{"a":1}'),
        PartEnd(2),
        PartStart(3, "reasoning"),
        PartEnd(3, {"block": {"type": "redacted_thinking", "data": "x"}}),
        UsageReport(Tokens(input=2, output=3)),
        Finish("tool_use", "tool_use"),
    ]


@pytest.mark.parametrize("content", [[], None])
def test_an_empty_answer_is_an_answer(content: Any) -> None:
    assert folded(whole(content=content)).message.parts == []


def test_an_error_or_a_web_page_instead_of_an_answer_is_no_answer() -> None:
    with pytest.raises(OverloadedError):
        whole(type="error", error={"type": "overloaded_error", "message": "Overloaded"})
    for body in (b"<html>Sign in</html>", b'{"hello": 1}', b"[]", b"", b'{"content": 5}'):
        with pytest.raises(MalformedAnswerError):
            list(AnthropicDecoder().decode_body(body))


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
kinds = st.sampled_from(["text", "thinking", "tool_use", "server_tool_use", "odd"])
pieces = st.sampled_from(
    ["text_delta", "thinking_delta", "input_json_delta", "signature_delta", "citations_delta", "odd"]
)
fields = st.sampled_from(["text", "thinking", "partial_json", "signature", "citation", "id", "name", "input"])
indices = st.integers(0, 2)
events = st.one_of(
    st.builds(lambda i, k, f: start(i, k, **f), indices, kinds, st.dictionaries(fields, values, max_size=3)),
    st.builds(lambda i, k, f: piece(i, k, **f), indices, pieces, st.dictionaries(fields, values, max_size=2)),
    st.builds(lambda i, k, t: piece(i, k, text=t, thinking=t, partial_json=t), indices, pieces, st.text(max_size=3)),
    st.builds(stop, indices),
    st.just(message_start(input_tokens=1)),
    st.sampled_from(end()),
    values.map(lambda value: {"type": "message_delta", "delta": value}),
    values.map(lambda value: json.dumps(value).encode()),
)


@given(st.lists(events, max_size=12))
def test_any_input_gives_well_formed_deltas_or_a_typed_error(stream: list[Any]) -> None:
    decoder = AnthropicDecoder()
    found: list[Delta] = []
    try:
        for event in stream:
            found += decoder.feed("", event if isinstance(event, bytes) else json.dumps(event).encode())
        found += decoder.close()
        finished = True
    except ProviderError:
        finished = False
    folded(found)
    check_order(found, finished=finished)


def check_order(deltas: list[Delta], *, finished: bool) -> None:
    started: dict[int, str] = {}
    ended: set[int] = set()
    for delta in deltas:
        match delta:
            case PartStart(index, kind):
                assert index == len(started)
                started[index] = kind
            case TextDelta(index):
                assert started[index] == "text" and index not in ended
            case ReasoningDelta(index):
                assert started[index] == "reasoning" and index not in ended
            case InputDelta(index):
                assert started[index] == "tool" and index not in ended
            case PartEnd(index):
                assert index in started and index not in ended
                ended.add(index)
            case _:
                pass
    if finished:
        assert isinstance(deltas[-1], Finish)
        assert ended == set(started)
