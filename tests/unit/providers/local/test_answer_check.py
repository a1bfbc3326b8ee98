"""Sentences with names that a small model has not seen are left out of its answer."""

import pytest

from outrider.providers.local.constrained_output import FileNameCheck, find_names
from outrider.providers.local.prompt import LOCAL_TOOL_PROMPT

SEEN = "class IniConfig reads example.ini; def get_value(self): pass. Run `tox -e py`."


def checked(*pieces: str, longest: int = 2_000) -> str:
    check = FileNameCheck(SEEN, lambda name: name.rstrip("/") in ("README.rst", "src"), longest)
    return "".join(check.feed(piece) for piece in pieces) + check.finish()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("It reads src/app.py and config.toml.", ["src/app.py", "config.toml"]),
        ("Call `main` or parse_line, or start().", ["main", "parse_line", "start"]),
        ("The class IniConfig and getValue.", ["IniConfig", "getValue"]),
        ("Tests are in 'testing/' and \"setup.py\".", ["testing/", "setup.py"]),
        ("See https://example.org/a_b/c.html, e.g. version 2.1.", []),
        ("Plain words, Python 3.12 and numbers 1/2.", []),
    ],
)
def test_names_in_a_sentence(text, names):
    assert sorted(find_names(text)) == sorted(names)


def test_sentences_with_known_names_pass_unchanged():
    text = "The class IniConfig reads README.rst. It has get_value().\n\n- `tox`\n- src/\n"
    assert checked(text) == text
    assert checked(*text) == text, "one character at a time"


def test_a_sentence_with_an_invented_name_is_left_out_and_the_user_is_informed():
    answer = checked("It reads example.ini. The server is in app.py. Ask `Flask` for more.")
    assert answer == (
        "It reads example.ini.\n\n(I left out 2 statements with names that are in none of the files that I read.)"
    )


def test_an_answer_of_invented_names_only_becomes_a_refusal():
    assert checked("Run `python setup.py test`.\nSee setup.py.") == (
        "I do not know: the files that I read do not answer this."
    )


def test_a_sentence_is_given_once():
    assert checked("It is a parser for files. It is a parser for files. It is small.") == (
        "It is a parser for files. It is small."
    )


def test_a_long_answer_ends_at_a_sentence():
    assert checked("One two three. " * 3, longest=20) == "One two three. One two three."
    assert checked("```\ncode here\nmore\nand more\n", longest=8).endswith("\n```")


def test_a_command_of_the_examples_is_left_out_unless_the_workspace_has_it():
    words = LOCAL_TOOL_PROMPT.list_example_words()
    assert "pytest" in words
    for seen, expected in (
        ("npm test", "Use `npm test`."),
        ("npm test, or Pytest: python -m pytest -q", "Use `npm test`. Or run python -m pytest -q."),
    ):
        check = FileNameCheck(f"{seen}\npython npm", lambda _: False, 1000, words)
        answer = check.feed("Use `npm test`. Or run python -m pytest -q.") + check.finish()
        assert answer.startswith(expected)
        assert ("pytest" in answer) == ("pytest" in expected)


@pytest.mark.parametrize(
    "text",
    [
        "Run `tox -e py`.",
        "Run:\n\n```sh\n$ tox -e py\n```",
        "It is small: run `tox`.",
        "You can make all of it, go to the end, and run it.",
    ],
)
def test_a_command_that_the_model_has_read_passes(text):
    assert checked(text) == text


def test_a_command_passes_in_the_form_of_a_list():
    check = FileNameCheck('commands = [["tox", "run", "-e", "py"]]', lambda _: False, 1000)
    assert check.feed("Use `tox run -e py`.") + check.finish() == "Use `tox run -e py`."


@pytest.mark.parametrize(
    "text",
    [
        "It is small. Run `make test` now.",
        "It is small. Run make test now.",
        "It is small. Run this:\n\n```sh\nnpm install --save\n```",
        "It is small. Run this:\n\n```sh\nnpm test\nnpm run lint\n```\n",
        "It is small. `pip install outrider` installs it.",
    ],
)
def test_an_invented_command_is_left_out_with_what_introduces_it(text):
    assert checked(text).startswith("It is small.\n\n(I left out ")


def test_the_lines_of_a_code_block_that_are_known_pass():
    answer = checked("Run:\n\n```sh\ntox -e py\nmake test\n```\nThat is all.")
    assert answer.startswith("Run:\n\n```sh\ntox -e py\n```\nThat is all.\n\n(I left out a statement")


def test_an_invented_address_is_left_out():
    check = FileNameCheck("See https://tea.org/docs for more.", lambda _: False, 1000)
    answer = check.feed("It is at https://tea.org/docs. The code is at https://example.org/tea. ") + check.finish()
    assert answer.startswith("It is at https://tea.org/docs.\n\n(I left out a statement")


def test_an_answer_that_was_stopped_ends_with_its_last_complete_sentence():
    check = FileNameCheck(SEEN, lambda _: False, 1000)
    passed = check.feed("It reads example.ini. It is at")
    check.drop_rest()
    assert passed + check.finish() == "It reads example.ini."
    check = FileNameCheck(SEEN, lambda _: False, 1000)
    check.feed("and so on and so on")
    check.drop_rest()
    assert check.finish().startswith("I do not know")


def test_an_answer_ends_after_a_few_sentences_but_lists_and_code_do_not_count():
    text = "One is here. Two:\n\n- a. b.\n- c.\n1. d.\n2. e.\n```\nf.\n```\nThree. Four. Five."
    check = FileNameCheck(SEEN, lambda _: False, 1000, max_sentences=3)
    assert check.feed(text) + check.finish() == text.removesuffix(" Five.")


def test_a_list_of_files_follows_a_long_introduction():
    items = "\n\n- README.rst: It is read. It is short.\n- src: Code is here."
    check = FileNameCheck(SEEN, lambda name: name in ("README.rst", "src"), 1000, max_sentences=2, has_items=True)
    text = f"One is here. Two is too. Three is left out. Four:{items}"
    assert "".join(map(check.feed, text)) + check.finish() == f"One is here. Two is too.{items}"


@pytest.mark.parametrize("last", ["Code is here.", "It is read by IniConfig."])
def test_a_list_item_without_a_description_is_left_out(last):
    check = FileNameCheck(SEEN, lambda name: name in ("README.rst", "src", "tox.ini"), 1000, has_items=True)
    text = f"It is read by IniConfig.\n\n- README.rst: It is read by IniConfig.\n- tox.ini: It runs.\n- src: {last}"
    end = "\n- src: Code is here." if last == "Code is here." else ""
    answer = "".join(map(check.feed, text)) + check.finish()
    assert answer == f"It is read by IniConfig.\n\n- tox.ini: It runs.{end}"


@pytest.mark.parametrize("bad", ["It reads example.ini again. ", "The server is in app.py now. "])
def test_an_answer_ends_when_too_many_sentences_are_dropped(bad):
    check = FileNameCheck(SEEN, lambda _: False, 1000)
    check.feed("It reads example.ini again. " + bad * 3)
    assert not check.is_full
    check.feed(bad * 2)
    assert check.is_full
