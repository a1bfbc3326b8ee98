"""Patterns for paths as in .gitignore: `*` within a name, `**` across folders, a leading slash for the workspace."""

import re
from functools import lru_cache


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    anchored = pattern.startswith("/") or "/" in pattern.rstrip("/")
    parts = [part for part in pattern.split("/") if part not in {"", "."}]
    body = "/".join(_part(part) for part in parts).replace("(?:.*/)?/", "(?:.*/)?").replace("/.*.*", "/.*")
    start = "" if anchored else "(?:.*/)?"
    # What is below a folder belongs to it.
    return re.compile(f"^{start}{body}(?:/.*)?$", re.DOTALL)


def _part(part: str) -> str:
    if part == "**":
        return "(?:.*/)?"
    return "".join(_char(char) for char in part.replace("**", "*"))


def _char(char: str) -> str:
    return {"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char))


def match_path(pattern: str, relative: str) -> bool:
    """Whether a path, given below the workspace, matches."""
    pattern = pattern.strip().removeprefix("./")
    if pattern in {"*", "**", "/**", "/"}:
        return True
    if pattern.endswith("/**"):
        pattern = pattern[:-3] + "/"
    return _compiled(pattern).match(relative) is not None
