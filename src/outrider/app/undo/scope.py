"""Which calls may change files behind everybody's back, so that only a look at the whole workspace tells."""

from pathlib import Path

from outrider.permissions.tools import shape_of
from outrider.tools.tool import Tool
from outrider.types.parts import ToolPart


def may_change_anything(call: ToolPart, tool: Tool, workspace: Path, *, built_in: bool) -> bool:
    """Built-in tools that write tell which files; commands and foreign tools do not, unless they are known to read
    only. What a process in the background does belongs to the call that started it."""
    if tool.read_only or tool.options.delegates:
        return False
    if not built_in:
        return True
    if shape_of(tool.name).kind != "shell" or tool.name == "process":
        return False
    from outrider.permissions.assess import assess  # with the first command: a shell's grammar takes long to load

    return assess(tool.name, call.state.input, workspace=str(workspace)).action != "shell that reads"
