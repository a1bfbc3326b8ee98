"""Lists a folder: its folders, then its files with their sizes."""

import os
import stat
from collections.abc import Iterator
from typing import Annotated

from outrider.errors import ToolFailure
from outrider.permissions.paths.gitignore import REPOSITORIES
from outrider.tools.tool import Tool, ToolResult, argument_aliases, prompt_beside
from outrider.tools.workspace_files import FOLDER, Files, printable

SHOWN = 500
_DEEPEST = 5
_MOST_ENTRIES = 100_000


def list_tool(files: Files) -> Tool:
    def list_folder(path: str = ".", depth: Annotated[int, "levels, 1 to 5"] = 1) -> ToolResult:
        if not 1 <= depth <= _DEEPEST:
            raise ToolFailure(f"`depth` is from 1 to {_DEEPEST}, got {depth}")
        place = files.locate(path, "list")
        with files.folder(place) as folder:
            lines = _lines(folder, depth)
            shown = [line for line, _ in zip(lines, range(SHOWN), strict=False)]
            more = next(lines, None) is not None
        text = "\n".join(shown) or "(the folder is empty)"
        if more:
            text += f"\n\n(only the first {SHOWN} entries; list a folder inside it, or use glob)"
        return ToolResult(text, title=place.shown)

    return Tool(
        list_folder,
        name="list",
        description=prompt_beside(__file__),
        read_only=True,
        repeatable=True,
        preprocess_args=argument_aliases({"directory": "path", "dir_path": "path", "dir": "path", "file_path": "path"}),
    )


def _lines(folder: int, depth: int, indent: str = "") -> Iterator[str]:
    with os.scandir(folder) as entries:
        found = [entry for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False)]
    found.sort(key=lambda entry: (not entry.is_dir(follow_symlinks=False), entry.name))
    for entry in found:
        yield f"{indent}{printable(entry.name)}{_mark(entry)}"
        if depth > 1 and entry.is_dir(follow_symlinks=False) and entry.name not in REPOSITORIES:
            yield from _inside(folder, entry.name, depth - 1, indent + "  ")


def _inside(folder: int, name: str, depth: int, indent: str) -> Iterator[str]:
    try:
        deeper = os.open(name, FOLDER, dir_fd=folder)
    except OSError:
        return
    try:
        yield from _lines(deeper, depth, indent)
    finally:
        os.close(deeper)


def _mark(entry: "os.DirEntry[str]") -> str:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return ""
    if stat.S_ISDIR(found.st_mode):
        return "/"
    if stat.S_ISLNK(found.st_mode):
        return " (link)"
    return f" ({found.st_size:,} bytes)" if stat.S_ISREG(found.st_mode) else " (not a file)"
