"""The `list` tool: lists a folder, subfolders first, then files with their sizes."""

import os
import stat
from collections.abc import Callable, Iterator
from typing import Annotated

from outrider.errors import ToolFailure
from outrider.permissions.paths.gitignore import VCS_FOLDERS
from outrider.tools.tool import Tool, ToolResult, argument_aliases, load_prompt
from outrider.tools.workspace_files import OPEN_FOLDER_FLAGS, WorkspaceFiles, printable_path

MAX_SHOWN = 500
_MAX_DEPTH = 5
_MAX_ENTRIES = 100_000


def list_tool(files: WorkspaceFiles) -> Tool:
    def list_folder(path: str = ".", depth: Annotated[int, "levels, 1 to 5"] = 1) -> ToolResult:
        if not 1 <= depth <= _MAX_DEPTH:
            raise ToolFailure(f"`depth` is from 1 to {_MAX_DEPTH}, got {depth}")
        location = files.locate(path, "list")
        with files.open_folder(location) as folder:
            lines = _list_entries(folder, depth, location.real, files.is_denied)
            shown = [line for line, _ in zip(lines, range(MAX_SHOWN), strict=False)]
            more = next(lines, None) is not None
        text = "\n".join(shown) or "(the folder is empty)"
        if more:
            text += f"\n\n(only the first {MAX_SHOWN} entries; list a folder inside it, or use glob)"
        return ToolResult(text, title=location.display)

    return Tool(
        list_folder,
        name="list",
        description=load_prompt(__file__),
        read_only=True,
        repeatable=True,
        path_parameters=("path",),
        path_operation="list",
        preprocess_args=argument_aliases({"directory": "path", "dir_path": "path", "dir": "path", "file_path": "path"}),
    )


def _list_entries(
    folder: int, depth: int, path: str, is_denied: Callable[[str], bool], indent: str = ""
) -> Iterator[str]:
    with os.scandir(folder) as entries:
        listed = [entry for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False)]
    found = [entry for entry in listed if not is_denied(f"{path}/{entry.name}")]
    found.sort(key=lambda entry: (not entry.is_dir(follow_symlinks=False), entry.name))
    for entry in found:
        yield f"{indent}{printable_path(entry.name)}{_entry_suffix(entry)}"
        if depth > 1 and entry.is_dir(follow_symlinks=False) and entry.name not in VCS_FOLDERS:
            try:
                deeper = os.open(entry.name, OPEN_FOLDER_FLAGS, dir_fd=folder)
            except OSError:
                continue
            try:
                yield from _list_entries(deeper, depth - 1, f"{path}/{entry.name}", is_denied, indent + "  ")
            finally:
                os.close(deeper)


def _entry_suffix(entry: "os.DirEntry[str]") -> str:
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return ""
    if stat.S_ISDIR(found.st_mode):
        return "/"
    if stat.S_ISLNK(found.st_mode):
        return " (link)"
    return f" ({found.st_size:,} bytes)" if stat.S_ISREG(found.st_mode) else " (not a file)"
