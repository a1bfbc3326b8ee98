"""Tables of plain characters, on wide and on narrow terminals."""

import pytest

from outrider.cli.output import draw_bar, format_table
from outrider.presentation.formats import width_of

HEADS = ("id", "folder", "title")
ROWS = [("0fab25f1", "/somewhere/far/away/in/a/deep/folder", "a title of many words"), ("1234abcd", "/x", "漢字" * 20)]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int):
    assert all(width_of(line) <= width for line in format_table(HEADS, ROWS, width, right=(1,), narrow=(0, 2)))


def test_a_narrow_terminal_gets_the_columns_that_matter_most():
    heads, first, _ = format_table(HEADS, ROWS, 40, narrow=(0, 2))
    assert heads.split() == ["id", "title"]
    assert first.startswith("0fab25f1  a title")
    assert format_table(HEADS, ROWS, 200, narrow=(0, 2))[0].split() == ["id", "folder", "title"]


def test_numbers_stay_at_the_right_whichever_columns_are_left():
    assert format_table(("a", "b", "n"), [("x", "y", "1"), ("x", "y", "100")], 40, right=(2,), narrow=(0, 2)) == [
        "a    n",
        "x    1",
        "x  100",
    ]


def test_something_is_never_drawn_as_nothing():
    assert draw_bar(1, 1_000_000, 20) == "▏"
    assert draw_bar(0, 10, 20) == ""
    assert draw_bar(10, 10, 20) == "█" * 20
