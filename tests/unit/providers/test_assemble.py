"""The fold of deltas: at any moment it holds what has arrived, and damaged input never kills an answer."""

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import FilePart, ReasoningPart, TextPart, Tokens, ToolPart
from outrider.providers.provider import AnswerAssembler, assemble_answer
from outrider.providers.response_json import parse_tool_input
from outrider.providers.stream_filters import apply_filter, create_think_filter
from outrider.types.events import ModelProgressEvent
from outrider.types.request import (
    AnswerStart,
    Delta,
    Finish,
    InputDelta,
    PartEnd,
    PartStart,
    Prompt,
    ReasoningDelta,
    RemoteEvent,
    Request,
    Retry,
    TextDelta,
    UsageReport,
)
from tests.fixtures.cases import for_each
from tests.fixtures.strategies import objects


def test_deltas_become_the_parts_of_an_answer_in_order():
    answer = assemble_answer(
        [
            AnswerStart("resp_1", "model-1"),
            PartStart(0, "reasoning"),
            ReasoningDelta(0, "let me "),
            ReasoningDelta(0, "see"),
            PartEnd(0, {"signature": "s"}),
            PartStart(1, "text"),
            TextDelta(1, "I read "),
            PartStart(2, "tool", "call_1", "read"),
            InputDelta(2, '{"path":'),
            TextDelta(1, "it."),
            InputDelta(2, ' "a"}'),
            PartEnd(1, {"signature": "t"}),
            PartEnd(2),
            PartStart(3, "file"),
            PartEnd(3, mime="image/png", url="data:image/png;base64,QUJD"),
            UsageReport(Tokens(1)),
            UsageReport(Tokens(1, 2)),
            Finish("tool_use", "tool_calls"),
        ],
        "fam",
    )
    reasoning, text, call, file = answer.message.parts
    assert isinstance(reasoning, ReasoningPart)
    assert (reasoning.text, reasoning.provider_state) == ("let me see", {"family": "fam", "signature": "s"})
    assert isinstance(text, TextPart)
    assert (text.text, text.metadata) == ("I read it.", {"fam": {"signature": "t"}})
    assert isinstance(call, ToolPart)
    assert (call.call_id, call.tool, call.state.input) == ("call_1", "read", {"path": "a"})
    assert call.display_status == "generated"
    assert isinstance(file, FilePart)
    assert (answer.finish, answer.finish_raw, answer.tokens) == ("tool_use", "tool_calls", Tokens(1, 2))
    assert answer.message.metadata["response_id"] == "resp_1"


def test_what_has_arrived_can_be_read_at_any_moment_under_one_id():
    assembler = AnswerAssembler("fam")
    assembler.add(PartStart(0, "tool", "c", "write"))
    assembler.add(InputDelta(0, '{"a'))
    half = assembler.get_part(0)
    assert isinstance(half, ToolPart)
    assert half.display_status == "generating"
    assert half.state.raw == '{"a'  # pyright: ignore[reportAttributeAccessIssue]
    assembler.add(InputDelta(0, '": 1}'))
    assembler.add(PartEnd(0))
    whole = assembler.get_part(0)
    assert whole.id == half.id == assembler.part_id(0)
    assert isinstance(whole, ToolPart)
    assert whole.state.input == {"a": 1}


def test_an_empty_reasoning_part_is_left_out_and_one_with_a_signature_is_stored():
    deltas = [PartStart(0, "reasoning"), PartEnd(0), PartStart(1, "reasoning"), PartEnd(1, {"signature": "s"})]
    assert len(assemble_answer(deltas, "fam").message.parts) == 1


@pytest.mark.parametrize(
    ("raw", "value"),
    [("", {}), ("  ", {}), ("{}", {}), ("null", {}), ('{"a": 1}', {"a": 1}), ('"{\\"a\\": 1}"', {"a": 1}),
     ('{"a": [' + "{}," * 200 + "{}]}", {"a": [{}] * 201}), ('{"a": "' + "[" * 200 + '"}', {"a": "[" * 200})],
)  # fmt: skip
def test_input_that_can_be_understood_is(raw, value):
    assert parse_tool_input(raw) == (value, None)


@for_each(
    ("raw", "message"),
    [
        ('{"path": "a', "not valid JSON"),
        ("{'path': 'a'}", "not valid JSON"),
        ('{"a": 1}{"a": 2}', "exactly one JSON object"),
        ('{"a": 1} and more', "The surplus begins: and more"),
        ("[1, 2]", "got list"),
        ("42", "got int"),
        ('"text"', "got a string"),
        ("[" * 100_000, "not valid JSON"),
        ("\ud800", "not valid JSON"),
        ('{"a": NaN}', "not valid JSON"),
        ('{"a": 1e999}', "not valid JSON"),
        ('{"a": "\\ud800"}', "not valid JSON"),
        ('{"a":' * 400 + "1" + "}" * 400, "nested deeper"),
        ('{"a":' + "[" * 400 + "]" * 400 + "}", "nested deeper"),
    ],
)
def test_damaged_input_becomes_a_message_that_the_model_can_act_on(raw, message):
    value, problem = parse_tool_input(raw)
    assert value == {}
    assert problem is not None
    assert message in problem
    assert "Nothing was run" in problem
    assert len(problem) < 1000


def test_a_call_with_damaged_input_is_preserved_with_its_raw_text_and_the_problem():
    answer = assemble_answer(
        [PartStart(0, "tool", "c", "read"), InputDelta(0, '{"pa'), PartEnd(0), Finish("length")], "fam"
    )
    (call,) = answer.message.parts
    assert call.state.raw == '{"pa'
    assert "not valid JSON" in call.metadata["input_error"]


@given(objects, st.integers(1, 9))
def test_any_object_is_read_back_however_it_was_cut(value, size):
    raw = json.dumps(value)
    pieces = [InputDelta(0, raw[start : start + size]) for start in range(0, len(raw), size)]
    (call,) = assemble_answer([PartStart(0, "tool", "c", "t"), *pieces, PartEnd(0)], "fam").message.parts
    assert call.state.input == value


def test_every_kind_of_delta_is_read():
    deltas = [
        AnswerStart("resp_1"),
        RemoteEvent(ModelProgressEvent(stage="loading")),
        PartStart(0, "text"),
        TextDelta(0, "Hello"),
        PartEnd(0),
        Retry(1, 10, "overloaded"),
        PartStart(0, "reasoning"),
        ReasoningDelta(0, "let me see"),
        PartEnd(0),
        PartStart(1, "tool", "c", "read"),
        InputDelta(1, "{}"),
        PartEnd(1),
        UsageReport(Tokens(1)),
        Finish("tool_use"),
    ]
    assert {type(delta) for delta in deltas} == set(get_args(Delta))
    splitter = create_think_filter(Request("m", Prompt()))
    for received in (deltas, [*apply_filter(splitter, deltas), *splitter.close()]):
        assert [type(part) for part in assemble_answer(received, "fam").message.parts] == [ReasoningPart, ToolPart]


def test_parts_that_are_known_are_not_given_again():
    assembler = AnswerAssembler("fam")
    for delta in (PartStart(0, "text"), TextDelta(0, "a"), PartEnd(0), PartStart(1, "text"), TextDelta(1, "b")):
        assembler.add(delta)
    first, second = assembler.list_parts()
    assert assembler.list_parts(exclude_ids={first.id}) == [second]
