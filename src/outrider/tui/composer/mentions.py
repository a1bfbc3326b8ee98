"""Files that a text names by `@path`, and paths that terminals paste when a file is dropped on them."""

import re
import shlex
from pathlib import Path

from outrider.app.views.files import attached, is_attachable
from outrider.types.parts import FilePart

_MENTION = re.compile(r"(?:^|(?<=\s))@(\"[^\"]+\"|\S+)")
_TRAILING = ".,;:!?)]}'\""


def attachments(text: str, workspace: Path) -> tuple[list[FilePart], list[str]]:
    """The images and documents that go along, and complaints about those that cannot."""
    files: list[FilePart] = []
    complaints: list[str] = []
    for path in dict.fromkeys(_paths(text, workspace)):
        try:
            files.append(attached(path))
        except (OSError, ValueError) as error:
            complaints.append(str(error))
    return files, complaints


def dropped_path(text: str) -> Path | None:
    """The file that a paste consists of, if it is one that can go along."""
    text = text.strip()
    if not text or "\n" in text or len(text) > 4096:
        return None
    try:
        words = shlex.split(text.removeprefix("file://"))
    except ValueError:
        return None
    path = Path(words[0]).expanduser() if len(words) == 1 else None
    return path if path is not None and path.is_absolute() and is_attachable(path) else None


def _paths(text: str, workspace: Path) -> list[Path]:
    found: list[Path] = []
    for match in _MENTION.finditer(text):
        name = match[1].strip('"')
        for candidate in (name, name.rstrip(_TRAILING)):
            path = workspace / Path(candidate).expanduser()
            if is_attachable(path):
                found.append(path)
                break
    return found
