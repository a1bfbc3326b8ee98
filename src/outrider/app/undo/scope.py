"""Which calls may change files behind everybody's back, so that only a look at the whole workspace tells."""

from pathlib import Path

from outrider.permissions.tools import shape_of
from outrider.tools.tool import Tool
from outrider.types.parts import ToolPart


def may_change_anything(call: ToolPart, tool: Tool, workspace: Path, *, built_in: bool) -> bool:
    """Built-in tools that write tell which files; commands, one's own and foreign tools do not, unless they are
    known to read only. What a process in the background does belongs to the call that started it."""
    if tool.read_only or tool.options.delegates:
        return False
    match shape_of(tool.name).kind if built_in else "unknown":
        case "unknown":
            return True
        case "shell" if tool.name != "process":
            return not _only_reads(call, workspace)
        case _:
            return False


def _only_reads(call: ToolPart, workspace: Path) -> bool:
    from outrider.permissions.assess import assess  # with the first command: a shell's grammar takes long to load

    return assess(call.tool, call.state.input, workspace=str(workspace)).action == "shell that reads"
