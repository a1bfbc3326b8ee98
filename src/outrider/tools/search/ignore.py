"""Ignore files as git reads them: which paths below their folder are left out."""

import re

import msgspec

from outrider.tools.search.pattern import path_regex

NAMES = (".gitignore", ".ignore", ".rgignore")
# Never searched, whatever the ignore files say.
REPOSITORIES = frozenset({".git", ".hg", ".svn", ".jj", ".bzr"})


class Rule(msgspec.Struct, frozen=True):
    regex: "re.Pattern[str]"
    negated: bool
    folders_only: bool


class Ignore(msgspec.Struct, frozen=True):
    """The rules of one folder's ignore files; `base` is that folder, relative to the top, with a slash at its end."""

    base: str
    rules: tuple[Rule, ...]

    def verdict(self, path: str, *, folder: bool) -> bool | None:
        """None when no rule speaks of the path."""
        if not path.startswith(self.base):
            return None
        inner = path[len(self.base) :]
        for rule in reversed(self.rules):
            if (folder or not rule.folders_only) and rule.regex.match(inner):
                return not rule.negated
        return None


def read_ignore(base: str, text: str) -> Ignore:
    rules = (_rule(line) for line in text.splitlines())
    return Ignore(base, tuple(rule for rule in rules if rule is not None))


def ignored(path: str, layers: tuple[Ignore, ...], *, folder: bool) -> bool:
    """The ignore file nearest to the path has the last word."""
    verdicts = (layer.verdict(path, folder=folder) for layer in reversed(layers))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _rule(line: str) -> Rule | None:
    line = re.sub(r"(?<!\\)\s+$", "", line)
    if not line or line.startswith("#"):
        return None
    negated = line.startswith("!")
    line = line[negated:].removeprefix("\\") if line[:2] in {r"\#", r"\!"} else line[negated:]
    folders_only = line.endswith("/")
    line = line.rstrip("/")
    anchored = "/" in line
    line = line.lstrip("/") if anchored else f"**/{line}"
    try:
        return Rule(re.compile(path_regex(line), re.DOTALL), negated, folders_only) if line else None
    except re.error:
        return None
