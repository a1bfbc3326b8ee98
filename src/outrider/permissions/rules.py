"""Matches permission rules against commands, paths and hosts; finds the files that deny rules hide."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from time import monotonic
from urllib.parse import SplitResult, urlsplit

from outrider._lazy import lazy_pattern
from outrider._posix import is_within
from outrider.types.tool_declaration import PermissionRule, declaration_of, parse_rule

_URL = lazy_pattern(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def match_words(rule: PermissionRule, words: Sequence[str], *, prefix: bool = False) -> int | None:
    """Returns how many words of the command the rule names explicitly, or None if it does not match. With `prefix`, a
    command may have more words than any rule names."""
    named = len(rule.words)
    if len(words) < named or (len(words) > named and not (rule.open_ended or prefix)):
        return None
    for position, (expected, word) in enumerate(zip(rule.words, words, strict=False)):
        if expected != word and not (position in rule.wildcards and _matches_wildcard(expected, word)):
            return None
    return named


def _matches_wildcard(expected: str, word: str) -> bool:
    """Matches `prefix*` by prefix. For a URL the wildcard applies to the path only, never to the host name."""
    if not expected.endswith("*") or "*" in expected[:-1]:
        return False
    if not _URL.match(expected):
        return word.startswith(expected[:-1]) and not any(part == ".." for part in word.split("/"))
    return match_url(expected, word)


def match_url(pattern_text: str, url: str) -> bool:
    """Compares a URL by component: equal scheme, host and port, and a path that starts with the pattern's path."""
    try:
        pattern, address = urlsplit(pattern_text.removesuffix("*")), urlsplit(url)
        same_server = (pattern.scheme, pattern.hostname, _effective_port(pattern)) == (
            address.scheme,
            address.hostname,
            _effective_port(address),
        )
    except ValueError:
        return False
    if not same_server or address.username is not None or address.password is not None or "\\" in url:
        return False
    if not pattern.path:
        return not pattern_text.endswith("*")
    path_and_query = address.path + ("?" + address.query if address.query else "")
    if ".." in address.path.split("/"):
        return False
    return path_and_query.startswith(pattern.path) if pattern_text.endswith("*") else path_and_query == pattern.path


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
    hostname = address.hostname.rstrip(".")
    return hostname.endswith(host[1:]) and hostname != host[2:] if host.startswith("*.") else hostname == host


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


def match_path_rule(pattern: str, real: str, root: str) -> bool:
    """Matches a resolved path: inside the workspace by a relative pattern, anywhere by an absolute one such as
    `//etc/hosts` or `~/x`."""
    if pattern.startswith(("//", "~/")):
        return match_path("/" + os.path.expanduser(pattern).lstrip("/"), real.lstrip("/"))  # noqa: PTH111
    if not is_within(real, root):
        return False
    return match_path(pattern, real[len(root) :].strip("/"))


def allows_writing(rules: Sequence[PermissionRule], paths: Sequence[str], *, root: str) -> bool:
    """Returns whether outcome rules allow writing to all of these absolute paths."""
    patterns = [rule.pattern or "" for rule in rules if rule.right == "write"]
    return all(any(match_path_rule(pattern, path, root) for pattern in patterns) for path in paths)


def allows_hosts(rules: Sequence[PermissionRule], hosts: Sequence[str]) -> bool:
    """Returns whether outcome rules allow access to all of these hosts, each with an optional port."""
    patterns = [rule.pattern or "" for rule in rules if rule.right == "reach"]
    return all(any(match_host(pattern, f"https://{host}") for pattern in patterns) for host in hosts)


_MAX_ENTRIES = 20_000  # of a workspace that are compared with the patterns
_MAX_FOUND = 200
_CACHE_SECONDS = 2.0
_WILDCARDS = frozenset("*?")


class DeniedReads:
    """What the rules `deny read(pattern)` hide in one workspace."""

    def __init__(self, deny: Iterable[str], workspace: str | Path) -> None:
        self._deny = tuple(deny)
        self._workspace = workspace
        self._found: tuple[Path, ...] = ()
        self._found_at = -_CACHE_SECONDS

    @cached_property
    def _root(self) -> str:
        return os.path.realpath(self._workspace)

    @cached_property
    def _patterns(self) -> tuple[str, ...]:
        rules = map(parse_rule, self._deny)
        return tuple(rule.pattern for rule in rules if rule.pattern and declaration_of(rule.tool).kind == "read")

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def includes(self, real_path: str) -> bool:
        """Returns whether a resolved path is denied."""
        return any(match_path_rule(pattern, real_path, self._root) for pattern in self._patterns)

    def find_paths(self) -> tuple[Path, ...]:
        """Returns the denied paths that exist, for the sandbox to hide. The search for patterns is bounded."""
        if not self._patterns:
            return ()
        if monotonic() - self._found_at >= _CACHE_SECONDS:
            self._found = tuple(map(Path, dict.fromkeys(islice(self._search(), _MAX_FOUND))))
            self._found_at = monotonic()
        return self._found

    def _search(self) -> Iterator[str]:
        import glob  # lazy: most users deny no path

        searched = False
        for pattern in self._patterns:
            if pattern.startswith(("//", "~/")):
                absolute = "/" + os.path.expanduser(pattern).lstrip("/").removesuffix("/**")  # noqa: PTH111
                yield from glob.iglob(absolute, recursive=True, include_hidden=True)  # noqa: PTH207
            elif _WILDCARDS.isdisjoint(fixed := pattern.removesuffix("/**").strip("/")) and (
                "/" in fixed or pattern.startswith("/")
            ):
                yield os.path.join(self._root, fixed)  # noqa: PTH118
            else:
                searched = True
        if searched:
            yield from self._walk()

    def _walk(self) -> Iterator[str]:
        """Yields denied files and folders of the workspace; a denied folder is not entered."""
        from outrider.permissions.paths.gitignore import VCS_FOLDERS

        folders, remaining = [self._root], _MAX_ENTRIES
        while folders and remaining > 0:
            try:
                with os.scandir(folders.pop(0)) as entries:
                    listed = list(islice(entries, remaining))
            except OSError:
                continue
            remaining -= len(listed)
            for entry in listed:
                if self.includes(entry.path):
                    yield entry.path
                elif entry.is_dir(follow_symlinks=False) and entry.name not in VCS_FOLDERS:
                    folders.append(entry.path)
