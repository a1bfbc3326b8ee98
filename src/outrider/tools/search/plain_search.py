"""A search without ripgrep: slower, with Python's regular expressions, by the same rules."""

import os
import re
import stat
from collections.abc import Iterator

from outrider.errors import ToolFailure
from outrider.tools.files.folders import FILE
from outrider.tools.search.query import LONGEST_LINE, MOST_HITS, Hit, Query, Scope
from outrider.tools.search.walk import walk
from outrider.tools.text.encoding import detect

_LARGEST = 10 * 1024 * 1024
_TYPES = {
    "js": "js,jsx,mjs,cjs", "ts": "ts,tsx,mts,cts", "rust": "rs", "python": "py,pyi", "py": "py,pyi", "ruby": "rb",
    "md": "md,markdown", "markdown": "md,markdown", "cpp": "cpp,cc,cxx,hpp,hh,h", "c": "c,h", "yaml": "yml,yaml",
    "sh": "sh,bash,zsh",
    "html": "html,htm", "kotlin": "kt,kts", "csharp": "cs",
}  # fmt: skip


def plain_search(query: Query, scope: Scope) -> list[Hit]:
    try:
        regex = re.compile(query.pattern, _flags(query))
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolFailure(f"not a regular expression: {error}") from error
    found: list[Hit] = []
    for path in [scope.target] if scope.target != "." else _wanted(query, scope):
        text = _text(scope.folder, path)
        found += _hits(query, regex, path, text) if text is not None else []
        if len(found) >= MOST_HITS:
            break
    return found


def _flags(query: Query) -> int:
    return re.MULTILINE | (re.IGNORECASE if query.ignore_case else 0) | (re.DOTALL if query.multiline else 0)


def _wanted(query: Query, scope: Scope) -> Iterator[str]:
    endings = tuple(f".{ending}" for ending in _TYPES.get(query.type or "", query.type or "").split(",") if ending)
    return (path for path in walk(scope.folder) if scope.wanted(path) and (not endings or path.endswith(endings)))


def _text(folder: int, path: str) -> str | None:
    """None for what is no text, too large, or gone."""
    try:
        descriptor = os.open(path, FILE, dir_fd=folder)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            return None
        raw = file.read(_LARGEST)
    encoding = detect(raw)
    return encoding.decode(raw) if encoding else None


def _hits(query: Query, regex: "re.Pattern[str]", path: str, text: str) -> Iterator[Hit]:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()  # after the last line ending there is no line
    matching = _across(regex, text) if query.multiline else [n for n, line in enumerate(lines) if regex.search(line)]
    if not matching:
        return
    if query.mode != "content":
        yield Hit(path, 0, str(len(matching)) if query.mode == "count" else "", matches=True)
        return
    around = range(-query.context, query.context + 1)
    shown = {n + by for n in matching for by in around if 0 <= n + by < len(lines)}
    found = set(matching)
    for n in sorted(shown):
        yield Hit(path, n + 1, lines[n].rstrip("\r")[:LONGEST_LINE], matches=n in found)


def _across(regex: "re.Pattern[str]", text: str) -> list[int]:
    found: set[int] = set()
    for match in regex.finditer(text):
        first = text.count("\n", 0, match.start())
        found.update(range(first, first + match.group().count("\n") + 1))
    return sorted(found)
