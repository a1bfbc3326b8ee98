"""Finds files by their names, those changed last first."""

import os
from pathlib import PurePosixPath
from typing import Annotated

from outrider.errors import ToolFailure
from outrider.tools import search
from outrider.tools.threads import Threads
from outrider.tools.tool import Tool, ToolResult, argument_aliases, prompt_beside
from outrider.tools.workspace_files import Files, Place, printable

SHOWN = 200
_threads = Threads(4)


def glob_tool(files: Files) -> Tool:
    async def glob(pattern: str, path: Annotated[str, "folder"] = ".") -> ToolResult:
        path, pattern = _split(path, pattern)
        regex = search.path_pattern(pattern)
        place: Place = await _threads.run(lambda: files.locate(path, "search"))
        with files.folder(place) as folder:
            names = [name for name in await search.list_files(folder, place.real) if regex.match(name)]
            newest: list[str] = await _threads.run(lambda: _newest(folder, names))
        shown = [printable(os.path.join(path, name) if path != "." else name) for name in newest]  # noqa: PTH118
        text = "\n".join(shown) or f"No files match {printable(pattern)}."
        if len(names) > len(newest):
            text += f"\n\n({len(names):,} files match; these {len(newest)} were changed last. Narrow the pattern.)"
        return ToolResult(text, title=printable(pattern), metadata={"count": len(names)})

    return Tool(
        glob,
        description=prompt_beside(__file__),
        read_only=True,
        repeatable=True,
        timeout=60,
        preprocess_args=argument_aliases({"glob": "pattern", "directory": "path", "dir": "path"}),
    )


def _split(path: str, pattern: str) -> tuple[str, str]:
    """An absolute pattern, or one that begins with folders, says where to look."""
    if pattern.startswith(("/", "~")):
        fixed = PurePosixPath(pattern[: len(pattern) - len(pattern.lstrip("/"))] + _fixed(pattern))
        return str(fixed), pattern[len(str(fixed)) :].lstrip("/") or "*"
    if ".." in PurePosixPath(pattern).parts:
        raise ToolFailure("a pattern does not climb with `..`; say in `path` where to look")
    return path, pattern


def _fixed(pattern: str) -> str:
    """The folders before the first one that has a wildcard."""
    folders: list[str] = []
    for part in pattern.strip("/").split("/")[:-1]:
        if any(char in part for char in "*?[{"):
            break
        folders.append(part)
    return "/".join(folders)


def _newest(folder: int, names: list[str]) -> list[str]:
    def changed(name: str) -> tuple[int, str]:
        try:
            return -os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns, name
        except OSError:
            return 0, name

    return sorted(names, key=changed)[:SHOWN]
