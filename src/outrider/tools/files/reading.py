"""Reads a range of a file's lines in bounded memory, whatever its size and encoding."""

import io
import os
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

import msgspec

from outrider.tools.files.files import LARGEST
from outrider.tools.files.ledger import Version, version_of
from outrider.tools.text.encoding import Encoding, detect
from outrider.tools.text.endings import without_ending
from outrider.tools.text.view import LONGEST_LINE, shortened

_SAMPLE = 64 * 1024


class Piece(msgspec.Struct, frozen=True):
    """Lines from `first` on. `total` is None when the file is too large to count them; `version` likewise."""

    lines: tuple[str, ...]
    first: int
    total: int | None
    encoding: Encoding
    version: Version | None
    cut: bool


class Bounds(msgspec.Struct, frozen=True):
    lines: int
    characters: int


def read_piece(file: BinaryIO, first: int, bounds: Bounds) -> Piece | None:
    """None for a binary file."""
    if os.fstat(file.fileno()).st_size <= LARGEST:
        raw = file.read(LARGEST + 1)
        encoding = detect(raw)
        return encoding and _piece(io.BytesIO(raw), encoding, first, bounds, version_of(raw))
    sample = file.read(_SAMPLE)
    file.seek(0)
    encoding = detect(sample, whole=False)
    return encoding and _piece(file, encoding, first, bounds, None)


def _piece(file: BinaryIO, encoding: Encoding, first: int, bounds: Bounds, version: Version | None) -> Piece:
    file.seek(len(encoding.bom))
    sample = file.read(_SAMPLE).decode(encoding.name, "replace")
    file.seek(len(encoding.bom))
    newline = "\r" if "\r" in sample and "\n" not in sample else "\n"
    errors = encoding.errors if version else "replace"
    text = io.TextIOWrapper(file, encoding=encoding.name, errors=errors, newline=newline)
    try:
        lines = _lines(text)
        skipped = sum(1 for _ in islice(lines, first - 1))
        kept, cut = _fill(lines, bounds)
        total = skipped + len(kept) + cut + sum(1 for _ in lines) if version or not cut else None
        return Piece(tuple(kept), first, total, encoding, version, bool(cut))
    finally:
        text.detach()


def _fill(lines: Iterator[str], bounds: Bounds) -> tuple[list[str], int]:
    """As many lines as fit, and 1 if one more was taken that did not."""
    kept: list[str] = []
    room = bounds.characters
    for line in lines:
        room -= len(line) + 8  # the number and its tab
        if len(kept) >= bounds.lines or (room < 0 and kept):
            return kept, 1
        kept.append(line)
    return kept, 0


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    """Lines cut to what is shown; the rest of a very long one is passed over piece by piece."""
    while line := text.readline(LONGEST_LINE * 4):
        more = 0
        end = line
        while not end.endswith(("\n", "\r")) and (end := text.readline(_SAMPLE)):
            more += len(without_ending(end))
        yield shortened(line, LONGEST_LINE) if not more else _cut(line, more)


def _cut(line: str, more: int) -> str:
    return f"{shortened(line[:LONGEST_LINE])}… [{len(line) - LONGEST_LINE + more:,} more characters in this line]"
