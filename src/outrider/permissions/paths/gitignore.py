"""Which files do not count: the rules of `.gitignore` and `.ignore`, as git reads them."""

import os
import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec
from msgspec.structs import force_setattr

IGNORE_FILES = (".gitignore", ".ignore")
# Never looked into, whatever the ignore files say.
REPOSITORIES = frozenset({".git", ".hg", ".svn", ".jj", ".bzr"})
# What a tool of ours writes beside a file, whose place it takes a moment later; see `unfinished`.
UNFINISHED = re.compile(r"\..{1,60}\.[0-9a-f]{12}\.tmp", re.DOTALL)


def unfinished(name: str) -> str:
    """A new name for what will take the place of a file, beside it."""
    return f".{name[:60]}.{os.urandom(6).hex()}.tmp"


class Rule(msgspec.Struct, frozen=True):
    """`pattern` is matched against the path below the folder of the rule's file."""

    pattern: str
    negated: bool
    folders_only: bool


class Rules(msgspec.Struct, frozen=True):
    """The rules of one folder's files, with those of the folders above."""

    folder: str
    rules: tuple[Rule, ...]
    above: "Rules | None" = None
    any: re.Pattern[str] | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "any", _compiled("|".join(rule.pattern for rule in self.rules)) if self.rules else None)

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """The last rule that matches decides; rules that stand nearer come later."""
        rules: Rules | None = self
        while rules is not None:
            below = path[len(rules.folder) :]
            spoken_of = rules.any is not None and rules.any.fullmatch(below)
            for rule in reversed(rules.rules) if spoken_of else ():
                if (is_folder or not rule.folders_only) and _compiled(rule.pattern).fullmatch(below):
                    return not rule.negated
            rules = rules.above
        return False


def is_ignored(path: str, lines_of: Callable[[str], Sequence[str]]) -> bool:
    """Whether a file is left out, or a folder above it; `lines_of` gives what a folder's own files say."""
    rules: Rules | None = None
    above = ""
    names = path.split("/")
    for depth, name in enumerate(names):
        if lines := lines_of(above):
            rules = Rules(above, parse(lines), rules)
        is_folder = depth + 1 < len(names)
        if name in REPOSITORIES or (rules is not None and rules.ignores(above + name, is_folder=is_folder)):
            return True
        above += f"{name}/"
    return False


def parse(lines: Sequence[str]) -> tuple[Rule, ...]:
    return tuple(rule for line in lines if (rule := _rule(line)) is not None)


def _rule(line: str) -> Rule | None:
    line = line.rstrip("\r\n")
    line = re.sub(r"(?<!\\)[ \t]+$", "", line)
    if not line or line.startswith("#"):
        return None
    negated = line.startswith("!")
    text = line[1:] if negated else line
    folders_only = text.endswith("/")
    text = text.rstrip("/")
    anchored = "/" in text
    text = text.removeprefix("/")
    if not text:
        return None
    pattern = _expression(text if anchored else f"**/{text}")
    try:
        _compiled(pattern)
    except re.error:
        return None
    return Rule(pattern, negated, folders_only)


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)


_PIECES = re.compile(r"/\*\*/|^\*\*/|/\*\*$|\*+|\?|\[!?\]?[^\]]*\]|\\.|.", re.DOTALL)


_RANGE = re.compile(r"(.)-(.)", re.DOTALL)


def _forward(range: re.Match[str]) -> str:
    """A range that runs backwards is its first character, to git."""
    return range[0] if range[1] <= range[2] else re.escape(range[1])


def _expression(pattern: str) -> str:
    return "".join(map(_piece, _PIECES.findall(pattern)))


def _piece(piece: str) -> str:
    match piece:
        case "/**/":
            return "/(?:.*/)?"
        case "**/":
            return "(?:.*/)?"
        case "/**":
            return "/.*"
        case "?":
            return "[^/]"
        case _ if piece.startswith("*"):
            return "[^/]*"
        case _ if piece.startswith("[") and len(piece) > 2:
            body = _RANGE.sub(_forward, piece[1:-1].replace("\\", "\\\\"))
            return f"[^{body[1:]}/]" if body.startswith("!") else f"[{body}]"
        case _:
            return re.escape(piece[1:] if piece.startswith("\\") and len(piece) > 1 else piece)
