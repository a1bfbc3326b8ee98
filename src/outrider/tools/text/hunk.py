"""Lines to look for in a file and what becomes of them; lines that stay keep the file's own bytes."""

from collections.abc import Callable, Iterable, Iterator
from difflib import SequenceMatcher
from typing import Literal

import msgspec

from outrider.tools.text.endings import ending_of, without_ending

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
