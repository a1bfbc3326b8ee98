"""Parses permission rules of the form `tool(pattern)` and matches them against commands, paths and hosts."""

import re
import shlex
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from outrider.types.tool_declaration import canonical_tool

_RULE = re.compile(r"^\s*(?P<tool>[A-Za-z0-9_.:*?/-]+)\s*(?:\((?P<pattern>.*)\))?\s*$", re.DOTALL)
_URL = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class PermissionRule(Struct, frozen=True):
    """A parsed rule. A `pattern` of None matches every call of the tool; `parse_error` is set if the text is
    invalid."""

    text: str
    tool: str
    pattern: str | None = None
    words: tuple[str, ...] = ()
    open_ended: bool = False  # ends in ` *` and so allows further arguments
    parse_error: str | None = None

    def matches_tool(self, tool: str) -> bool:
        return fnmatchcase(canonical_tool(tool), canonical_tool(self.tool))


@lru_cache(maxsize=1024)
def parse_rule(text: str) -> PermissionRule:
    """Parses a rule; never raises. An invalid rule has `parse_error` set: deny and ask still apply it, allow ignores
    it."""
    found = _RULE.match(text)
    if not found:
        return PermissionRule(text, "*", parse_error="it does not have the form tool(pattern)")
    tool, pattern = found["tool"], found["pattern"]
    if pattern is None or pattern.strip() == "*":
        return PermissionRule(text, tool)
    if canonical_tool(tool) not in {"shell", "process"}:
        return PermissionRule(text, tool, pattern.strip())
    return _shell_rule(text, tool, pattern.strip())


def _shell_rule(text: str, tool: str, pattern: str) -> PermissionRule:
    """Splits the pattern into shell words; a trailing ` *` or the older `:*` makes the rule open-ended."""
    is_open = pattern.endswith((" *", ":*"))
    try:
        words = tuple(shlex.split(pattern[:-2] if is_open else pattern))
    except ValueError:
        return PermissionRule(text, tool, pattern, parse_error="its quotes are not closed")
    if not words:
        return PermissionRule(text, tool, pattern, parse_error="it names no program")
    return PermissionRule(text, tool, pattern, words, is_open)


def match_words(rule: PermissionRule, words: Sequence[str]) -> int | None:
    """Returns how many words of the command the rule names explicitly, or None if it does not match."""
    named = len(rule.words)
    if len(words) < named or (len(words) > named and not rule.open_ended):
        return None
    for wanted, given in zip(rule.words, words, strict=False):
        if wanted != given and not _matches_wildcard(wanted, given):
            return None
    return named


def _matches_wildcard(wanted: str, given: str) -> bool:
    """Matches `prefix*` by prefix. For a URL the wildcard applies to the path only, never to the host name."""
    if not wanted.endswith("*") or "*" in wanted[:-1]:
        return False
    if not _URL.match(wanted):
        return given.startswith(wanted[:-1]) and not any(part == ".." for part in given.split("/"))
    return match_url(wanted, given)


def match_url(wanted: str, given: str) -> bool:
    """Compares a URL by component: equal scheme, host and port, and a path that starts with the pattern's path."""
    try:
        pattern, address = urlsplit(wanted.removesuffix("*")), urlsplit(given)
        same = (pattern.scheme, pattern.hostname, _effective_port(pattern)) == (
            address.scheme,
            address.hostname,
            _effective_port(address),
        )
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


def _effective_port(address: SplitResult) -> int | None:
    return address.port or {"http": 80, "https": 443}.get(address.scheme)


def match_host(pattern: str, url: str) -> bool:
    """Matches a URL against `example.org`, `*.example.org`, `example.org:8443` or a full URL, with optional
    `domain:`."""
    pattern = pattern.removeprefix("domain:").strip()
    if _URL.match(pattern):
        return match_url(pattern, url)
    try:
        address = urlsplit(url)
        port = _effective_port(address)
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
def _compile_path_pattern(pattern: str) -> re.Pattern[str]:
    anchored = pattern.startswith("/") or "/" in pattern.rstrip("/")
    parts = [part for part in pattern.split("/") if part not in {"", "."}]
    body = (
        "/".join(_translate_component(part) for part in parts).replace("(?:.*/)?/", "(?:.*/)?").replace("/.*.*", "/.*")
    )
    start = "" if anchored else "(?:.*/)?"
    # A pattern that matches a folder also matches everything below it.
    return re.compile(f"^{start}{body}(?:/.*)?$", re.DOTALL)


def _translate_component(part: str) -> str:
    if part == "**":
        return "(?:.*/)?"
    return "".join(_translate_char(char) for char in part.replace("**", "*"))


def _translate_char(char: str) -> str:
    return {"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char))


def match_path(pattern: str, relative: str) -> bool:
    """Returns whether a path relative to the workspace matches a gitignore-like pattern."""
    pattern = pattern.strip().removeprefix("./")
    if pattern in {"*", "**", "/**", "/"}:
        return True
    if pattern.endswith("/**"):
        pattern = pattern[:-3] + "/"
    return _compile_path_pattern(pattern).match(relative) is not None
