"""Text that may become a secret is held back until that is known; all other text is published at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.permissions.redaction.redactor import Redactor, last_words, open_context_pattern
from tests.fixtures.cases import for_each


@for_each(
    "start",
    [
        "ghp_abc",
        "sk-ant-",
        "github_pat_1",
        "glpat-x",
        "AKIA12",
        "eyJhbGciOiJI.eyJz",
        "x" * 20,
        "-----BEGIN RSA PRIVATE KEY-----\nMII b",
    ],
)
@for_each("before", ["", "use ", "use it, ", "words " * 2_000])
def test_a_key_that_has_started_is_held_back_from_its_first_letter_on(before: str, start: str):
    assert Redactor().redact_complete(before + start) == before


@pytest.mark.parametrize("text", ["password: ", "Authorization: Bearer ", "https://", "curl --user "])
def test_what_follows_the_name_of_a_secret_is_held_back_in_long_texts_too(text: str):
    before = "some words " * 1_000 + text
    assert Redactor().redact_complete(f"{before}hun") == before


@pytest.mark.parametrize(
    "text", ["", "x", "a word", "x" * 19, "a\n" * 30, "tall, long, words, in, a, row", "it ended: yes "]
)
def test_words_that_start_no_secret_are_published_at_once(text: str):
    assert Redactor().redact_complete(text) == text


def test_a_known_secret_is_held_back_if_a_text_ends_with_its_start():
    redactor = Redactor(["abcabcabd secret", "another one"])
    assert redactor.redact_complete("abcabcabcabd sec") == "abc"
    assert redactor.redact_complete("abca anot") == "abca "
    assert redactor.redact_complete("another abc") == "another abc"
    assert redactor.redact_complete("x" * 5 + " " + "word " * 99 + "abcabca") == "x" * 5 + " " + "word " * 99


def test_plain_text_is_known_to_be_plain_and_the_start_of_a_secret_is_not():
    redactor = Redactor(["correct horse battery"])
    assert redactor.is_plain("Plain words, in v1.2 of it.")
    assert redactor.is_plain("")
    for text in ("say corr", "ghp_", "x" * 20, "a://b"):
        assert not redactor.is_plain(text), text


PIECES = [
    "word", " ", "\n", "\t ", "secret", " is", "key", "`", "|", ",", ";", '"', "'", ":", "=", "=>", "\\", "://",
    "Authorization", "cookie", "basic", "bearer", "AKIA" + "Q7" * 7, "--user", "sig=", "token_", "hunter",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_the_context_of_a_secret_is_found_in_the_last_words_wherever_it_starts(pieces: list[str]):
    text = "".join(pieces)
    pattern = open_context_pattern()
    anywhere, in_last_words = pattern.search(text), pattern.search(text, last_words(text))
    assert (in_last_words and in_last_words.span("rest")) == (anywhere and anywhere.span("rest"))


def test_only_the_last_words_of_a_long_draft_are_searched_for_an_unfinished_secret():
    text = "some words " * 700
    assert 0 < len(text) - last_words(text) < 100
