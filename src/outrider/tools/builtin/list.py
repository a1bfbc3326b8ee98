"""The `list` tool: lists a folder, subfolders first, then files with their sizes."""

from typing import Annotated

from outrider.errors import ToolFailure
from outrider.tools.tool import Tool, ToolResult, argument_aliases, load_prompt
from outrider.tools.workspace_files import WorkspaceFiles

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
        description=load_prompt(__file__),
        read_only=True,
        repeatable=True,
        path_parameters=("path",),
        path_operation="list",
        preprocess_args=argument_aliases({"directory": "path", "dir_path": "path", "dir": "path", "file_path": "path"}),
    )
