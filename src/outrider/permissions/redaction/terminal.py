"""Sanitizes text for terminals: removes escape sequences, control characters and bidirectional overrides."""

import re
import unicodedata

# Complete sequences are removed first, so that no printable remainder of one stays in the text.
_ESCAPE_SEQUENCES = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|(?=\x1b)|\Z)"  # OSC: titles, links, clipboard
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]*(?:\x1b\\|\x9c|(?=\x1b)|\Z)"  # DCS, SOS, PM and APC strings
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: cursor, colour, modes
    r"|\x1b[ -/]*[0-~]?"  # all other escapes
)
_ALLOWED_CONTROLS = frozenset("\n\t")
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINERS = frozenset("\u200d\u200c")  # emoji and some scripts need them; they are invisible but harmless
_MAX_COMBINING_MARKS = 8  # per letter; more of them overlap other lines


def sanitize_for_terminal(text: str, *, keep_lines: bool = True) -> str:
    """Returns the text without escape sequences; other unsafe characters become U+FFFD.

    With `keep_lines=False` line breaks become a visible sign, so the result stays on one line.
    """
    text = _ESCAPE_SEQUENCES.sub("", text).replace("\r\n", "\n")
    clean = "".join(_visible_char(char) for char in text) if not _is_plain_ascii(text) else text
    clean = _limit_combining_marks(clean)
    return clean if keep_lines else clean.replace("\n", "⏎").replace("\t", " ")


def remove_escape_sequences(text: str) -> str:
    """Returns the text without terminal sequences; all other characters stay, for a reader that is not a terminal."""
    return _ESCAPE_SEQUENCES.sub("", text)


def escape_control_characters(text: str) -> str:
    """Returns a log line with every unsafe character as an escape, so ESC becomes `\\x1b`."""
    if text.isascii() and text.isprintable():
        return text
    return _limit_combining_marks("".join(char if _is_safe(char) else _escape_char(char) for char in text))


def reveal_for_terminal(text: str) -> str:
    """Returns text that a user approves, with every unsafe character as an escape; line ends and tabs stay.

    Nothing is left out: a shell, an interpreter or a model reads what a terminal would take for a sequence.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(map(escape_control_characters, line.split("\t"))) for line in lines)


def _is_plain_ascii(text: str) -> bool:
    return text.isascii() and text.replace("\n", "").replace("\t", "").isprintable()


def _visible_char(char: str) -> str:
    if char in _ALLOWED_CONTROLS or _is_safe(char):
        return char
    return "" if char in {"\x07", "\x08", "\x00"} else "\ufffd"


def _is_safe(char: str) -> bool:
    return char.isprintable() or char in _JOINERS or unicodedata.category(char) not in _UNSAFE


def _escape_char(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _limit_combining_marks(text: str) -> str:
    if text.isascii():
        return text
    limited: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.combining(char) else 0
        if marks <= _MAX_COMBINING_MARKS:
            limited.append(char)
    return "".join(limited)


def is_fully_visible(text: str) -> bool:
    """Returns whether a terminal shows the text exactly as it is; only such calls may be approved permanently."""
    return sanitize_for_terminal(text) == text and "\u200d" not in text and "\u200c" not in text


__all__ = ["escape_control_characters", "is_fully_visible", "reveal_for_terminal", "sanitize_for_terminal"]
