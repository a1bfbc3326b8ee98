"""Matches paths against `.gitignore` and `.ignore` files with git's semantics."""

import os
import re
import stat
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec
from msgspec.structs import force_setattr

from outrider._lazy import lazy_pattern
from outrider._posix import O_CLOEXEC, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK

IGNORE_FILES = (".gitignore", ".ignore")
# Always skipped, even if an ignore file negates them.
VCS_FOLDERS = frozenset({".git", ".hg", ".svn", ".jj", ".bzr"})
# Temporary files of the edit tools, which replace their target by rename; see `temporary_name`.
TEMPORARY_NAME = lazy_pattern(r"\..{1,60}\.[0-9a-f]{12}\.tmp", re.DOTALL)


def temporary_name(name: str) -> str:
    """Returns a random name for a temporary file next to the file that it will replace."""
    return f".{name[:60]}.{os.urandom(6).hex()}.tmp"


class IgnoreRule(msgspec.Struct, frozen=True):
    """One line of an ignore file; `pattern` is a regular expression for the path relative to that file's folder."""

    pattern: str
    negated: bool
    folders_only: bool


class IgnoreRules(msgspec.Struct, frozen=True):
    """The rules of one folder, linked to those of its parent folders; `combined` matches if any rule may match."""

    folder: str
    rules: tuple[IgnoreRule, ...]
    parent: "IgnoreRules | None" = None
    combined: re.Pattern[str] | None = None

    def __post_init__(self) -> None:
        alternatives = "|".join(rule.pattern for rule in self.rules)
        force_setattr(self, "combined", _compile_pattern(alternatives) if self.rules else None)

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Returns the verdict of the last matching rule; rules of nearer folders override those of their parents."""
        rules: IgnoreRules | None = self
        while rules is not None:
            below = path[len(rules.folder) :]
            may_match = rules.combined is not None and rules.combined.fullmatch(below)
            for rule in reversed(rules.rules) if may_match else ():
                if (is_folder or not rule.folders_only) and _compile_pattern(rule.pattern).fullmatch(below):
                    return not rule.negated
            rules = rules.parent
        return False


def extend_rules(folder: str, lines: Sequence[str], above: IgnoreRules | None) -> IgnoreRules | None:
    """Returns the rules that apply in a folder: those of its ignore files, linked to those of the folders above."""
    return IgnoreRules(folder, parse_ignore_lines(lines), above) if lines else above


def is_excluded(rules: IgnoreRules | None, path: str, *, is_folder: bool) -> bool:
    """Returns whether a walk leaves out the entry of a folder to which these rules apply."""
    return path.rpartition("/")[2] in VCS_FOLDERS or (rules is not None and rules.ignores(path, is_folder=is_folder))


_MAX_IGNORE_FILE = 1024 * 1024  # bytes
_IGNORE_FILE_FLAGS = os.O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK


def read_ignore_file(path: str, folder: int | None = None) -> list[str]:
    """Returns the lines of an ignore file, below the open `folder` if one is given. As in git, a link has none."""
    try:
        descriptor = os.open(path, _IGNORE_FILE_FLAGS, dir_fd=folder)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return []
        return file.read(_MAX_IGNORE_FILE).decode("utf-8", "replace").splitlines()


def is_ignored(path: str, lines_of: Callable[[str], Sequence[str]]) -> bool:
    """Returns whether a file or one of its parent folders is ignored; `lines_of` returns a folder's ignore lines."""
    rules: IgnoreRules | None = None
    folder = ""
    names = path.split("/")
    for depth, name in enumerate(names):
        rules = extend_rules(folder, lines_of(folder), rules)
        if is_excluded(rules, folder + name, is_folder=depth + 1 < len(names)):
            return True
        folder += f"{name}/"
    return False


def parse_ignore_lines(lines: Sequence[str]) -> tuple[IgnoreRule, ...]:
    return tuple(rule for line in lines if (rule := _parse_ignore_line(line)) is not None)


def _parse_ignore_line(line: str) -> IgnoreRule | None:
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
    pattern = _translate_glob(text if anchored else f"**/{text}")
    try:
        _compile_pattern(pattern)
    except re.error:
        return None
    return IgnoreRule(pattern, negated, folders_only)


@lru_cache(maxsize=4096)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)


_GLOB_TOKENS = lazy_pattern(r"/\*\*/|^\*\*/|/\*\*$|\*+|\?|\[!?\]?[^\]]*\]|\\.|.", re.DOTALL)


_CHAR_RANGE = lazy_pattern(r"(.)-(.)", re.DOTALL)


def _fix_reversed_range(match: re.Match[str]) -> str:
    """Returns a reversed range as its first character, as git does; Python's re would raise an error."""
    return match[0] if match[1] <= match[2] else re.escape(match[1])


def _translate_glob(pattern: str) -> str:
    return "".join(map(_translate_token, _GLOB_TOKENS.findall(pattern)))


def _translate_token(token: str) -> str:
    match token:
        case "/**/":
            return "/(?:.*/)?"
        case "**/":
            return "(?:.*/)?"
        case "/**":
            return "/.*"
        case "?":
            return "[^/]"
        case _ if token.startswith("*"):
            return "[^/]*"
        case _ if token.startswith("[") and len(token) > 2:
            body = _CHAR_RANGE.sub(_fix_reversed_range, token[1:-1].replace("\\", "\\\\"))
            return f"[^{body[1:]}/]" if body.startswith("!") else f"[{body}]"
        case _:
            return re.escape(token[1:] if token.startswith("\\") and len(token) > 1 else token)
