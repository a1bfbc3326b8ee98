"""Finds where the hunks of a patch belong in a file and applies them; doubt is a failure."""

from outrider.errors import ToolFailure
from outrider.tools.text.endings import ending_of, split_lines, without_ending
from outrider.tools.text.hunk import Hunk, Match, apply_steps, close_ends, find_matches


def apply_hunks(text: str, hunks: tuple[Hunk, ...], *, tolerant: bool) -> str:
    """Hunks stand in the order of the file. Raises ToolFailure unless each place is beyond doubt."""
    lines = split_lines(text)
    shift = cursor = 0
    for number, hunk in enumerate(hunks, 1):
        match = _placed(lines, hunk, cursor, shift, tolerant=tolerant, number=number)
        size = len(hunk.old)
        ending = _ending(lines, match.place, size)
        middle = apply_steps(lines, hunk.steps, match, ending)
        if middle is None:
            raise _unfit(hunk, number)
        before, after = lines[: match.place], lines[match.place + size :]
        if not after and middle:
            middle[-1] = _last(lines, middle[-1], hunk, ending)
        lines = close_ends(before, middle, after, ending)
        cursor = match.place + len(middle)
        shift += len(middle) - size
    return "".join(lines)


def _placed(lines: list[str], hunk: Hunk, cursor: int, shift: int, *, tolerant: bool, number: int) -> Match:
    start = _after_anchors(lines, hunk, cursor, number)
    if not hunk.old:
        place = start if hunk.anchors else len(lines)
        stated = hunk.at + shift if hunk.at is not None else place
        return Match(max(cursor, min(stated, len(lines))), "exact", lambda line: line)
    matches = find_matches(lines, hunk.old, start=cursor, tolerant=tolerant)
    if hunk.at_end:
        matches = [match for match in matches if match.place + len(hunk.old) == len(lines)]
    stated = [match for match in matches if hunk.at is not None and match.place == hunk.at - 1 + shift]
    if hunk.anchors and len(matches) > 1:
        matches = [match for match in matches if match.place >= start][:1]
    matches = stated or matches
    if not matches:
        raise _unfit(hunk, number)
    if len(matches) > 1:
        where = ", ".join(str(match.place + 1) for match in matches[:10])
        raise ToolFailure(
            f"hunk {number} fits at lines {where}; add lines of context, or `@@` with a line before it. "
            "Nothing was written"
        )
    return matches[0]


def _after_anchors(lines: list[str], hunk: Hunk, cursor: int, number: int) -> int:
    """The line after the anchors, which must each be found once, one after the other."""
    place = cursor
    for anchor in hunk.anchors:
        found = [at for at in range(place, len(lines)) if lines[at].strip() == anchor.strip()]
        found = found or [at for at in range(place, len(lines)) if anchor.strip() in lines[at]]
        if not found:
            raise ToolFailure(f"hunk {number}: the line `@@ {anchor[:200]}` is not in the rest of the file")
        if len(found) > 1 and len(find_matches(lines, hunk.old, start=cursor)) != 1:
            where = ", ".join(str(at + 1) for at in found[:10])
            raise ToolFailure(f"hunk {number}: the line `@@ {anchor[:200]}` is there several times (lines {where})")
        place = found[0] + 1
    return place


def _ending(lines: list[str], place: int, size: int) -> str:
    """Of the lines that are replaced, else of their neighbours."""
    near = [
        *reversed(lines[place : place + size]),
        *lines[place + size : place + size + 1],
        *lines[max(place - 1, 0) :],
    ]
    return next((ending for ending in map(ending_of, near) if ending), "\n")


def _last(lines: list[str], line: str, hunk: Hunk, ending: str) -> str:
    """The end of the file stays with or without a line ending, unless the patch says otherwise."""
    old = [step for step in hunk.steps if step.move != "+"]
    new = [step for step in hunk.steps if step.move != "-"]
    if any(step.bare for step in [*old, *new]):
        return without_ending(line) + ("" if new[-1].bare else ending)
    was_bare = bool(lines) and not ending_of(lines[-1])
    return without_ending(line) + ("" if was_bare else ending)


def _unfit(hunk: Hunk, number: int) -> ToolFailure:
    wanted = "\n".join(hunk.old[:12])
    return ToolFailure(f"hunk {number} does not fit; these lines are not in the file. Nothing was written:\n{wanted}")
