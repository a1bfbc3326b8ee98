"""An answer of a small model is read while it is written, at any chunking."""

import json

from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.local.constrained_output import AnswerReader
from outrider.providers.local.prompt import ProtocolKeywords
from outrider.providers.provider import AnswerAssembler
from outrider.types.parts import TextPart, ToolPart
from outrider.types.request import Delta, PartEnd, PartStart, TextDelta
from outrider.types.tool_state import ToolPending
from tests.fixtures.cases import for_each

KEYWORDS = ProtocolKeywords("answer", "tool")


def deltas_of(
    text: str, size: int = 1, *, whole: bool = True, keywords: ProtocolKeywords | None = KEYWORDS
) -> list[Delta]:
    reader = AnswerReader(keywords)
    found = [delta for start in range(0, len(text), size) for delta in reader.feed(text[start : start + size])]
    return [*found, *reader.finish(complete=whole)]


def parts_of(text: str, size: int = 1, *, whole: bool = True, keywords: ProtocolKeywords | None = KEYWORDS) -> list:
    assembler = AnswerAssembler("local")
    for delta in deltas_of(text, size, whole=whole, keywords=keywords):
        assembler.add(delta)
    return assembler.list_parts()


@given(st.text(), st.integers(1, 9), st.booleans())
def test_an_answers_text_is_the_string_that_was_written(text, size, ascii_only):
    text = text.encode("utf-8", "replace").decode()
    (part,) = parts_of(json.dumps({"tool": "answer", "text": text}, ensure_ascii=ascii_only), size) or [TextPart("")]
    assert part.text == text


@given(
    st.dictionaries(st.text(max_size=5).filter(lambda name: name != "tool"), st.text() | st.integers() | st.booleans()),
    st.integers(1, 9),
)
def test_a_call_has_the_input_that_was_written_and_nothing_else(arguments, size):
    (part,) = parts_of(json.dumps({"tool": "read", **arguments}), size)
    assert (part.tool, part.state.input) == ("read", arguments)


def test_text_is_given_out_before_the_answer_is_whole():
    reader = AnswerReader(KEYWORDS)
    shown = [*reader.feed('{"tool": "answer", "text": "I have loo')]
    assert shown == [PartStart(0, "text"), TextDelta(0, "I have loo")]
    assert [*reader.feed("ked \\")] == [TextDelta(0, "ked ")]
    assert [*reader.feed('n."}')] == [TextDelta(0, "\n."), PartEnd(0)]


@given(st.integers(1, 9), st.text(alphabet='ab "\\\n', max_size=5))
def test_properties_after_the_text_become_a_list(size, purpose):
    answer = {"tool": "answer", "text": "A shop.", "src/tea.py": purpose, "go.mod": "the manifest"}
    (part,) = parts_of(json.dumps(answer), size)
    assert part.text == f"A shop.\n\n- src/tea.py: {purpose}\n- go.mod: the manifest"


def test_text_before_a_call_is_a_separate_part():
    text, called = parts_of('{"say": "I will look.", "tool": "read", "path": "a.txt"}')
    assert text.text == "I will look."
    assert (called.tool, called.state.input) == ("read", {"path": "a.txt"})


def test_a_value_that_was_asked_for_is_given_out_as_json():
    (part,) = parts_of('{"tool": "answer", "value": {"n": [1, {"deep": "}"}]}}', 3)
    assert json.loads(part.text) == {"n": [1, {"deep": "}"}]}


@for_each("cut", range(20, 40))
def test_a_call_that_was_cut_off_stays_without_an_end(cut):
    (part,) = parts_of('{"tool": "write", "content": "a long text"}'[:cut], whole=False)
    assert isinstance(part, ToolPart)
    assert isinstance(part.state, ToolPending)
    assert part.state.phase == "streaming"


def test_text_that_was_cut_off_is_preserved():
    (part,) = parts_of('{"tool": "answer", "text": "half an ans', whole=False)
    assert part.text == "half an ans"


def test_text_that_was_cut_off_before_its_call_is_preserved():
    (part,) = parts_of('{"say": "I will look.", "to', whole=False)
    assert part.text == "I will look."


def test_what_is_not_an_object_of_the_protocol_is_text():
    (part,) = parts_of("I cannot say it otherwise.")
    assert part.text == "I cannot say it otherwise."


def test_without_tools_everything_is_text():
    (part,) = parts_of('{"tool": "read"}', keywords=None)
    assert part.text == '{"tool": "read"}'


def test_a_call_without_parameters_has_an_empty_input():
    (part,) = parts_of('{"tool": "todo"}')
    assert (part.tool, part.state.input) == ("todo", {})
