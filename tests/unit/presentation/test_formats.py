"""Numbers and text in the one form that every front end uses."""

from decimal import Decimal

import pytest

from outrider.presentation.formats import (
    clean_line,
    clean_text,
    escape_line,
    format_age,
    format_bytes,
    format_cost,
    format_count,
    format_duration,
    format_elapsed,
    format_tokens,
    group_git_files,
    reveal_text,
    shorten,
)
from tests.fixtures.cases import for_each


@for_each(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.35, "350ms"),
        (0.9999, "1000ms"),
        (4.24, "4.2s"),
        (9.96, "10s"),
        (42.4, "42s"),
        (59.7, "1m 00s"),
        (185, "3m 05s"),
        (3599.6, "1h 00m"),
        (7650, "2h 07m"),
    ],
)
def test_a_duration_has_the_unit_that_fits(seconds: float, text: str):
    assert format_duration(seconds) == text


def test_a_running_duration_has_whole_seconds():
    assert [format_elapsed(seconds) for seconds in (0.9, 59.9, 60.9)] == ["0s", "59s", "1m 00s"]


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (None, "unknown"),
        (Decimal(0), "$0.00"),
        (Decimal("0.00000012"), "<$0.0001"),
        (Decimal("0.0042"), "$0.0042"),
        (Decimal("0.5"), "$0.5000"),
        (Decimal("1234.5"), "$1,234.50"),
    ],
)
def test_a_cost_above_zero_is_never_shown_as_zero(cost: Decimal | None, text: str):
    assert format_cost(cost) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(999, "999"), (1234, "1.2k"), (99_940, "99.9k"), (99_960, "99k"), (340_000, "340k"), (1_500_000, "1.5M")],
)
def test_tokens_are_short(number: int, text: str):
    assert format_tokens(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(999, "999 B"), (1234, "1.2 kB"), (340_000, "340 kB"), (1_500_000, "1.5 MB")]
)
def test_sizes_have_the_unit_that_fits(number: int, text: str):
    assert format_bytes(number) == text


def test_counts_and_ages_have_their_plural():
    assert [format_count(number, "file") for number in (0, 1, 1200)] == ["0 files", "1 file", "1,200 files"]
    assert [format_age(seconds) for seconds in (5, 60, 7200, 200_000)] == [
        "just now",
        "1 minute ago",
        "2 hours ago",
        "2 days ago",
    ]


def test_untrusted_text_cannot_control_a_terminal():
    assert clean_text("a\x1b[2Jb\r\nc\td") == "ab\nc   d"
    assert clean_line("one\n\ttwo\x1b]0;title\x07 three") == "one two three"


def test_text_to_approve_is_complete_with_its_control_characters_as_escapes():
    text = "a\tb\r\n\x1b]0;echo\x07 \x9dmore\u2028e\u0301 \U0001f468\u200d\U0001f469\n"
    assert reveal_text(text) == "a   b\n\\x1b]0;echo\\x07 \\x9dmore\\u2028e\u0301 \U0001f468\u200d\U0001f469\n"


def test_a_line_is_shortened_with_an_ellipsis():
    assert shorten("abc def", 7) == "abc def"
    assert shorten("abc  def ghi", 7) == "abc de…"


def test_a_line_of_a_log_shows_what_was_there_and_that_it_was_cut():
    assert escape_line("a" * 50, 10) == "a" * 9 + "…"
    assert escape_line("a" + " " * 500 + "b", 10).endswith("…")
    assert escape_line(" two\n\twords\x1b[2J\u2028! ") == "two words\\x1b[2J\\u2028!"


def test_files_of_git_are_one_entry_for_each_repository():
    paths = ["a.py", ".git/index", "web/.git/HEAD", ".git/objects/11/22", ".github/ci.yml", "x.git/y", ".gitignore"]
    shown = ["a.py", ".git (2 files)", "web/.git (1 file)", ".github/ci.yml", "x.git/y", ".gitignore"]
    assert group_git_files(paths) == shown
