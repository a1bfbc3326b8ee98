"""No text of a model, tool or file can control a terminal."""

from hypothesis import given
from hypothesis import strategies as st

from outrider.permissions.redaction.terminal import escape_control_characters, is_fully_visible, sanitize_for_terminal
from tests.fixtures.cases import for_each
from tests.security.payloads import PAYLOADS, harmless


def test_there_are_more_than_five_hundred_payloads():
    assert len(PAYLOADS) >= 500


@for_each("payload", PAYLOADS)
def test_no_payload_leaves_anything_a_terminal_acts_on(payload: str):
    clean = sanitize_for_terminal(f"before{payload}after")
    assert harmless(clean)
    assert clean.startswith("before")
    assert not is_fully_visible(f"before{payload}after") or payload in clean


@for_each("payload", PAYLOADS)
def test_a_line_of_a_log_spells_out_what_a_terminal_would_act_on(payload: str):
    line = escape_control_characters(f"before{payload}after")
    assert harmless(line)
    assert not set("\n\t") & set(line)
    assert line.startswith("before")
    assert line.endswith("after")


def test_what_is_spelled_out_can_be_distinguished():
    assert escape_control_characters("a\x1b[0m\u202e\U000e0041b") == "a\\x1b[0m\\u202e\\U000e0041b"
    assert escape_control_characters("grüße 👩\u200d🚀 \u00a0x") == "grüße 👩\u200d🚀 \u00a0x"


@given(st.text())
def test_any_text_becomes_harmless_and_stays_as_it_is_the_second_time(text: str):
    clean = sanitize_for_terminal(text)
    assert harmless(clean)
    assert sanitize_for_terminal(clean) == clean


@given(st.text(st.characters(categories=["L", "N", "P"])))
def test_what_people_write_is_left_alone(text: str):
    assert sanitize_for_terminal(text) == text


def test_lines_are_preserved_unless_one_line_is_wanted():
    assert sanitize_for_terminal("a\nb\tc") == "a\nb\tc"
    assert sanitize_for_terminal("a\nb\tc", keep_lines=False) == "a⏎b c"
    assert sanitize_for_terminal("a\r\nb") == "a\nb"


def test_dropped_characters_are_visible_as_such():
    assert sanitize_for_terminal("a\u202eb") == "a\ufffdb"
    assert sanitize_for_terminal("a\x07b\x08c") == "abc"


def test_a_title_sequence_is_removed_with_its_text():
    assert sanitize_for_terminal("\x1b]0;evil title\x07shown") == "shown"
    assert sanitize_for_terminal("\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\") == "link"


def test_only_text_that_is_shown_as_it_is_may_be_approved_for_longer():
    assert is_fully_visible("git commit -m 'fix'")
    assert not is_fully_visible("ls \u200d; rm x")
    assert not is_fully_visible("ls \u200c; rm x")
    assert not is_fully_visible("ls \x1b[8m; rm x")


def test_a_line_of_plain_words_stays_as_it_is():
    assert escape_control_characters("plain words, 1 + 1 = 2") == "plain words, 1 + 1 = 2"
    assert sanitize_for_terminal("plain words") == "plain words"
    assert escape_control_characters("a\tb\nc") == "a\\x09b\\x0ac"


def test_letters_carry_so_many_marks_and_no_more():
    mark = "\u0301"
    assert sanitize_for_terminal("e" + mark * 8) == "e" + mark * 8
    assert sanitize_for_terminal("e" + mark * 9) == "e" + mark * 8
    assert sanitize_for_terminal("e" + mark * 20 + "x" + mark * 8 + "é") == "e" + mark * 8 + "x" + mark * 8 + "é"
    assert escape_control_characters("e" + mark * 20) == "e" + mark * 8
