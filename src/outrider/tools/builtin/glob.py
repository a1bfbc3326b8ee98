"""The tools `glob`, which finds files by name pattern, and `list`, which lists a folder."""

import os
from pathlib import PurePosixPath
from typing import Annotated

from outrider._sync import ThreadPool
from outrider.errors import ToolFailure
from outrider.tools.definitions import argument_aliases, load_prompt
from outrider.tools.tool import Tool, ToolResult
from outrider.tools.workspace_files import FileLocation, WorkspaceFiles, printable_path
from outrider.types.tool_declaration import ToolDeclaration

MAX_SHOWN = 200
_threads = ThreadPool(4)


def glob_tool(files: WorkspaceFiles) -> Tool:
    async def glob(pattern: str, path: str = "") -> ToolResult:
        from outrider.tools import search  # lazy: loaded with the first search

        path, pattern = _split_pattern(path or ".", pattern)
        regex = search.compile_glob(pattern)
        location: FileLocation = await _threads.run(lambda: files.locate(path, "search"))
        with files.open_folder(location) as folder:
            listed = await search.list_files(folder, location.real)
            names = [name for name in listed if regex.match(name) and not files.is_denied(f"{location.real}/{name}")]
            newest: list[str] = await _threads.run(lambda: _newest_files(folder, names))
        paths = [printable_path(os.path.join(path, name) if path != "." else name) for name in newest]  # noqa: PTH118
        text = "\n".join(paths) or f"No files match {printable_path(pattern)}."
        if len(names) > len(newest):
            text += f"\n\n({len(names):,} files match; these {len(newest)} were changed last. Narrow the pattern.)"
        return ToolResult(text, title=printable_path(pattern), metadata={"count": len(names)})

    return Tool(
        glob,
        description=load_prompt(__file__, "glob"),
        read_only=True,
        repeatable=True,
        declares=ToolDeclaration("read", ("path",), "list", "search", paths_in="glob"),
        timeout=60,
        preprocess_args=argument_aliases({"glob": "pattern", "directory": "path", "dir": "path"}),
    )


def _split_pattern(path: str, pattern: str) -> tuple[str, str]:
    """Splits an absolute pattern into the folder to search and the relative pattern. Raises ToolFailure for `..`."""
    if pattern.startswith(("/", "~")):
        fixed = PurePosixPath(pattern[: len(pattern) - len(pattern.lstrip("/"))] + _literal_folders(pattern))
        return str(fixed), pattern[len(str(fixed)) :].lstrip("/") or "*"
    if ".." in PurePosixPath(pattern).parts:
        raise ToolFailure("a pattern does not climb with `..`; say in `path` where to look")
    return path, pattern


def _literal_folders(pattern: str) -> str:
    """Returns the leading folders of the pattern that contain no wildcard."""
    folders: list[str] = []
    for part in pattern.strip("/").split("/")[:-1]:
        if any(char in part for char in "*?[{"):
            break
        folders.append(part)
    return "/".join(folders)


def _newest_files(folder: int, names: list[str]) -> list[str]:
    def changed(name: str) -> tuple[int, str]:
        try:
            return -os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns, name
        except OSError:
            return 0, name

    return sorted(names, key=changed)[:MAX_SHOWN]


_MAX_DEPTH = 5


def list_tool(files: WorkspaceFiles) -> Tool:
    def list_folder(path: str = ".", depth: Annotated[int, "levels, 1 to 5"] = 1) -> ToolResult:
        if not 1 <= depth <= _MAX_DEPTH:
            raise ToolFailure(f"`depth` is from 1 to {_MAX_DEPTH}, got {depth}")
        location = files.locate(path, "list")
        return ToolResult(files.list_folder(location, depth), title=location.display)

    return Tool(
        list_folder,
        name="list",
        description=load_prompt(__file__, "list"),
        read_only=True,
        repeatable=True,
        path_parameters=("path",),
        path_operation="list",
        preprocess_args=argument_aliases({"directory": "path", "dir_path": "path", "dir": "path", "file_path": "path"}),
    )
