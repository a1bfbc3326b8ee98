"""Text in reasoning tags becomes reasoning, at any chunking; other text is unchanged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.providers.provider import AnswerAssembler
from outrider.providers.stream_filters import TAG_NAMES, TextSplitFilter, ThinkTagScanner
from outrider.types.request import Finish, InputDelta, PartEnd, PartStart, ReasoningDelta, TextDelta
from tests.fixtures.cases import for_each
from tests.fixtures.soak import examples
from tests.unit.providers.stream_filters.run_filter import chunks_of, deltas_of, parts_of


def split(text: str, size: int = 10_000) -> list[tuple[object, ...]]:
    return parts_of(ThinkTagScanner, chunks_of(text, size))


@pytest.mark.parametrize("name", TAG_NAMES)
def test_reasoning_at_the_start_is_distinguished(name: str):
    assert split(f"<{name}>\nHm.\n</{name}>\n\nHello") == [("reasoning", "Hm."), ("text", "Hello")]


CASES = {
    "blanks before the tag": ("\n  <think>a</think>b", [("reasoning", "a"), ("text", "b")]),
    "upper case": ("<THINK>a</Think>b", [("reasoning", "a"), ("text", "b")]),
    "nothing but reasoning": ("<think>a</think>\n\n", [("reasoning", "a")]),
    "empty reasoning": ("<think>\n\n</think>\n\nHi", [("text", "Hi")]),
    "unclosed": ("<think>\nI was cut", [("reasoning", "I was cut")]),
    "unclosed in a tag": ("<think>\na </thi", [("reasoning", "a </thi")]),
    "cut tag at the end": ("Well,\n<thin", [("text", "Well,\n<thin")]),
    "only a cut tag": ("<thi", [("text", "<thi")]),
    "only blanks": ("\n\n", [("text", "\n\n")]),
    "indentation kept": ("<think>a</think>\n\n    x = 1", [("reasoning", "a"), ("text", "    x = 1")]),
    "space after the tag": ("<think>a</think> b", [("reasoning", "a"), ("text", "b")]),
    "a second time": (
        "<think>a</think>b\n<think>c</think>d",
        [("reasoning", "a"), ("text", "b\n"), ("reasoning", "c"), ("text", "d")],
    ),
    "one after the other": (
        "<think>a</think><thinking>b</thinking>c",
        [("reasoning", "a"), ("reasoning", "b"), ("text", "c")],
    ),
    "closed twice": ("<think>a</think>\n</think>\nb", [("reasoning", "a"), ("text", "b")]),
    "opened twice": ("<think>\n<think>\na</think>\nb", [("reasoning", "a"), ("text", "b")]),
    "opened and closed twice": ("<think><think>a</think></think>b", [("reasoning", "a"), ("text", "b")]),
    "nested": (
        "<think>a\n<think>b</think>\nc</think>d",
        [("reasoning", "a\n<think>b</think>\nc"), ("text", "d")],
    ),
    "another name inside": (
        "<think>a\n<reason>b</reason></think>c",
        [("reasoning", "a\n<reason>b</reason>"), ("text", "c")],
    ),
    "a tag named in reasoning": (
        "<think>about <think> tags</think>c",
        [("reasoning", "about <think> tags"), ("text", "c")],
    ),
    "quoted closing tag": (
        "<think>end with `</think>`.</think>c",
        [("reasoning", "end with `</think>`."), ("text", "c")],
    ),
    "in a sentence": ("The <think> tag and </think>.", [("text", "The <think> tag and </think>.")]),
    "in inline code": ("`<think>` is a tag", [("text", "`<think>` is a tag")]),
    "in a fence": (
        "So:\n```html\n<think>\nx\n</think>\n```\n",
        [("text", "So:\n```html\n<think>\nx\n</think>\n```\n")],
    ),
    "in a tilde fence": ("~~~\n<think>\n~~~", [("text", "~~~\n<think>\n~~~")]),
    "in a longer fence": ("````\n```\n<think>\n````", [("text", "````\n```\n<think>\n````")]),
    "after a fence": ("```\nx\n```\n<think>a</think>b", [("text", "```\nx\n```\n"), ("reasoning", "a"), ("text", "b")]),
    "like a tag": ("<thinker>a</thinker>", [("text", "<thinker>a</thinker>")]),
    "opening tag stripped": (
        "I ponder.\nMore.\n</think>\n\nHello",
        [("reasoning", "I ponder.\nMore."), ("text", "Hello")],
    ),
    "closing tag first": ("</think>\nHello", [("text", "Hello")]),
    "closing tag again later": (
        "<think>a</think>b\n</think>\nc",
        [("reasoning", "a"), ("text", "b\n</think>\nc")],
    ),
}


@for_each(("text", "expected"), CASES.values())
@for_each("size", [1, 2, 3, 7, 10_000])
def test_tags_count_where_they_should(text: str, expected: list[tuple[object, ...]], size: int):
    assert split(text, size) == expected


TAGS = [f"<{slash}{name}>" for name in TAG_NAMES for slash in ("", "/")]
MARKS = ["<thi", "</", "<", ">", "`", "``", "```", "```py\n", "~~~\n", "<b>", "<Think>", "</THINK>", "> "]
FRAGMENTS = ["\n", "\n\n", "\r\n", " ", "\t", "a", "Hello, ", "x < y", "é", "😀"]
PIECES = st.lists(st.sampled_from(TAGS + MARKS + FRAGMENTS), max_size=20)
TEXTS = PIECES.map("".join)


@settings(max_examples=examples(150))
@given(text=TEXTS, data=st.data())
def test_any_chunking_gives_the_same_parts(text: str, data: st.DataObject):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parts_of(ThinkTagScanner, [text])
    assert parts_of(ThinkTagScanner, chunks) == whole
    assert parts_of(ThinkTagScanner, list(text)) == whole


@given(st.text(alphabet=st.characters(exclude_characters="<"), max_size=200), st.integers(1, 5))
def test_text_without_tags_leaves_byte_for_byte(text: str, size: int):
    assert split(text, size) == ([("text", text)] if text else [])


@given(TEXTS)
def test_text_without_a_tag_at_the_start_of_a_line_is_unchanged(text: str):
    quoted = "x" + text.replace("\n", "\nx")
    assert split(quoted, 3) == [("text", quoted)]


@given(TEXTS, TEXTS)
def test_what_follows_reasoning_is_read_independently(thought: str, text: str):
    plain = "".join(character for character in thought if character not in "<>`")
    after = parts_of(ThinkTagScanner, [f"<think>{plain}</think>x{text}"])
    # Once reasoning was seen, a closing tag on its own no longer turns text into reasoning.
    assert after[: bool(plain.strip())] == [("reasoning", plain.strip())][: bool(plain.strip())]
    assert after[-1][0] in {"text", "reasoning"}
    assert str(after[bool(plain.strip())][1]).startswith("x")


def test_text_is_given_as_soon_as_it_cannot_be_a_tag():
    stage = TextSplitFilter(ThinkTagScanner)
    list(stage.feed(PartStart(0, "text")))
    given = [
        [out for out in stage.feed(TextDelta(0, chunk)) if isinstance(out, TextDelta)]
        for chunk in ("<", "t", "a", "ble>")
    ]
    assert [[delta.text for delta in group] for group in given] == [[], [], ["<ta"], ["ble>"]]


def test_reasoning_is_given_while_it_streams():
    stage = TextSplitFilter(ThinkTagScanner)
    list(stage.feed(PartStart(0, "text")))
    given = [list(stage.feed(TextDelta(0, chunk))) for chunk in ("<think>", "Let me", " see", "</", "think>")]
    assert given == [
        [],
        [PartStart(0, "reasoning"), ReasoningDelta(0, "Let me")],
        [ReasoningDelta(0, " see")],
        [],
        [PartEnd(0)],
    ]


def test_other_parts_pass_under_new_numbers():
    stage = TextSplitFilter(ThinkTagScanner)
    sent = [
        PartStart(0, "text"), TextDelta(0, "<think>a</think>b"), PartEnd(0),
        PartStart(1, "tool", "c1", "read"), InputDelta(1, "{}"), PartEnd(1), Finish("tool_use", "x"),
    ]  # fmt: skip
    given = [out for delta in sent for out in stage.feed(delta)]
    assert given[-4:] == [PartStart(2, "tool", "c1", "read"), InputDelta(2, "{}"), PartEnd(2), Finish("tool_use", "x")]


def test_private_state_of_a_text_part_goes_to_its_last_text():
    stage = TextSplitFilter(ThinkTagScanner)
    sent = [PartStart(0, "text"), TextDelta(0, "<think>a</think>"), PartEnd(0, state={"signature": "s"})]
    given = [out for delta in sent for out in stage.feed(delta)]
    assert given[-2:] == [PartStart(1, "text"), PartEnd(1, state={"signature": "s"})]


def test_text_that_turns_out_to_be_reasoning_starts_again_under_its_id():
    assembler, ids = AnswerAssembler("test"), []
    for delta in deltas_of(ThinkTagScanner, ["Hm.\n", "</think>\nHi"]):
        assembler.add(delta)
        ids.append(assembler.part_id(0))
    assert len(set(ids)) == 1
    assert [part.type for part in assembler.list_parts()] == ["reasoning", "text"]
