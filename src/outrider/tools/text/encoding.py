"""Which encoding a file's bytes are in, such that decoding and encoding again gives the same bytes."""

import codecs
import re
from bisect import bisect_left

import msgspec

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark is the beginning of this one
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SAMPLE = 64 * 1024
_ESCAPED = re.compile("[\udc80-\udcff]")
_CONTROL = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
_CONTROLS = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
_WINDOWS = re.compile(rb"[\x80-\x9f]")


class Encoding(msgspec.Struct, frozen=True):
    """`errors` is surrogateescape for UTF-8 with a few wrong bytes: they survive an edit as they are."""

    name: str = "utf-8"
    bom: bytes = b""
    errors: str = "strict"

    def decode(self, raw: bytes) -> str:
        return raw[len(self.bom) :].decode(self.name, self.errors)

    def encode(self, text: str) -> bytes:
        """With the byte order mark; raises UnicodeEncodeError for what the encoding lacks."""
        return self.bom + text.encode(self.name, self.errors)

    @property
    def label(self) -> str:
        return f"{self.name} with BOM" if self.bom else self.name


def detect(raw: bytes, *, whole: bool = True) -> Encoding | None:
    """None for bytes that are no text. `whole` is False when `raw` is only the beginning of a file."""
    for bom, name in _BOMS:
        if raw.startswith(bom) and _decodes(raw[len(bom) :], name, whole):
            return Encoding(name, bom)
    if b"\0" in raw[:_SAMPLE]:
        return _unmarked_utf16(raw, whole)
    if _decodes(raw, "utf-8", whole):
        return None if b"\0" in raw else Encoding()
    return _eight_bit(raw)


def shown(text: str) -> str:
    """Text as a model can get it: bytes that are no text become the replacement character."""
    return _ESCAPED.sub("\ufffd", text)


def _decodes(raw: bytes, name: str, whole: bool) -> bool:  # noqa: FBT001
    try:
        codecs.getincrementaldecoder(name)().decode(raw, final=whole)
    except UnicodeDecodeError:
        return False
    return True


def _unmarked_utf16(raw: bytes, whole: bool) -> Encoding | None:  # noqa: FBT001
    """Text of Latin letters has its zeros in every other place."""
    sample = raw[:_SAMPLE]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    name = "utf-16-le" if odd > even else "utf-16-be"
    few, many = sorted((even, odd))
    letters = many > len(sample) * 0.35 and few == 0
    if not letters or not _decodes(raw, name, whole) or _CONTROLS.search(raw.decode(name, "replace")):
        return None
    return Encoding(name)


def _eight_bit(raw: bytes) -> Encoding | None:
    """UTF-8 with wrong bytes, when most of what is not ASCII is UTF-8; else one of the Latin encodings."""
    sample = raw[:_SAMPLE]
    if b"\0" in raw or len(_CONTROL.findall(sample)) > len(sample) * 0.02:
        return None
    text = sample.decode("utf-8", "surrogateescape")
    wrong = len(_ESCAPED.findall(text))
    right = sum(not char.isascii() for char in text) - wrong if wrong < len(text) else 0
    if right > wrong or not wrong:
        return Encoding("utf-8", errors="surrogateescape")
    return Encoding("cp1252" if _WINDOWS.search(raw) and _decodes(raw, "cp1252", whole=True) else "latin-1")


_BREAK = re.compile(r"\r\n|\n|\r")


class PlainText:
    """A text with every line ending as a line feed, that knows where each place lies in the original."""

    def __init__(self, original: str) -> None:
        self.original = original
        self.carriage_returns = "\r" in original and "\n" not in original
        self._pairs: list[int] = []
        if self.carriage_returns:
            self.text = original.replace("\r", "\n")
        elif "\r\n" in original:
            self.text = original.replace("\r\n", "\n")
            found = (match.start() for match in re.finditer("\r\n", original))
            self._pairs = [place - number for number, place in enumerate(found)]
        else:
            self.text = original

    def place(self, index: int) -> int:
        """Where a place of the plain text lies in the original."""
        return index + bisect_left(self._pairs, index)

    def endings_in(self, start: int, end: int) -> set[str]:
        """The kinds of line endings inside a piece of the original."""
        return set(_BREAK.findall(self.original, start, end)) if self._pairs else {"\n"}

    def ending_near(self, start: int, end: int) -> str:
        """The line ending inside a piece of the original, else the next one, else the one before."""
        if not self._pairs:
            return "\r" if self.carriage_returns else "\n"
        inside = _BREAK.findall(self.original, start, end)
        if inside:
            return inside[-1]
        following = _BREAK.search(self.original, end)
        if following:
            return following.group()
        return "\r\n" if self.original.rfind("\r\n", 0, start) + 1 == self.original.rfind("\n", 0, start) else "\n"


def with_ending(text: str, ending: str) -> str:
    return text if ending == "\n" else text.replace("\r\n", "\n").replace("\n", ending)


def split_lines(text: str) -> list[str]:
    """Lines with their endings; a lone carriage return ends a line only in a text without line feeds."""
    mark = "\r" if "\r" in text and "\n" not in text else "\n"
    pieces = text.split(mark)
    last = pieces.pop()
    return [piece + mark for piece in pieces] + ([last] if last else [])


def without_ending(line: str) -> str:
    if line.endswith("\r\n"):
        return line[:-2]
    return line[:-1] if line.endswith(("\n", "\r")) else line


def ending_of(line: str) -> str:
    return line[len(without_ending(line)) :]
