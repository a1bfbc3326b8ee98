"""Paths that deny rules for `read` hide: from every file tool, from attachments and from sandboxed commands."""

import glob
import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from time import monotonic

from outrider.permissions.paths.gitignore import VCS_FOLDERS
from outrider.permissions.rules import match_path_rule, parse_rule
from outrider.types.tool_declaration import declaration_of

_MAX_ENTRIES = 20_000  # of a workspace that are compared with patterns
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
        folders, left = [self._root], _MAX_ENTRIES
        while folders and left > 0:
            try:
                with os.scandir(folders.pop(0)) as entries:
                    found = list(islice(entries, left))
            except OSError:
                continue
            left -= len(found)
            for entry in found:
                if self.includes(entry.path):
                    yield entry.path
                elif entry.is_dir(follow_symlinks=False) and entry.name not in VCS_FOLDERS:
                    folders.append(entry.path)
