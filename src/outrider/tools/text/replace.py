"""Finds lines in a file, replaces them and diffs the result; unchanged lines keep their original bytes."""

from collections.abc import Callable, Iterable, Iterator
from difflib import SequenceMatcher, get_close_matches, unified_diff
from typing import Literal

import msgspec

from outrider._lazy import lazy_pattern
from outrider.errors import ToolFailure
from outrider.tools.text.encoding import (
    NormalizedText,
    displayable_text,
    ending_of,
    shorten_line,
    split_lines,
    with_ending,
    without_ending,
)

_MAX_COMPARED_LINES = 2_000
_CONTEXT = 3


class TextDiff(msgspec.Struct, frozen=True):
    text: str
    added: int
    removed: int


def diff_texts(name: str, before: str | None, after: str | None) -> TextDiff:
    """Returns a unified diff. Only the lines between the common prefix and suffix are compared, so a small edit of a
    long file is cheap."""
    old, new = split_lines(before or ""), split_lines(after or "")
    head = _common_length(old, new)
    tail = _common_length(old[head:][::-1], new[head:][::-1])
    start = max(0, head - _CONTEXT)
    old_piece = old[start : len(old) - max(0, tail - _CONTEXT)]
    new_piece = new[start : len(new) - max(0, tail - _CONTEXT)]
    if len(old_piece) + len(new_piece) > _MAX_COMPARED_LINES:
        removed, added = len(old) - head - tail, len(new) - head - tail
        return TextDiff(f"(too large to show: {removed} lines removed, {added} added)", added, removed)
    lines = list(
        unified_diff(
            [_display_line(line) for line in old_piece], [_display_line(line) for line in new_piece], lineterm=""
        )
    )
    body = [_shift_header(line, start) if line.startswith("@@") else line for line in lines[2:]]
    added, removed = (sum(line.startswith(sign) for line in body) for sign in "+-")
    names = (name if before is not None else "/dev/null", name if after is not None else "/dev/null")
    return TextDiff("\n".join([f"--- {names[0]}", f"+++ {names[1]}", *body]), added, removed)


def _common_length(old: list[str], new: list[str]) -> int:
    pairs = enumerate(zip(old, new, strict=False))
    return next((index for index, (old_line, new_line) in pairs if old_line != new_line), min(len(old), len(new)))


def _display_line(line: str) -> str:
    return displayable_text(without_ending(line))


def _shift_header(header: str, by: int) -> str:
    """Shifts the line numbers of a hunk header to those of the whole file."""

    def shifted(span: str) -> str:
        first_line, comma, count = span[1:].partition(",")
        return f"{span[0]}{int(first_line) + by}{comma}{count}"

    _, old, new, _ = header.split(" ", 3)
    return f"@@ {shifted(old)} {shifted(new)} @@"


_VIEW_LINES = 120


def number_lines(lines: Iterable[str], first_number: int) -> str:
    return "\n".join(f"{number:6}\t{shorten_line(line)}" for number, line in enumerate(lines, first_number))


def current_view(text: str, near: str = "") -> str:
    """Returns the numbered lines of a file; for a long one the lines around `near`, or the first ones."""
    lines = split_lines(text)
    if len(lines) <= _VIEW_LINES:
        return number_lines((shorten_line(line, 500) for line in lines), 1) if lines else "(the file is empty)"
    start = max(0, min(_find_similar_line(lines, near) - _VIEW_LINES // 2, len(lines) - _VIEW_LINES))
    excerpt = number_lines((shorten_line(line, 500) for line in lines[start : start + _VIEW_LINES]), start + 1)
    return f"{excerpt}\n(lines {start + 1}-{start + _VIEW_LINES} of {len(lines)})"


def _find_similar_line(lines: list[str], near: str) -> int:
    longest = max((line.strip() for line in near.split("\n")), key=len, default="")
    return next((index for index, line in enumerate(lines) if longest and longest in line), 0)


LineAction = Literal[" ", "-", "+"]
Tolerance = Literal["exact", "trailing whitespace", "indentation"]
Reindent = Callable[[str], str | None]


class HunkLine(msgspec.Struct, frozen=True):
    """One context, removed or added line. `no_newline` marks a last line without a line ending."""

    action: LineAction
    text: str
    no_newline: bool = False


class PatchHunk(msgspec.Struct, frozen=True):
    """A group of adjacent changes. `anchors` are lines that precede it; `stated_line` is the line number in the patch
    (from 1)."""

    steps: tuple[HunkLine, ...]
    anchors: tuple[str, ...] = ()
    stated_line: int | None = None
    at_end: bool = False

    @property
    def old_lines(self) -> list[str]:
        return [step.text for step in self.steps if step.action != "+"]


class HunkMatch(msgspec.Struct, frozen=True):
    """Where a hunk matches, with which tolerance, and how to reindent its new lines."""

    index: int
    tolerance: Tolerance
    reindent: Reindent


def hunk_between(old: list[str], new: list[str]) -> PatchHunk:
    """Returns a hunk that changes `old` to `new` and leaves common lines untouched."""
    steps: list[HunkLine] = []
    for is_same, old_slice, new_slice in align_lines(old, new):
        if is_same:
            steps += [HunkLine(" ", line) for line in old[old_slice]]
            continue
        steps += [HunkLine("-", line) for line in old[old_slice]]
        steps += [HunkLine("+", line) for line in new[new_slice]]
    return PatchHunk(tuple(steps))


def align_lines(old: list[str], new: list[str]) -> Iterator[tuple[bool, slice, slice]]:
    """Yields equal and different slices of two lists.

    The common prefix and suffix are matched first, so that among several equal lines (mostly blank ones) the unchanged
    ones are preserved.
    """
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


def find_matches(lines: list[str], old: list[str], *, start: int = 0, tolerant: bool = True) -> list[HunkMatch]:
    """Returns all positions where `old` matches, by the strictest comparison that finds any."""
    plain = [without_ending(line) for line in lines]
    matches = [HunkMatch(index, "exact", _keep_line) for index in _find_sequence(plain, old, start)]
    if matches or not tolerant:
        return matches
    trimmed, trimmed_old = [line.rstrip() for line in plain], [line.rstrip() for line in old]
    matches = [
        HunkMatch(index, "trailing whitespace", _keep_line) for index in _find_sequence(trimmed, trimmed_old, start)
    ]
    if matches or not any(trimmed_old):
        return matches
    stripped = _find_sequence([line.strip() for line in plain], [line.strip() for line in old], start)
    shifts = ((index, _find_reindent(trimmed_old, trimmed[index : index + len(old)])) for index in stripped)
    return [HunkMatch(index, "indentation", shift) for index, shift in shifts if shift is not None]


def apply_hunk_lines(lines: list[str], steps: Iterable[HunkLine], match: HunkMatch, ending: str) -> list[str] | None:
    """Returns the lines that replace the matched ones; None if a new line cannot be reindented."""
    result: list[str] = []
    index = match.index
    for step in steps:
        if step.action == "+":
            text = match.reindent(step.text)
            if text is None:
                return None
            result.append(text + ("" if step.no_newline else ending))
            continue
        if step.action == " ":
            result.append(lines[index])
        index += 1
    return result


def join_lines(before: list[str], middle: list[str], after: list[str], ending: str) -> list[str]:
    """Joins the lines and adds a line ending where another line follows."""
    joined = before + middle + after
    for index in range(max(len(before) - 1, 0), len(before) + len(middle)):
        if index < len(joined) - 1 and not ending_of(joined[index]):
            joined[index] += ending
    return joined


def _find_sequence(lines: list[str], sequence: list[str], start: int) -> list[int]:
    size = len(sequence)
    if not size:
        return []
    # Search for the longest line first, which is likely to be rare; blank lines match everywhere.
    probe = max(range(size), key=lambda index: len(sequence[index]))
    rare = sequence[probe]
    return [
        index - probe
        for index, line in enumerate(lines)
        if line == rare and index - probe >= start and lines[index - probe : index - probe + size] == sequence
    ]


def _keep_line(line: str) -> str | None:
    return line


def _find_reindent(patch_lines: list[str], file_lines: list[str]) -> Reindent | None:
    """Returns a function that converts the indentation of all lines of the patch to that of the file, or None if there
    is no such function."""
    for patch_line, file_line in zip(patch_lines, file_lines, strict=True):
        if patch_line != file_line:
            rule = _reindent_rule(_leading_whitespace(patch_line), _leading_whitespace(file_line))
            fits = rule is not None and all(
                rule(old_line) == new_line
                for old_line, new_line in zip(patch_lines, file_lines, strict=True)
                if old_line.strip()
            )
            return rule if fits else None
    return _keep_line


def _reindent_rule(patch_indent: str, file_indent: str) -> Reindent | None:
    if file_indent.endswith(patch_indent):
        added = file_indent[: len(file_indent) - len(patch_indent)]
        return lambda line: added + line if line.strip() else line
    if patch_indent.endswith(file_indent):
        removed = patch_indent[: len(patch_indent) - len(file_indent)]
        return lambda line: line.removeprefix(removed) if line.startswith(removed) else (None if line.strip() else line)
    if not patch_indent.strip(" ") and not file_indent.strip("\t") and len(patch_indent) % len(file_indent) == 0:
        return _spaces_to_tabs(len(patch_indent) // len(file_indent))
    if not patch_indent.strip("\t") and not file_indent.strip(" ") and len(file_indent) % len(patch_indent) == 0:
        spaces = " " * (len(file_indent) // len(patch_indent))
        return lambda line: _leading_whitespace(line).replace("\t", spaces) + line[len(_leading_whitespace(line)) :]
    return None


def _spaces_to_tabs(width: int) -> Reindent:
    def reindent(line: str) -> str | None:
        indent = _leading_whitespace(line)
        tabs, spaces = divmod(len(indent), width)
        return "\t" * tabs + " " * spaces + line[len(indent) :] if not indent.strip(" ") else None

    return reindent


def _leading_whitespace(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


_MAX_LISTED = 10
_MAX_SEARCHED_LINES = 3_000
_NUMBERED = lazy_pattern(r"^\s*\d+\t")


class TextReplacement(msgspec.Struct, frozen=True):
    """The new text, the changed line numbers (from 1), and the difference that was tolerated."""

    text: str
    lines: tuple[int, ...]
    tolerated: str = ""


def replace_text(text: str, old: str, new: str, *, everywhere: bool, tolerant: bool) -> TextReplacement:
    """Replaces `old` with `new`. Raises ToolFailure with a hint for the next call if the match is missing or
    ambiguous."""
    if old == new:
        raise ToolFailure("old_string and new_string are the same; there is nothing to change")
    if not old:
        raise ToolFailure("old_string is empty, but the file is not; say which text to replace")
    plain = NormalizedText(text)
    verbatim = "\r" in old
    haystack = text if verbatim else plain.text
    indexes = _find_occurrences(haystack, old, everywhere=everywhere)
    if len(indexes) > 1 and not everywhere:
        raise _ambiguity_failure(haystack, indexes)
    if indexes:
        spans = [
            (index, index + len(old))
            if verbatim
            else (plain.original_index(index), plain.original_index(index + len(old)))
            for index in indexes
        ]
        pieces = [new if verbatim else _replacement_text(plain, span, old, new) for span in spans]
        return TextReplacement(_replace_spans(text, spans, pieces), _line_numbers(haystack, indexes))
    if tolerant and not everywhere:
        return _replace_by_lines(plain, old, new)
    raise _missing_failure(text, old)


def _find_occurrences(text: str, old: str, *, everywhere: bool) -> list[int]:
    """Returns the indexes of all occurrences, including overlapping ones unless `everywhere` is set."""
    indexes: list[int] = []
    index = text.find(old)
    while index >= 0:
        indexes.append(index)
        index = text.find(old, index + (len(old) if everywhere else 1))
    return indexes


def _replacement_text(plain: NormalizedText, span: tuple[int, int], old: str, new: str) -> str:
    """Returns the new text with the line endings of the range; if they are mixed, unchanged lines keep their own."""
    ending = plain.ending_near(*span)
    if len(plain.endings_in(*span)) <= 1:
        return with_ending(new, ending)
    originals = split_lines(plain.original[slice(*span)])
    old_lines, new_lines = split_lines(old), split_lines(new)
    pieces: list[str] = []
    for is_same, retained, fresh in align_lines(old_lines, new_lines):
        pieces += originals[retained] if is_same else [with_ending(line, ending) for line in new_lines[fresh]]
    return "".join(pieces)


def _replace_spans(text: str, spans: list[tuple[int, int]], replacements: list[str]) -> str:
    result: list[str] = []
    position = 0
    for (start, end), replacement in zip(spans, replacements, strict=True):
        result += [text[position:start], replacement]
        position = end
    return "".join([*result, text[position:]])


def _replace_by_lines(plain: NormalizedText, old: str, new: str) -> TextReplacement:
    if new and old.endswith("\n") != new.endswith("\n"):
        raise _missing_failure(plain.original, old)
    lines, old_lines = split_lines(plain.original), _bare_lines(old)
    matches = find_matches(lines, old_lines)
    if not matches:
        raise _missing_failure(plain.original, old)
    if len(matches) > 1:
        raise ToolFailure(
            f"old_string does not match exactly, and with other whitespace it fits lines "
            f"{_list_numbers([match.index + 1 for match in matches])}; give the exact text, with more lines around it"
        )
    return _apply_line_match(lines, old_lines, _bare_lines(new), plain, matches[0])


def _apply_line_match(
    lines: list[str], old_lines: list[str], new: list[str], plain: NormalizedText, match: HunkMatch
) -> TextReplacement:
    preceding, following = lines[: match.index], lines[match.index + len(old_lines) :]
    start = sum(map(len, preceding))
    ending = plain.ending_near(start, start + sum(map(len, lines[match.index : match.index + len(old_lines)])))
    middle = apply_hunk_lines(lines, hunk_between(old_lines, new).steps, match, ending)
    if middle is None:
        raise _missing_failure(plain.original, "\n".join(old_lines))
    if not following and middle and without_ending(lines[-1]) == lines[-1]:
        middle[-1] = without_ending(middle[-1])
    text = "".join(join_lines(preceding, middle, following, ending))
    return TextReplacement(text, (match.index + 1,), match.tolerance)


def _bare_lines(text: str) -> list[str]:
    return [without_ending(line) for line in split_lines(text)] if text else []


def _line_numbers(text: str, indexes: list[int]) -> tuple[int, ...]:
    numbers: list[int] = []
    line, position = 1, 0
    for index in indexes:
        line += text.count("\n", position, index)
        position = index
        numbers.append(line)
    return tuple(numbers)


def _ambiguity_failure(text: str, indexes: list[int]) -> ToolFailure:
    lines = _line_numbers(text, indexes[: _MAX_LISTED + 1])
    return ToolFailure(
        f"old_string is found {len(indexes)} times (lines {_list_numbers(list(lines))}); give more of the text "
        "around the one that is meant, or set replace_all. Nothing was written"
    )


def _missing_failure(text: str, old: str) -> ToolFailure:
    return ToolFailure(f"old_string is not in the file. Nothing was written{_explain_mismatch(text, old)}")


def _explain_mismatch(text: str, old: str) -> str:
    if all(_NUMBERED.match(line) for line in old.split("\n") if line):
        return ". It begins with line numbers, which are not part of the file"
    lines = split_lines(text)
    longest = max((line.strip() for line in old.split("\n")), key=len)
    stripped = [line.strip() for line in lines[:_MAX_SEARCHED_LINES]]
    near = get_close_matches(longest[:500], [line[:500] for line in dict.fromkeys(stripped)], n=1, cutoff=0.6)
    if not near:
        return ""
    index = next(index for index, line in enumerate(stripped) if line[:500] == near[0])
    start = max(0, index - 3)
    return f". The nearest text is:\n{number_lines(lines[start : index + 6], start + 1)}"


def _list_numbers(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:_MAX_LISTED])) + (", …" if len(numbers) > _MAX_LISTED else "")
