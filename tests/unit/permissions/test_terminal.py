"""Nothing that a model, a tool or a file says can make a terminal act."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.permissions.texts.terminal import for_terminal, shows_everything

ESC, BEL, ST, CSI, OSC, DCS = "\x1b", "\x07", "\x1b\\", "\x9b", "\x9d", "\x90"
COMMANDS = [
    "2J",
    "H",
    "31m",
    "?25l",
    "?1049h",
    "6n",
    "c",
    ">c",
    "0;0r",
    "1;31;5m",
    "?2004h",
    "18t",
    "21t",
    "5i",
    "3J",
    "1A",
    "2K",
    "999D",
    "8m",
    "38;2;0;0;0m",
]
STRINGS = [
    "0;title",
    "52;c;dG91Y2g=",
    "8;;http://evil.example",
    "7;file://x",
    "1337;File=inline=1:AAAA",
    "4;1;rgb:0/0/0",
    "9;notify",
    "777;notify;a;b",
    "133;A",
    "10;?",
    "104",
    "5522;x",
]
SINGLES = ["c", "7", "8", "D", "E", "M", "Z", "=", ">", "(0", "#8", " F", "n", "o", "|", "}", "~"]
HIDDEN = [
    "\u202e",
    "\u202d",
    "\u2066",
    "\u2067",
    "\u2068",
    "\u2069",
    "\u200e",
    "\u200f",
    "\u200b",
    "\u2060",
    "\ufeff",
    "\u00ad",
    "\u2028",
    "\u2029",
    "\U000e0041",
    "\ue000",
    "\u061c",
    "\u180e",
]


def payloads() -> list[str]:
    found = [introducer + command for introducer in (f"{ESC}[", CSI) for command in COMMANDS]
    for text in STRINGS:
        for introducer in (f"{ESC}]", OSC):
            found += [f"{introducer}{text}{end}shown" for end in (BEL, ST, "\x9c", "")]
    for introducer in (f"{ESC}P", DCS, f"{ESC}_", f"{ESC}^", f"{ESC}X", "\x98", "\x9e", "\x9f"):
        found += [
            f"{introducer}{body}{end}x"
            for body in ("+q544e", "$qm", "tmux;\x1b\x1b]0;x\x07")
            for end in (ST, "\x9c", "")
        ]
    found += [ESC + single for single in SINGLES]
    found += [chr(code) for code in (*range(32), *range(127, 160))]
    found += [f"a{chr(code)}b{chr(code)}" for code in (*range(32), *range(127, 160))]
    found += [f"ls {mark}; rm -rf x {mark}" for mark in HIDDEN] + [f"{ESC}{mark}[31m" for mark in HIDDEN]
    nested = [
        f"{ESC}{ESC}[31m",
        f"{ESC}[{ESC}[31m",
        f"{ESC}]0;{ESC}[31m{BEL}",
        f"{ESC}[31{ESC}]0;x{BEL}m",
        f"{CSI}{CSI}1m",
    ]
    found += nested + [text * 3 for text in nested] + [f"x\r{text}" for text in nested]
    found += [f"safe{ESC}[{n}D{'x' * n}" for n in range(1, 60)] + [f"{ESC}[{n};{n}H" for n in range(60)]
    found += ["e" + "\u0301" * count for count in range(9, 40)]
    return list(dict.fromkeys(found))


PAYLOADS = payloads()


def harmless(text: str) -> bool:
    return all(
        char in "\n\t\u200d\u200c" or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
        for char in text
    )


def test_there_are_more_than_five_hundred_payloads():
    assert len(PAYLOADS) >= 500


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_payload_leaves_anything_a_terminal_acts_on(payload: str):
    clean = for_terminal(f"before{payload}after")
    assert harmless(clean)
    assert clean.startswith("before")
    assert not shows_everything(f"before{payload}after") or payload in clean


@given(st.text())
def test_any_text_becomes_harmless_and_stays_as_it_is_the_second_time(text: str):
    clean = for_terminal(text)
    assert harmless(clean)
    assert for_terminal(clean) == clean


@given(st.text(st.characters(categories=["L", "N", "P"])))
def test_what_people_write_is_left_alone(text: str):
    assert for_terminal(text) == text


def test_lines_are_kept_unless_one_line_is_wanted():
    assert for_terminal("a\nb\tc") == "a\nb\tc"
    assert for_terminal("a\nb\tc", keep_lines=False) == "a⏎b c"
    assert for_terminal("a\r\nb") == "a\nb"


def test_dropped_characters_are_visible_as_such():
    assert for_terminal("a\u202eb") == "a\ufffdb"
    assert for_terminal("a\x07b\x08c") == "abc"


def test_a_title_never_leaves_its_text_behind():
    assert for_terminal("\x1b]0;evil title\x07shown") == "shown"
    assert for_terminal("\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\") == "link"


def test_only_text_that_is_shown_as_it_is_may_be_approved_for_longer():
    assert shows_everything("git commit -m 'fix'")
    assert not shows_everything("ls \u200d; rm x")
    assert not shows_everything("ls \u200c; rm x")
    assert not shows_everything("ls \x1b[8m; rm x")
