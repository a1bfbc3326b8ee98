"""What terminals send, as messages: pastes in pieces, replies to other programs, Escape with vi keys."""

import time

import pytest
from textual import constants, events

from outrider.tui.driver import InputParser, PasteSplitter

PASTE = "\x1b[200~one\rtwo\x1b[A\x1b[201~"


def shown(messages: list[events.Message]) -> list[str]:
    return [message.text if isinstance(message, events.Paste) else message.key for message in messages]


def feed(parser: InputParser, *pieces: str) -> list[str]:
    return shown([message for piece in pieces for message in parser.feed(piece)])


@pytest.mark.parametrize("cut", range(1, len(PASTE)))
def test_a_paste_that_arrives_in_two_pieces_is_one_paste(cut: int):
    assert feed(InputParser(), f"a{PASTE[:cut]}", f"{PASTE[cut:]}b") == ["a", "one\rtwo\x1b[A", "b"]


def test_a_key_whose_sequence_begins_like_a_paste_is_a_key():
    assert feed(InputParser(), "\x1b[2", "~") == ["insert"]
    assert feed(InputParser(), "\x1b[20", "~") == ["f9"]


def test_control_c_ends_a_paste_whose_end_was_lost():
    parser = InputParser()
    assert feed(parser, "\x1b[200~lost", " connection", "\x1b[A") == []
    assert feed(parser, "\x03") == ["lost connection\x1b[A"]
    assert feed(parser, "x", "\x03") == ["x", "ctrl+c"]


def test_a_large_paste_is_not_joined_again_for_each_piece():
    """A paste of 40 MB in pieces of a terminal's buffer would take minutes."""
    splitter = PasteSplitter()
    assert list(splitter.split("\x1b[200~")) == []
    assert [piece for _ in range(10_000) for piece in splitter.split("x" * 4096)] == []
    ((content, pasted),) = splitter.split("\x1b[201~")
    assert pasted
    assert len(content) == 10_000 * 4096


@pytest.mark.parametrize(
    "reply",
    [
        "\x1b]11;rgb:ffff/ffff/ffff\x07",
        "\x1b]10;rgb:0000/0000/0000\x1b\\",
        "\x1bP>|XTerm(390)\x1b\\",
        "\x1b[?64;1;2c",
        "\x1b[>41;390;0c",
    ],
)
def test_replies_to_another_program_are_not_keys(reply: str):
    assert feed(InputParser(), f"a{reply}b", reply, "c") == ["a", "b", "c"]
    (paste,) = InputParser().feed(f"\x1b[200~{reply}\x1b[201~")
    assert isinstance(paste, events.Paste)
    assert paste.text == reply


@pytest.mark.parametrize("key", ["b", "0", "$", "d", "O", "A"])
def test_escape_and_a_key_at_once_are_two_keys_with_vi_keys(key: str):
    parser = InputParser()
    parser.separates_escape = True
    (name,) = feed(InputParser(), key)
    assert feed(parser, f"\x1b{key}")[:2] == ["escape", name]
    assert feed(parser, "\x1b", key) == ["escape", name]
    assert feed(parser, "\x1b[D", "\x1bOA", "\x1b[1;5C") == ["left", "up", "ctrl+right"]
    assert feed(parser, "\x1b", "[D") == ["left"]


def test_escape_alone_is_a_key_after_a_moment_with_vi_keys():
    parser = InputParser()
    parser.separates_escape = True
    assert feed(parser, "x\x1b") == ["x"]
    assert parser.timeout is not None
    deadline = time.monotonic() + 60 + constants.ESCAPE_DELAY
    keys: list[events.Message] = []
    while not keys and time.monotonic() < deadline:
        keys = list(parser.tick())
    assert shown(keys) == ["escape"]
    assert parser.timeout is None


def test_invisible_characters_that_are_typed_are_text():
    assert feed(InputParser(), "می\u200cروم") == ["م", "ی", "\u200c", "ر", "و", "م"]
    assert feed(InputParser(), "👨\u200d👩") == ["man", "\u200d", "woman"]
