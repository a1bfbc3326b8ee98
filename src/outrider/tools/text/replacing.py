"""Replaces one text by another in a file: exactly, else as whole lines with other whitespace, else not at all."""

import re
from difflib import get_close_matches

import msgspec

from outrider.errors import ToolFailure
from outrider.tools.text.endings import PlainText, split_lines, with_ending, without_ending
from outrider.tools.text.hunk import Match, aligned, apply_steps, close_ends, find_matches, hunk_between
from outrider.tools.text.view import numbered

_LISTED = 10
_SEARCHED_LINES = 3_000
_NUMBERED = re.compile(r"^\s*\d+\t")


class Replaced(msgspec.Struct, frozen=True):
    """The new text, at which lines (from 1) it differs, and what was overlooked in the comparison."""

    text: str
    lines: tuple[int, ...]
    overlooked: str = ""


def replace_text(text: str, old: str, new: str, *, everywhere: bool, tolerant: bool) -> Replaced:
    """Raises ToolFailure, in words that help to mend the call, unless the place is beyond doubt."""
    if old == new:
        raise ToolFailure("old_string and new_string are the same; there is nothing to change")
    if not old:
        raise ToolFailure("old_string is empty, but the file is not; say which text to replace")
    plain = PlainText(text)
    verbatim = "\r" in old
    haystack = text if verbatim else plain.text
    places = _places(haystack, old, everywhere=everywhere)
    if len(places) > 1 and not everywhere:
        raise _ambiguous(haystack, places)
    if places:
        spans = [(at, at + len(old)) if verbatim else (plain.place(at), plain.place(at + len(old))) for at in places]
        pieces = [new if verbatim else _piece(plain, span, old, new) for span in spans]
        return Replaced(_spliced(text, spans, pieces), _line_numbers(haystack, places))
    if tolerant and not everywhere:
        return _as_lines(plain, old, new)
    raise _missing(text, old)


def _places(text: str, old: str, *, everywhere: bool) -> list[int]:
    """Overlapping ones count too, unless all are to be replaced one after the other."""
    places: list[int] = []
    at = text.find(old)
    while at >= 0:
        places.append(at)
        at = text.find(old, at + (len(old) if everywhere else 1))
    return places


def _piece(plain: PlainText, span: tuple[int, int], old: str, new: str) -> str:
    """The new text with the line endings of its place; where those are mixed, lines that stay keep their own."""
    ending = plain.ending_near(*span)
    if len(plain.endings_in(*span)) <= 1:
        return with_ending(new, ending)
    originals = split_lines(plain.original[slice(*span)])
    before, after = split_lines(old), split_lines(new)
    pieces: list[str] = []
    for same, kept, fresh in aligned(before, after):
        pieces += originals[kept] if same else [with_ending(line, ending) for line in after[fresh]]
    return "".join(pieces)


def _spliced(text: str, spans: list[tuple[int, int]], pieces: list[str]) -> str:
    result: list[str] = []
    done = 0
    for (start, end), piece in zip(spans, pieces, strict=True):
        result += [text[done:start], piece]
        done = end
    return "".join([*result, text[done:]])


def _as_lines(plain: PlainText, old: str, new: str) -> Replaced:
    if new and old.endswith("\n") != new.endswith("\n"):
        raise _missing(plain.original, old)
    lines, wanted = split_lines(plain.original), _bare_lines(old)
    matches = find_matches(lines, wanted)
    if not matches:
        raise _missing(plain.original, old)
    if len(matches) > 1:
        raise ToolFailure(
            f"old_string does not match exactly, and with other whitespace it fits lines "
            f"{_listed([match.place + 1 for match in matches])}; give the exact text, with more lines around it"
        )
    return _replaced(lines, wanted, _bare_lines(new), plain, matches[0])


def _replaced(lines: list[str], wanted: list[str], new: list[str], plain: PlainText, match: Match) -> Replaced:
    before, after = lines[: match.place], lines[match.place + len(wanted) :]
    start = sum(map(len, before))
    ending = plain.ending_near(start, start + sum(map(len, lines[match.place : match.place + len(wanted)])))
    middle = apply_steps(lines, hunk_between(wanted, new).steps, match, ending)
    if middle is None:
        raise _missing(plain.original, "\n".join(wanted))
    if not after and middle and without_ending(lines[-1]) == lines[-1]:
        middle[-1] = without_ending(middle[-1])
    text = "".join(close_ends(before, middle, after, ending))
    return Replaced(text, (match.place + 1,), match.tolerance)


def _bare_lines(text: str) -> list[str]:
    return [without_ending(line) for line in split_lines(text)] if text else []


def _line_numbers(text: str, places: list[int]) -> tuple[int, ...]:
    numbers: list[int] = []
    line, done = 1, 0
    for place in places:
        line += text.count("\n", done, place)
        done = place
        numbers.append(line)
    return tuple(numbers)


def _ambiguous(text: str, places: list[int]) -> ToolFailure:
    lines = _line_numbers(text, places[: _LISTED + 1])
    return ToolFailure(
        f"old_string is found {len(places)} times (lines {_listed(list(lines))}); give more of the text around the one "
        "that is meant, or set replace_all. Nothing was written"
    )


def _missing(text: str, old: str) -> ToolFailure:
    return ToolFailure(f"old_string is not in the file. Nothing was written{_why(text, old)}")


def _why(text: str, old: str) -> str:
    if all(_NUMBERED.match(line) for line in old.split("\n") if line):
        return ". It begins with line numbers, which are not part of the file"
    lines = split_lines(text)
    wanted = max((line.strip() for line in old.split("\n")), key=len)
    stripped = [line.strip() for line in lines[:_SEARCHED_LINES]]
    near = get_close_matches(wanted[:500], [line[:500] for line in dict.fromkeys(stripped)], n=1, cutoff=0.6)
    if not near:
        return ""
    place = next(index for index, line in enumerate(stripped) if line[:500] == near[0])
    start = max(0, place - 3)
    return f". The nearest text is:\n{numbered(lines[start : place + 6], start + 1)}"


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:_LISTED])) + (", …" if len(numbers) > _LISTED else "")
