"""Calls, however servers number, name and cut them."""

import pytest

from outrider.types.parts import ToolPart
from outrider.types.request import InputDelta, PartStart
from tests.unit.providers.openai.chat_answers import DONE, FAMILY, call, calls, chunk, stream, streamed, whole

END = (chunk(finish="tool_calls"), DONE)


def test_a_call_is_shown_while_it_is_written():
    deltas = stream(call(0, "a", "read", ""), call(0, arguments='{"p":'), call(0, arguments="1}"), *END)
    assert [delta for delta in deltas if isinstance(delta, PartStart | InputDelta)] == [
        PartStart(0, "tool", "a", "read"),
        InputDelta(0, '{"p":'),
        InputDelta(0, "1}"),
    ]


def test_parallel_calls_may_take_turns():
    pieces = [
        call(0, "a", "read", '{"p":'),
        call(1, "b", "list", '{"q":'),
        call(0, arguments="1}"),
        call(1, arguments="2}"),
    ]
    assert calls(streamed(*pieces, *END)) == [("a", "read", {"p": 1}), ("b", "list", {"q": 2})]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param([call(None, "a", "read", '{"p":1}')], [("a", {"p": 1})], id="no index"),
        pytest.param(
            [call(None, "a", "read", '{"p":1}'), call(None, "b", "read", '{"p":2}')],
            [("a", {"p": 1}), ("b", {"p": 2})],
            id="no index, two calls",
        ),
        pytest.param(
            [call(None, "a", "read", '{"p":'), call(None, "a", None, "1}")], [("a", {"p": 1})], id="no index, in pieces"
        ),
        pytest.param(
            [call(None, "a", "read", '{"p":'), call(None, None, None, "1}")],
            [("a", {"p": 1})],
            id="only the first named",
        ),
        pytest.param(
            [call(0, "a", "read", '{"p":1}'), call(0, "b", "read", '{"p":2}')],
            [("a", {"p": 1}), ("b", {"p": 2})],
            id="one index, two ids",
        ),
        pytest.param(
            [call(0, "a", "read", '{"p":'), call(0, "a", "read", "1}")], [("a", {"p": 1})], id="id and name repeated"
        ),
        pytest.param(
            [call(0, "a", "read", '{"p":'), call(0, "", "", "1}")], [("a", {"p": 1})], id="id and name emptied"
        ),
        pytest.param([call(0, "a", "read", '{"p":'), call(0, "z", None, "1}")], [("a", {"p": 1})], id="id changes"),
        pytest.param(
            [call(0, "a", None, '{"p":1}'), call(0, None, "read", "")], [("a", {"p": 1})], id="name comes late"
        ),
        pytest.param([call(0, "a", "read", {"p": 1})], [("a", {"p": 1})], id="an object"),
        pytest.param([call(0, "a", "read", "")], [("a", {})], id="no arguments"),
        pytest.param(
            [call(0, "a", "read", '{"p":1}'), call(2, "b", "read", "{}")], [("a", {"p": 1}), ("b", {})], id="a gap"
        ),
    ],
)
def test_however_they_are_numbered(pieces: list[object], expected: list[object]):
    assert [(call_id, value) for call_id, name, value in calls(streamed(*pieces, *END))] == expected


def test_whole_calls_without_ids_under_one_index_are_different_calls():
    found = calls(streamed(call(0, None, "read", '{"p":1}'), call(0, None, "read", '{"p":2}'), *END))
    assert [value for _, _, value in found] == [{"p": 1}, {"p": 2}]
    assert len({call_id for call_id, _, _ in found}) == 2


def test_two_calls_that_were_given_one_id_get_two():
    message = {"tool_calls": [{"id": "a", "index": n, "function": {"name": "read"}} for n in (0, 1)]}
    first, second = calls(whole(message, "tool_calls"))
    assert first[0] == "a" != second[0]
    assert 0 < len(second[0]) <= 40


def test_a_call_that_never_gets_a_name_can_still_be_answered():
    assert calls(streamed(call(0, "a", None, '{"p":1}'), *END)) == [("a", "unnamed", {"p": 1})]


def test_the_older_field_holds_one_call():
    pieces = [{"function_call": {"name": "read", "arguments": ""}}, {"function_call": {"arguments": '{"p":1}'}}]
    [(call_id, name, value)] = calls(streamed(*map(chunk, pieces), chunk(finish="function_call"), DONE))
    assert (name, value) == ("read", {"p": 1})
    assert call_id


def test_an_empty_older_field_is_no_call():
    found = whole({"content": "4", "function_call": {"name": "", "arguments": ""}}, "")
    assert (calls(found), found.finish) == ([], "stop")


def test_an_empty_shape_of_the_other_kind_does_not_hide_a_call():
    both = {"id": "a", "custom": {"name": "", "input": ""}, "function": {"name": "read", "arguments": '{"p":1}'}}
    assert calls(whole({"tool_calls": [both]}, "tool_calls")) == [("a", "read", {"p": 1})]


def test_free_text_becomes_an_object_while_it_streams():
    pieces = [
        {"index": 0, "id": "a", "type": "custom", "custom": {"name": "sql", "input": ""}},
        {"index": 0, "custom": {"input": 'select "x'}},
        {"index": 0, "custom": {"input": '"\nfrom t'}},
    ]
    found = streamed(*(chunk({"tool_calls": [piece]}) for piece in pieces), *END)
    assert calls(found) == [("a", "sql", {"input": 'select "x"\nfrom t'})]
    [part] = found.message.get_parts_by_type(ToolPart)
    assert part.metadata[FAMILY] == {"custom": True}


def test_private_state_of_a_call_is_preserved():
    signed = {"google": {"thought_signature": "s"}}
    piece = {"index": 0, "id": "a", "function": {"name": "read", "arguments": "{}"}, "extra_content": signed}
    [part] = streamed(chunk({"tool_calls": [piece]}), *END).message.get_parts_by_type(ToolPart)
    assert part.metadata[FAMILY] == {"extra_content": signed}
