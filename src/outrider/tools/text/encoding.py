"""Which encoding a file's bytes are in, such that decoding and encoding again gives the same bytes."""

import codecs
import re

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
