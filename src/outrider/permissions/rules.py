"""Rules `tool(pattern)`: what they match, and how far they reach."""

import re
import shlex
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from outrider.permissions.modes import canonical

_RULE = re.compile(r"^\s*(?P<tool>[A-Za-z0-9_.:*?/-]+)\s*(?:\((?P<pattern>.*)\))?\s*$", re.DOTALL)
_URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class Rule(Struct, frozen=True):
    """`pattern` None: every call of the tool. `broken` says why the text is no rule."""

    text: str
    tool: str
    pattern: str | None = None
    words: tuple[str, ...] = ()
    open: bool = False  # ends in ` *`: any further arguments
    broken: str | None = None

    def names(self, tool: str) -> bool:
        return fnmatchcase(canonical(tool), canonical(self.tool))


@lru_cache(maxsize=1024)
def parse_rule(text: str) -> Rule:
    """Never raises: a rule that cannot be read is broken, and whoever uses it decides what is safe then."""
    found = _RULE.match(text)
    if not found:
        return Rule(text, "*", broken="it is not of the form tool(pattern)")
    tool, pattern = found["tool"], found["pattern"]
    if pattern is None or pattern.strip() == "*":
        return Rule(text, tool)
    if canonical(tool) not in {"shell", "process"}:
        return Rule(text, tool, pattern.strip())
    return _shell_rule(text, tool, pattern.strip())


def _shell_rule(text: str, tool: str, pattern: str) -> Rule:
    """Words as the shell takes them apart; ` *` or the older `:*` at the end opens it."""
    is_open = pattern.endswith((" *", ":*"))
    try:
        words = tuple(shlex.split(pattern[:-2] if is_open else pattern))
    except ValueError:
        return Rule(text, tool, pattern, broken="its quotes are not closed")
    if not words:
        return Rule(text, tool, pattern, broken="it names no program")
    return Rule(text, tool, pattern, words, is_open)


def match_words(rule: Rule, words: Sequence[str]) -> int | None:
    """How many words of a command the rule itself names; None: it does not match."""
    named = len(rule.words)
    if len(words) < named or (len(words) > named and not rule.open):
        return None
    for wanted, given in zip(rule.words, words, strict=False):
        if wanted != given and not _ends_openly(wanted, given):
            return None
    return named


def _ends_openly(wanted: str, given: str) -> bool:
    """`word*` stands for words that begin so; in an address it never reaches past the machine's name."""
    if not wanted.endswith("*") or "*" in wanted[:-1]:
        return False
    if not _URL.match(wanted):
        return given.startswith(wanted[:-1]) and not any(part == ".." for part in given.split("/"))
    return match_address(wanted, given)


def match_address(wanted: str, given: str) -> bool:
    """An address by parts: scheme and machine are equal, the path begins as the pattern does."""
    try:
        pattern, address = urlsplit(wanted.removesuffix("*")), urlsplit(given)
        same = (pattern.scheme, pattern.hostname, _port(pattern)) == (address.scheme, address.hostname, _port(address))
    except ValueError:
        return False
    if not same or address.username is not None or address.password is not None or "\\" in given:
        return False
    if not pattern.path:
        return not wanted.endswith("*")
    path_and_query = address.path + ("?" + address.query if address.query else "")
    if ".." in address.path.split("/"):
        return False
    return path_and_query.startswith(pattern.path) if wanted.endswith("*") else path_and_query == pattern.path


def _port(address: SplitResult) -> int | None:
    return address.port or {"http": 80, "https": 443}.get(address.scheme)


def match_host(pattern: str, url: str) -> bool:
    """`example.org`, `*.example.org`, `example.org:8443`, or a whole address; `domain:` before it is allowed."""
    pattern = pattern.removeprefix("domain:").strip()
    if _URL.match(pattern):
        return match_address(pattern, url)
    try:
        address = urlsplit(url)
        port = _port(address)
    except ValueError:
        return False
    if address.scheme not in {"http", "https"} or address.username is not None or not address.hostname or "\\" in url:
        return False
    host, _, wanted_port = pattern.lower().partition(":")
    if wanted_port and wanted_port != str(port):
        return False
    given = address.hostname.rstrip(".")
    return given.endswith(host[1:]) and given != host[2:] if host.startswith("*.") else given == host


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
