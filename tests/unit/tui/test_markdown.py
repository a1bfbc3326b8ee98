"""Markdown on the screen: streamed text is rendered like complete text, and control sequences have no effect."""

import gc
import sys
from collections.abc import Callable
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.tui.commands import message_markdown
from outrider.tui.rendering.markdown import MarkdownStream, markdown_lines
from outrider.tui.theme import DARK
from outrider.types.messages import Message
from outrider.types.parts import WITHDRAWN, TextPart, ToolPart
from outrider.types.tool_state import ToolPending

DOCUMENT = """# Title

A paragraph with **bold**, *italics*, `code` and [a link](https://example.org/there).

- one
- two
  - nested
1. first
2. second

> quoted
> words

| name | what |
|---|---|
| a | a long cell that has to go on below since it does not fit |

```python
def f(x: int) -> str:
    return str(x)  # yes
```

The end.
"""


def plain(text: str, width: int = 40) -> list[str]:
    return [line.plain.rstrip() for line in markdown_lines(text, width, DARK)]


def streamed(text: str, piece: int, width: int = 40) -> list[str]:
    flow = MarkdownStream(width, DARK)
    strips = []
    for end in range(0, len(text) + piece, piece):
        strips = flow.render(text[:end])
    return [strip.text.rstrip() for strip in strips]


def test_blocks_become_lines_that_fit():
    lines = plain(DOCUMENT)
    assert lines[0] == "Title"
    assert "• one" in lines
    assert "  • nested" in lines
    assert "2. second" in lines
    assert "▎ quoted words" in lines
    assert " def f(x: int) -> str:" in lines
    assert all(len(line) <= 40 for line in lines)


def test_a_streaming_text_leaves_nothing_to_the_garbage_collector():
    text = "A **bold** word and `code`.\n\n- one\n- [two](https://example.org)\n\n```python\nx = 1\n```\n" * 3
    stream = MarkdownStream(80, DARK)
    stream.render(text[:10])
    gc.collect()
    gc.disable()
    try:
        ends = range(10, len(text), 7)
        for end in ends:
            stream.render(text[:end])
        assert gc.collect() < len(ends), (
            "a parsed text with cycles leaves dozens for each; threads of the test run, few"
        )
    finally:
        gc.enable()


def test_a_link_shows_its_target():
    assert "https://example.org/there" in "".join(plain(DOCUMENT))


@pytest.mark.parametrize("piece", [1, 7, 40, 1000])
def test_a_text_that_arrives_in_pieces_ends_as_the_whole_text(piece):
    assert streamed(DOCUMENT, piece) == plain(DOCUMENT)


@given(
    st.lists(
        st.sampled_from(
            ["# a", "- b", "  - c", "```", "~~~py", "x = 1", "", "> q", "| a |", "|---|", "word", "1. n", "\t"]
        ),
        max_size=14,
    )
)
def test_any_text_streams_to_the_same_result(rows):
    text = "\n".join(rows)
    assert streamed(text, 3) == plain(text)


def count_calls(work: Callable[[], object]) -> int:
    """The number of Python and C functions that are called: a cost that does not depend on the load of the machine."""
    count = 0

    def count_event(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count_event)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.slow
def test_a_very_long_block_of_code_is_not_made_anew_for_every_piece():
    text = "```python\n" + "value = compute(1, 'two')\n" * 3000
    flow = MarkdownStream(80, DARK)
    whole = count_calls(lambda: flow.render(text))
    pieces = count_calls(lambda: [flow.render(text + "more = 1\n" * number) for number in range(10)])
    assert pieces < whole, "ten more pieces cost as much as the whole"
    assert len(flow.render(text)) >= 3000


FUNCTION = '''def first(a):
    """Does it.

Text without indentation,

and more of it.
    """
    return [b for b in a if b != 'x']


def second(c: int) -> str:
    # a comment
    return str(c)

'''


def test_code_that_arrives_in_pieces_is_highlighted_as_a_whole():
    text = "Look:\n\n```python\n" + FUNCTION * 4
    whole = MarkdownStream(60, DARK, 2).render(text)
    flow = MarkdownStream(60, DARK, 2)
    for end in range(0, len(text), 9):
        flow.render(text[:end])
    pieces = flow.render(text)
    assert [strip.text for strip in pieces] == [strip.text for strip in whole]
    assert [list(strip) for strip in pieces] == [list(strip) for strip in whole]


def test_a_piece_of_a_code_block_costs_as_much_as_a_few_rows():
    text = "```python\n" + "def f(a):\n    x = compute(a, 'two')\n    return [y for y in x]\n\n" * 30
    flow = MarkdownStream(80, DARK)
    whole = count_calls(lambda: flow.render(text))
    flow.render(text + "m")
    assert count_calls(lambda: flow.render(text + "mo")) < whole / 8


def test_control_sequences_never_become_lines():
    text = "red \x1b[31mwords\x1b[0m and \x1b]0;title\x07 a bell\x07, `\x1b[2J`\n\n```\n\x1b[H\n```\n"
    for strip in MarkdownStream(60, DARK).render(text):
        assert "\x1b" not in strip.text
        assert "\x07" not in strip.text


def test_markup_of_the_library_is_only_text():
    assert plain("[bold red]not bold[/] and [@click=app.bell]x[/]") == [
        "[bold red]not bold[/] and",
        "[@click=app.bell]x[/]",
    ]


def test_a_table_with_more_columns_than_a_narrow_screen_has_room_for_is_reported_row_by_row():
    text = (
        "| name | a | b | c | d | cost |\n|---|---|---|---|---|---|\n| one | 1 | 2 | 3 | 4 | very dear |\n| two | 5 |"
    )
    rows = [row.plain.rstrip() for row in markdown_lines(text, 30, DARK)]
    assert rows[:2] == ["─" * 30, "name  one"]
    assert "cost  very dear" in rows
    assert "name  two" in rows
    wide = [row.plain.rstrip() for row in markdown_lines(text, 80, DARK)]
    assert wide[0].split() == ["name", "a", "b", "c", "d", "cost"]


def test_task_lists_alignment_and_links():
    text = (
        "- [x] done\n- [ ] open\n\n| name | size |\n|:--|--:|\n| a | 5 |\n| bb | 1234 |\n\nSee https://example.org/x."
    )
    lines = markdown_lines(text, 60, DARK)
    plain = [line.plain for line in lines]
    assert plain[:2] == ["☑ done", "☐ open"]
    assert "a        5" in plain
    assert "bb    1234" in plain
    links = {span.style.link for span in lines[-1].spans if not isinstance(span.style, str)}
    assert "https://example.org/x" in links
    evil = markdown_lines("[x](javascript:alert(1)) [y](https://e.org/\x1b]0;t\x07)", 60, DARK)
    links = {span.style.link for line in evil for span in line.spans if not isinstance(span.style, str)}
    assert not any(link and ("javascript" in link or "\x1b" in link) for link in links)


def test_a_text_with_thousands_of_brackets_has_no_links_and_does_not_block_the_screen():
    link = "[name](https://a.example)"
    assert "".join(plain(link, 80)) == "name (https://a.example)"
    assert "".join(plain("[" * 6_000 + link, 80)) == "[" * 6_000 + link


def test_the_text_and_the_calls_of_a_failed_attempt_are_struck_out():
    mark = {WITHDRAWN: True}
    canceled = ToolPending({"command": "make"}, phase="ready").fail("withdrawn", 2, reason="canceled")
    parts = [TextPart("Half an ans", metadata=mark), ToolPart("c", "shell", canceled, mark), TextPart("An answer")]
    lines = markdown_lines(message_markdown(Message("assistant", parts)), 80, DARK)
    struck = {
        line.plain: any(getattr(span.style, "strike", False) for span in line.spans) for line in lines if line.plain
    }
    assert struck == {"Half an ans": True, "canceled make": True, "An answer": False}
