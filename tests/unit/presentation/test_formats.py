"""Numbers and text in the one form that every front end uses."""

import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

from outrider.presentation.diffs import group_git_files
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
    format_iso_time,
    format_limit,
    format_milliseconds,
    format_reached_limit,
    format_time,
    format_tokens,
    format_utc_time,
    reveal_text,
    shorten,
)
from tests.fixtures.cases import for_each

# The page has the same forms in web/src/formats.ts; its test reads these cases too.
CASES = json.loads((Path(__file__).parents[3] / "web" / "test" / "format-cases.json").read_text())


@for_each(("milliseconds", "text"), CASES["duration"])
def test_a_duration_has_the_unit_that_fits(milliseconds: int, text: str):
    assert format_milliseconds(milliseconds) == text


def test_a_duration_below_a_second_has_whole_milliseconds():
    assert format_duration(0.9999) == "1000ms"


@for_each(("seconds", "text"), CASES["elapsed"])
def test_a_running_duration_has_whole_seconds(seconds: float, text: str):
    assert format_elapsed(seconds) == text


@for_each(("cost", "text"), CASES["cost"])
def test_a_cost_above_zero_is_never_shown_as_zero(cost: str, text: str):
    assert format_cost(Decimal(cost)) == text


def test_a_model_without_a_price_has_an_unknown_cost():
    assert format_cost(None) == "unknown"


@for_each(("number", "text"), CASES["tokens"])
def test_tokens_are_short(number: int, text: str):
    assert format_tokens(number) == text


@for_each(("number", "text"), CASES["bytes"])
def test_sizes_have_the_unit_that_fits(number: int, text: str):
    assert format_bytes(number) == text


AT = 1_700_000_000_123  # 2023-11-14 22:13:20 UTC


def test_a_time_is_shown_in_a_zone_and_files_have_utc():
    assert format_time(AT, zone=ZoneInfo("Asia/Tokyo")) == "2023-11-15 07:13"
    assert format_time(AT) == datetime.fromtimestamp(AT / 1000).strftime("%Y-%m-%d %H:%M")
    assert format_utc_time(AT) == "2023-11-14 22:13 UTC"
    assert format_utc_time(AT, "%H:%M:%S") == "22:13:20"
    assert format_iso_time(AT) == "2023-11-14T22:13:20+00:00"
    assert format_iso_time(AT, "milliseconds") == "2023-11-14T22:13:20.123+00:00"


def test_a_time_that_no_calendar_has_is_empty():
    assert [form(10**18) for form in (format_time, format_utc_time, format_iso_time)] == ["", "", ""]


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


@for_each(
    ("limit", "maximum", "shown"),
    [
        ("cost", "0.5", "the cost limit of $0.5000"),
        ("cost", "12", "the cost limit of $12.00"),
        ("seconds", "3600", "the time limit of 1h 00m"),
        ("seconds", "90.0", "the time limit of 1m 30s"),
        ("tokens", "1200000", "the limit of 1.2M tokens"),
        ("turns", "3", "the limit of 3 turns"),
        ("cost", "None", "the limit of None cost"),
    ],
)
def test_a_limit_has_the_unit_of_its_kind(limit: str, maximum: str, shown: str):
    assert format_limit(limit, maximum) == shown


def test_a_reached_limit_names_the_amount_or_the_reason():
    assert format_reached_limit("cost", "0.5", "0.512") == "the cost limit of $0.5000 is reached ($0.5120)"
    assert format_reached_limit("cost", "5", "not known") == "the cost limit of $5.00 is reached (not known)"
    assert format_reached_limit("turns", "3", "3") == "the limit of 3 turns is reached"
