"""The names of the files that a workspace holds, so that a small model names none that do not exist."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from outrider.types.parts import TextPart
from outrider.types.request import Request

MOST = 300  # more names would slow every token down
_LOOKED_AT = 5_000
_SKIPPED = {"__pycache__", "node_modules", "venv", "dist", "build", "target"}
_PATH_LIKE = re.compile(r"[\w./~-]*\w\.\w{1,8}\b|[\w.~-]+/[\w./~-]+")


def paths_for(request: Request) -> Sequence[str]:
    """Those of the workspace and those that the user has written; none where there are too many to choose from."""
    if not request.workspace:
        return ()
    found = sorted(name for name, _ in zip(_files(Path(request.workspace)), range(_LOOKED_AT), strict=False))
    if len(found) > MOST:
        return ()
    return list(dict.fromkeys([*found, *_mentioned(request)])) if found else ()


def _files(folder: Path) -> Iterator[str]:
    """Without what is hidden: a model that is asked for such a file can still use the shell, and be asked about it."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED and not name.startswith("."))
        yield from (os.path.relpath(Path(place, name), folder) for name in names if not name.startswith("."))


def _mentioned(request: Request) -> Iterator[str]:
    """A file that is not there must be nameable, or another one would be read in its place."""
    for message in reversed(request.prompt):
        texts = [part.text for part in message.content if isinstance(part, TextPart)]
        if message.role == "user" and texts:
            yield from (found.strip("./") or "." for text in texts for found in _PATH_LIKE.findall(text)[:20])
            return
