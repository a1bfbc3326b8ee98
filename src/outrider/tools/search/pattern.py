"""Patterns for paths: `*`, `?`, `[a-z]`, `{a,b}` and `**` over folders."""

import re
from functools import lru_cache

from outrider.errors import ToolFailure

LONGEST_PATTERN = 1_000
_MOST_BRACES = 64


@lru_cache(maxsize=256)
def path_pattern(pattern: str) -> "re.Pattern[str]":
    """Matches whole relative paths; a pattern without a slash is for the name alone, in any folder."""
    if len(pattern) > LONGEST_PATTERN or "\0" in pattern:
        raise ToolFailure(f"a pattern has at most {LONGEST_PATTERN} characters, and no NUL")
    pattern = pattern.removeprefix("./").strip("/") or "**"
    rooted = (one if "/" in one else f"**/{one}" for one in _alternatives(pattern))
    try:
        return re.compile("|".join(map(path_regex, rooted)), re.DOTALL)
    except re.error as error:
        raise ToolFailure(f"not a pattern for paths: {pattern!r} ({error})") from error


def path_regex(pattern: str) -> str:
    """One pattern without braces, as a regular expression for a whole path."""
    result: list[str] = []
    at = 0
    while at < len(pattern):
        piece, at = _piece(pattern, at)
        result.append(piece)
    return "".join([r"\A", *result, r"\Z"])


def _piece(pattern: str, at: int) -> tuple[str, int]:
    """The expression for what stands at a place, and the place after it."""
    if pattern.startswith("**/", at) and (at == 0 or pattern[at - 1] == "/"):
        return "(?:[^/]+/)*", at + 3
    if pattern.startswith("**", at) and at + 2 == len(pattern) and (at == 0 or pattern[at - 1] == "/"):
        return ".+", at + 2
    char = pattern[at]
    if char == "*":
        end = at
        while end < len(pattern) and pattern[end] == "*":
            end += 1
        return "[^/]*", end
    if char == "?":
        return "[^/]", at + 1
    if char == "[":
        return _set(pattern, at)
    if char == "\\" and at + 1 < len(pattern):
        return re.escape(pattern[at + 1]), at + 2
    return re.escape(char), at + 1


def _set(pattern: str, at: int) -> tuple[str, int]:
    end = pattern.find("]", at + 2 + (pattern[at + 1 : at + 2] in {"!", "^"}))
    if end < 0:
        return r"\[", at + 1
    inner = pattern[at + 1 : end]
    negated = inner[0] in "!^"
    chars = (inner[1:] if negated else inner).replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]")
    return f"(?!/)[{'^' if negated else ''}{chars.replace('^', chr(92) + '^')}]", end + 1


def _alternatives(pattern: str) -> list[str]:
    """The patterns that braces stand for."""
    found = [pattern]
    done: list[str] = []
    while found:
        if len(found) + len(done) > _MOST_BRACES:
            raise ToolFailure(f"the braces of the pattern stand for more than {_MOST_BRACES} patterns")
        one = found.pop()
        match = re.search(r"(?<!\\)\{([^{}]*,[^{}]*)\}", one)
        if match is None:
            done.append(one)
            continue
        found += [one[: match.start()] + choice + one[match.end() :] for choice in match[1].split(",")]
    return done
