"""Lines to look for in a file and what becomes of them; lines that stay keep the file's own bytes."""

import re
from collections.abc import Callable, Iterable, Iterator
from difflib import SequenceMatcher, get_close_matches
from typing import Literal

import msgspec

from outrider.errors import ToolFailure
from outrider.tools.text.diff import numbered
from outrider.tools.text.encoding import PlainText, ending_of, split_lines, with_ending, without_ending

Move = Literal[" ", "-", "+"]
Tolerance = Literal["exact", "trailing whitespace", "indentation"]
Reindent = Callable[[str], str | None]


class Step(msgspec.Struct, frozen=True):
    """One line that stays, goes or comes. `bare` is for a last line that has no line ending."""

    move: Move
    text: str
    bare: bool = False


class Hunk(msgspec.Struct, frozen=True):
    """`anchors` are lines that stand somewhere before it, `at` the line number that the patch states (from 1)."""

    steps: tuple[Step, ...]
    anchors: tuple[str, ...] = ()
    at: int | None = None
    at_end: bool = False

    @property
    def old(self) -> list[str]:
        return [step.text for step in self.steps if step.move != "+"]


class Match(msgspec.Struct, frozen=True):
    """Where a hunk fits, how exactly, and how its new lines are indented there."""

    place: int
    tolerance: Tolerance
    reindent: Reindent


def hunk_between(old: list[str], new: list[str]) -> Hunk:
    """The hunk that turns `old` into `new` and touches no line that is in both."""
    steps: list[Step] = []
    for same, before, after in aligned(old, new):
        if same:
            steps += [Step(" ", line) for line in old[before]]
            continue
        steps += [Step("-", line) for line in old[before]]
        steps += [Step("+", line) for line in new[after]]
    return Hunk(tuple(steps))


def aligned(old: list[str], new: list[str]) -> Iterator[tuple[bool, slice, slice]]:
    """Pieces of two lists that are the same, or not. What both begin and end with is the same before all else, so that
    of several equal lines, blank ones mostly, those stay that nobody meant to touch."""
    shorter = min(len(old), len(new))
    head = next((n for n in range(shorter) if old[n] != new[n]), shorter)
    tail = next((n for n in range(shorter - head) if old[-1 - n] != new[-1 - n]), shorter - head)
    if head:
        yield True, slice(0, head), slice(0, head)
    middle = SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False)
    for tag, start, end, new_start, new_end in middle.get_opcodes():
        yield tag == "equal", slice(head + start, head + end), slice(head + new_start, head + new_end)
    if tail:
        yield True, slice(len(old) - tail, len(old)), slice(len(new) - tail, len(new))


def find_matches(lines: list[str], old: list[str], *, start: int = 0, tolerant: bool = True) -> list[Match]:
    """Every place where `old` fits, by the strictest comparison that finds one."""
    plain = [without_ending(line) for line in lines]
    found = [Match(place, "exact", _as_it_is) for place in _places(plain, old, start)]
    if found or not tolerant:
        return found
    trimmed, wanted = [line.rstrip() for line in plain], [line.rstrip() for line in old]
    found = [Match(place, "trailing whitespace", _as_it_is) for place in _places(trimmed, wanted, start)]
    if found or not any(wanted):
        return found
    stripped = _places([line.strip() for line in plain], [line.strip() for line in old], start)
    shifts = ((place, _reindentation(wanted, trimmed[place : place + len(old)])) for place in stripped)
    return [Match(place, "indentation", shift) for place, shift in shifts if shift is not None]


def apply_steps(lines: list[str], steps: Iterable[Step], match: Match, ending: str) -> list[str] | None:
    """The lines that take the place of those matched; None when a new line's indentation has no counterpart."""
    result: list[str] = []
    place = match.place
    for step in steps:
        if step.move == "+":
            text = match.reindent(step.text)
            if text is None:
                return None
            result.append(text + ("" if step.bare else ending))
            continue
        if step.move == " ":
            result.append(lines[place])
        place += 1
    return result


def close_ends(before: list[str], middle: list[str], after: list[str], ending: str) -> list[str]:
    """Joined again, with a line ending wherever another line follows."""
    joined = before + middle + after
    for place in range(max(len(before) - 1, 0), len(before) + len(middle)):
        if place < len(joined) - 1 and not ending_of(joined[place]):
            joined[place] += ending
    return joined


def _places(lines: list[str], wanted: list[str], start: int) -> list[int]:
    size = len(wanted)
    if not size:
        return []
    # The rarest line decides quickly; blank lines are everywhere.
    probe = max(range(size), key=lambda index: len(wanted[index]))
    rare = wanted[probe]
    return [
        place - probe
        for place, line in enumerate(lines)
        if line == rare and place - probe >= start and lines[place - probe : place - probe + size] == wanted
    ]


def _as_it_is(line: str) -> str | None:
    return line


def _reindentation(wanted: list[str], found: list[str]) -> Reindent | None:
    """The one rule that brings every wanted line to the indentation of its counterpart."""
    for want, have in zip(wanted, found, strict=True):
        if want != have:
            rule = _rule(_indent(want), _indent(have))
            fits = rule is not None and all(rule(w) == h for w, h in zip(wanted, found, strict=True) if w.strip())
            return rule if fits else None
    return _as_it_is


def _rule(want: str, have: str) -> Reindent | None:
    if have.endswith(want):
        more = have[: len(have) - len(want)]
        return lambda line: more + line if line.strip() else line
    if want.endswith(have):
        less = want[: len(want) - len(have)]
        return lambda line: line.removeprefix(less) if line.startswith(less) else (None if line.strip() else line)
    if not want.strip(" ") and not have.strip("\t") and len(want) % len(have) == 0:
        return _tabs_for(len(want) // len(have))
    if not want.strip("\t") and not have.strip(" ") and len(have) % len(want) == 0:
        spaces = " " * (len(have) // len(want))
        return lambda line: _indent(line).replace("\t", spaces) + line[len(_indent(line)) :]
    return None


def _tabs_for(width: int) -> Reindent:
    def reindent(line: str) -> str | None:
        indent = _indent(line)
        whole, rest = divmod(len(indent), width)
        return "\t" * whole + " " * rest + line[len(indent) :] if not indent.strip(" ") else None

    return reindent


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


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
    places = _places_replacing(haystack, old, everywhere=everywhere)
    if len(places) > 1 and not everywhere:
        raise _ambiguous(haystack, places)
    if places:
        spans = [(at, at + len(old)) if verbatim else (plain.place(at), plain.place(at + len(old))) for at in places]
        pieces = [new if verbatim else _piece(plain, span, old, new) for span in spans]
        return Replaced(_spliced(text, spans, pieces), _line_numbers(haystack, places))
    if tolerant and not everywhere:
        return _as_lines(plain, old, new)
    raise _missing(text, old)


def _places_replacing(text: str, old: str, *, everywhere: bool) -> list[int]:
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
