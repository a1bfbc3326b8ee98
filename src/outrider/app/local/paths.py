"""The names of a workspace's files, for a small model: it can name only those, and is told which may be meant."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from outrider.types.parts import TextPart
from outrider.types.request import Request

MOST: Final = 300  # more names to choose from would slow every token down
MEANT: Final = 6
_LOOKED_AT = 5_000
_SKIPPED = {"__pycache__", "node_modules", "venv", "dist", "build", "target"}
_PATH_LIKE = re.compile(r"[\w./~-]*\w\.[A-Za-z]\w{0,7}\b|[\w.~-]+/[\w./~-]+")
_WORD = re.compile(r"\w+")
_SHORTEST = 3


class WorkspaceNames:
    """Looks at the disk for each request: the model itself makes files. What is hidden is left out."""

    def existing(self, request: Request) -> Sequence[str]:
        """Those of the workspace, and those that the user has written: a file that is not there must be nameable, or
        another one would be read in its place."""
        found = _files(request.workspace)
        if not found or len(found) > MOST:
            return ()
        others = [name for name in _mentioned(request) if not any(_ends_with(path, name) for path in found)]
        return list(dict.fromkeys([*found, *others]))

    def meant(self, request: Request, text: str) -> Sequence[str]:
        """Files whose names, or the words in them, occur in the text; the likeliest come first."""
        words, named = {word.lower() for word in _WORD.findall(text)}, set(_PATH_LIKE.findall(text))
        weight = {path: _weight(path, words, named) for path in _files(request.workspace)}
        likely = sorted((path for path in weight if weight[path]), key=lambda path: (-weight[path], len(path), path))
        return likely[:MEANT]


def _files(workspace: str) -> list[str]:
    if not workspace:
        return []
    return sorted(name for name, _ in zip(_walked(Path(workspace)), range(_LOOKED_AT), strict=False))


def _walked(folder: Path) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED and not name.startswith("."))
        relative = os.path.relpath(place, folder)
        prefix = "" if relative == "." else f"{relative}/"
        yield from (f"{prefix}{name}" for name in names if not name.startswith("."))


def _mentioned(request: Request) -> Iterator[str]:
    """Names in the last request of the user."""
    for message in reversed(request.prompt):
        texts = [part.text for part in message.content if isinstance(part, TextPart)]
        if message.role == "user" and texts:
            yield from (found.rstrip(".") for text in texts for found in _PATH_LIKE.findall(text)[:20])
            return


def _ends_with(path: str, name: str) -> bool:
    return f"/{path}".endswith(f"/{name.removeprefix('./')}")


def _weight(path: str, words: set[str], named: set[str]) -> int:
    """A file that is called by its name outweighs any that only share words with the text."""
    by_name = any(_ends_with(path, name) for name in named)
    return (100 if by_name else 0) + len(_words(path) & words)


def _words(path: str) -> set[str]:
    """The words of a file's own name; folders say too little, and so do the underscores that Python puts around one."""
    stem = PurePosixPath(path).stem.lower().strip("_")
    return {word for word in [stem, *re.split(r"[_\W]+", stem)] if len(word) >= _SHORTEST}
