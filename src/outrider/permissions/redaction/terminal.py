"""The one sanitiser for text that reaches a terminal: nothing in it can move, hide, colour, ring, type or reorder."""

import re
import unicodedata

# Whole sequences go first, so that no harmless-looking rest of them stays.
_SEQUENCES = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|(?=\x1b)|\Z)"  # titles, links, clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]*(?:\x1b\\|\x9c|(?=\x1b)|\Z)"  # device control and other strings
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # control sequences: cursor, colour, modes
    r"|\x1b[ -/]*[0-~]?"  # all other escapes
)
_KEPT = frozenset("\n\t")
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINERS = frozenset("\u200d\u200c")  # part of emoji and of some scripts; alone they are invisible, not harmful
_MOST_MARKS = 8  # combining marks on one letter; more of them climb over other lines


def for_terminal(text: str, *, keep_lines: bool = True) -> str:
    """The text without anything a terminal would act on; what is dropped visibly becomes the replacement character."""
    text = _SEQUENCES.sub("", text).replace("\r\n", "\n")
    clean = "".join(_seen(char) for char in text) if not _plain(text) else text
    clean = _without_towers(clean)
    return clean if keep_lines else clean.replace("\n", "⏎").replace("\t", " ")


def spelled_out(text: str) -> str:
    """The same for a line of a log: what a terminal would act on is written as its number, so ESC becomes `\\x1b`."""
    if text.isascii() and text.isprintable():
        return text
    return _without_towers("".join(char if _is_safe(char) else _number(char) for char in text))


def _plain(text: str) -> bool:
    return text.isascii() and text.replace("\n", "").replace("\t", "").isprintable()


def _seen(char: str) -> str:
    if char in _KEPT or _is_safe(char):
        return char
    return "" if char in {"\x07", "\x08", "\x00"} else "\ufffd"


def _is_safe(char: str) -> bool:
    return char.isprintable() or char in _JOINERS or unicodedata.category(char) not in _UNSAFE


def _number(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _without_towers(text: str) -> str:
    if text.isascii():
        return text
    kept: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.combining(char) else 0
        if marks <= _MOST_MARKS:
            kept.append(char)
    return "".join(kept)


def shows_everything(text: str) -> bool:
    """Whether people see exactly what the text holds; only then may something be approved for longer than once."""
    return for_terminal(text) == text and "\u200d" not in text and "\u200c" not in text


__all__ = ["for_terminal", "shows_everything"]
