"""The files of a workspace that somebody may want to name, and files that go along with what is said."""

import asyncio
import base64
import mimetypes
import os
from pathlib import Path

from outrider.app.screen import shows_everything
from outrider.tools.search.listing import list_files
from outrider.types.parts import FilePart, FileSource

MOST = 30_000
LARGEST = 20 * 1024 * 1024
_ATTACHED = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")


async def workspace_files(workspace: Path) -> list[str]:
    """Relative paths of what is not ignored, those near the top first; at most MOST, and none that a terminal could
    not show as it is."""
    try:
        folder = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return []
    try:
        found = await list_files(folder, str(workspace))
    finally:
        os.close(folder)
    return await asyncio.to_thread(_ordered, found)


def _ordered(names: list[str]) -> list[str]:
    shown = (name for name in names if shows_everything(name))
    return sorted(shown, key=lambda name: (name.count("/"), name))[:MOST]


def is_attachable(path: Path) -> bool:
    """Whether a file goes along as it is (an image, a PDF) instead of being read by a tool."""
    return mimetypes.guess_type(path.name)[0] in _ATTACHED and path.is_file()


def attached(path: Path) -> FilePart:
    """Raises OSError for a file that cannot be read, and ValueError for one that is too large."""
    size = path.stat().st_size
    if size > LARGEST:
        raise ValueError(f"{path.name} has {size / 1024**2:.0f} MB; at most {LARGEST // 1024**2} can go along")
    mime = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    content = base64.b64encode(path.read_bytes()).decode()
    return FilePart(mime, f"data:{mime};base64,{content}", path.name, FileSource(str(path)))
