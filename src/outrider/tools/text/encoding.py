"""Detects text encodings such that decoding and encoding returns the same bytes; handles line endings."""

import codecs
import re
from bisect import bisect_left

import msgspec

from outrider._lazy import lazy_pattern

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16 LE, whose BOM is a prefix of this one
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SAMPLE_SIZE = 64 * 1024
_ESCAPED_BYTES = lazy_pattern("[\udc80-\udcff]")
_CONTROL_BYTES = lazy_pattern(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
_CONTROL_CHARACTERS = lazy_pattern(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
_CP1252_BYTES = lazy_pattern(rb"[\x80-\x9f]")


class TextEncoding(msgspec.Struct, frozen=True):
    """A text encoding. `errors` is surrogateescape for UTF-8 with some invalid bytes, so that an edit
    preserves them."""

    name: str = "utf-8"
    bom: bytes = b""
    errors: str = "strict"

    def decode(self, raw: bytes) -> str:
        return raw[len(self.bom) :].decode(self.name, self.errors)

    def encode(self, text: str) -> bytes:
        """Encodes with the byte order mark. Raises UnicodeEncodeError for a character that the encoding lacks."""
        return self.bom + text.encode(self.name, self.errors)

    @property
    def label(self) -> str:
        return f"{self.name} with BOM" if self.bom else self.name


def detect_encoding(raw: bytes, *, complete: bool = True) -> TextEncoding | None:
    """Returns the encoding, or None for binary data. `complete` is False if `raw` is only the start of a file."""
    for bom, name in _BOMS:
        if raw.startswith(bom) and _is_decodable(raw[len(bom) :], name, complete):
            return TextEncoding(name, bom)
    if b"\0" in raw[:_SAMPLE_SIZE]:
        return _detect_bare_utf16(raw, complete)
    if _is_decodable(raw, "utf-8", complete):
        return None if b"\0" in raw else TextEncoding()
    return _detect_eight_bit(raw)


def displayable_text(text: str) -> str:
    """Replaces escaped invalid bytes with U+FFFD, so that the text can be sent to a model."""
    return _ESCAPED_BYTES.sub("\ufffd", text)


def _is_decodable(raw: bytes, name: str, complete: bool) -> bool:  # noqa: FBT001
    try:
        codecs.getincrementaldecoder(name)().decode(raw, final=complete)
    except UnicodeDecodeError:
        return False
    return True


def _detect_bare_utf16(raw: bytes, complete: bool) -> TextEncoding | None:  # noqa: FBT001
    """Detects UTF-16 without a BOM: Latin text has a zero in every other byte."""
    sample = raw[:_SAMPLE_SIZE]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    name = "utf-16-le" if odd > even else "utf-16-be"
    few, many = sorted((even, odd))
    letters = many > len(sample) * 0.35 and few == 0
    if not letters or not _is_decodable(raw, name, complete) or _CONTROL_CHARACTERS.search(raw.decode(name, "replace")):
        return None
    return TextEncoding(name)


def _detect_eight_bit(raw: bytes) -> TextEncoding | None:
    """Returns UTF-8 with surrogateescape if most non-ASCII characters are valid UTF-8, else cp1252 or latin-1."""
    sample = raw[:_SAMPLE_SIZE]
    if b"\0" in raw or len(_CONTROL_BYTES.findall(sample)) > len(sample) * 0.02:
        return None
    text = sample.decode("utf-8", "surrogateescape")
    wrong = len(_ESCAPED_BYTES.findall(text))
    right = sum(not char.isascii() for char in text) - wrong if wrong < len(text) else 0
    if right > wrong or not wrong:
        return TextEncoding("utf-8", errors="surrogateescape")
    return TextEncoding(
        "cp1252" if _CP1252_BYTES.search(raw) and _is_decodable(raw, "cp1252", complete=True) else "latin-1"
    )


_LINE_BREAK = lazy_pattern(r"\r\n|\n|\r")


class NormalizedText:
    """A text with normalized line endings that maps indexes to the original text."""

    def __init__(self, original: str) -> None:
        self.original = original
        self.carriage_returns = "\r" in original and "\n" not in original
        self._pairs: list[int] = []
        if self.carriage_returns:
            self.text = original.replace("\r", "\n")
        elif "\r\n" in original:
            self.text = original.replace("\r\n", "\n")
            positions = (match.start() for match in re.finditer("\r\n", original))
            self._pairs = [position - number for number, position in enumerate(positions)]
        else:
            self.text = original

    def original_index(self, index: int) -> int:
        """Returns the index in the original text."""
        return index + bisect_left(self._pairs, index)

    def endings_in(self, start: int, end: int) -> set[str]:
        """Returns the kinds of line endings in a range of the original."""
        return set(_LINE_BREAK.findall(self.original, start, end)) if self._pairs else {"\n"}

    def ending_near(self, start: int, end: int) -> str:
        """Returns the line ending in a range of the original, else the next one, else the previous one."""
        if not self._pairs:
            return "\r" if self.carriage_returns else "\n"
        inside = _LINE_BREAK.findall(self.original, start, end)
        if inside:
            return inside[-1]
        following = _LINE_BREAK.search(self.original, end)
        if following:
            return following.group()
        return "\r\n" if self.original.rfind("\r\n", 0, start) + 1 == self.original.rfind("\n", 0, start) else "\n"


def with_ending(text: str, ending: str) -> str:
    return text if ending == "\n" else text.replace("\r\n", "\n").replace("\n", ending)


def split_lines(text: str) -> list[str]:
    """Splits into lines with their endings. A lone carriage return ends a line only if the text has no line feeds."""
    mark = "\r" if "\r" in text and "\n" not in text else "\n"
    lines = text.split(mark)
    unterminated = lines.pop()
    return [line + mark for line in lines] + ([unterminated] if unterminated else [])


def without_ending(line: str) -> str:
    if line.endswith("\r\n"):
        return line[:-2]
    return line[:-1] if line.endswith(("\n", "\r")) else line


def ending_of(line: str) -> str:
    return line[len(without_ending(line)) :]


MAX_LINE_LENGTH = 2_000


def shorten_line(line: str, limit: int = MAX_LINE_LENGTH) -> str:
    text = displayable_text(without_ending(line))
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text) - limit:,} more characters in this line]"
