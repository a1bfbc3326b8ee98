"""What a tool declares about its calls: what they do, which parameters name paths or URLs, and how they are shown.

A `Tool` declares this with its options; its name says nothing. Where only the name of a tool is known (rules, stored
calls, tools of other agents), the table of names here applies; a new tool needs no row.
"""

from collections.abc import Mapping
from typing import Any, Literal, Protocol, cast

from msgspec import Struct

from outrider.types.origins import Origins

ToolKind = Literal["read", "write", "shell", "network", "talk", "delegate", "unknown"]
CallKind = Literal["read", "edit", "search", "execute", "fetch", "think", "agent", "other"]
"""How front ends group and show calls."""
PathOperation = Literal["read", "list", "search", "write", "edit", "change"]


class ToolDeclaration(Struct, frozen=True):
    """What calls of a tool do. `parameters` lists the parameters that name their file, command or URL.

    `operation` is what happens to the paths. `network` is True for a file tool that also connects to other hosts.
    `origins` is what results carry, if it does not follow from the kind; `destination` is where arguments are sent.
    `paths_in` says where the paths are: in the values, in the text of a patch, or also at the start of a glob pattern.
    `controls_process`: a call without a command acts on a process that runs already.
    """

    kind: ToolKind
    parameters: tuple[str, ...] = ()
    operation: PathOperation = "read"
    display: CallKind = "other"
    network: bool = False
    origins: Origins | None = None
    destination: str = ""
    paths_in: Literal["value", "patch", "glob"] = "value"
    controls_process: bool = False


class DeclaredTool(Protocol):
    """A tool that declares what its calls do, such as a `Tool`."""

    @property
    def name(self) -> str: ...
    @property
    def declaration(self) -> ToolDeclaration: ...


UNKNOWN_TOOL = ToolDeclaration("unknown")
_FILES = ("file_path", "path", "filename", "file")
_FOLDERS = ("path", "directory", "dir", "cwd")
KNOWN_NAMES: dict[str, ToolDeclaration] = {
    "read": ToolDeclaration("read", _FILES, display="read"),
    "list": ToolDeclaration("read", _FOLDERS, "list", display="read"),
    "glob": ToolDeclaration("read", _FOLDERS, "list", display="search", paths_in="glob"),
    "grep": ToolDeclaration("read", _FOLDERS, "search", display="search"),
    "write": ToolDeclaration("write", _FILES, "write", display="edit"),
    "edit": ToolDeclaration("write", _FILES, "edit", display="edit"),
    "apply_patch": ToolDeclaration("write", ("patch", "input", "diff"), "write", display="edit", paths_in="patch"),
    "shell": ToolDeclaration("shell", ("command", "cmd", "script"), display="execute"),
    "process": ToolDeclaration("shell", ("command", "cmd"), display="execute", controls_process=True),
    "web_fetch": ToolDeclaration("network", ("url", "address"), display="fetch"),
    "web_search": ToolDeclaration("network", ("url", "query")),
    "todo": ToolDeclaration("talk", display="think"),
    "question": ToolDeclaration("talk", display="think"),
    "finish": ToolDeclaration("talk"),
    "skill": ToolDeclaration("talk", display="read"),
    "task": ToolDeclaration("delegate", display="agent"),
    "call_agent": ToolDeclaration("delegate", display="agent"),
}
_ALIASES = {"bash": "shell", "sh": "shell", "execute": "shell", "ls": "list", "search": "grep", "multi_edit": "edit",
            "patch": "apply_patch", "fetch": "web_fetch", "webfetch": "web_fetch", "todo_write": "todo",
            "Bash": "shell", "Read": "read", "LS": "list", "Glob": "glob", "Grep": "grep", "Edit": "edit",
            "MultiEdit": "edit", "Write": "write", "WebFetch": "web_fetch", "WebSearch": "web_search",
            "TodoWrite": "todo", "Task": "task"}  # fmt: skip
_WORKING_DIRECTORIES = ("cwd", "workdir", "working_directory", "directory")
_IN_BACKGROUND = ("background", "run_in_background", "is_background")
_FALSE = frozenset({"false", "0", "no", "off"})


def canonical_tool(tool: str) -> str:
    """Returns the built-in name for an alias that other agents use, such as `bash` for `shell`."""
    return _ALIASES.get(tool, tool)


def tool_name(tool: str | DeclaredTool) -> str:
    return tool if isinstance(tool, str) else tool.name


def declaration_of(tool: str | DeclaredTool) -> ToolDeclaration:
    """Returns what the tool declares; for a name, what is known about the name."""
    return KNOWN_NAMES.get(canonical_tool(tool), UNKNOWN_TOOL) if isinstance(tool, str) else tool.declaration


def call_subjects(tool: str | DeclaredTool, arguments: Mapping[str, Any]) -> list[object]:
    """Returns the paths, the command or the URL that a call acts on. For a name, the parameters are spellings of one
    parameter, of which the first one counts."""
    found = [arguments[name] for name in declaration_of(tool).parameters if name in arguments]
    if isinstance(tool, str):
        return found[:1]
    listed = (cast("list[object]", value) if isinstance(value, list) else [value] for value in found)
    return [value for values in listed for value in values if value is not None]


def call_subject(tool: str | DeclaredTool, arguments: Mapping[str, Any]) -> object:
    """Returns the path, command or URL that a call acts on, or None. The first one, if there are several."""
    return next(iter(call_subjects(tool, arguments)), None)


def call_directory(arguments: Mapping[str, Any]) -> object:
    """Returns the working directory that a call requests, or None."""
    return next((arguments[name] for name in _WORKING_DIRECTORIES if arguments.get(name)), None)


def runs_in_background(arguments: Mapping[str, Any]) -> bool:
    """Returns whether a call starts a command that runs longer than the call. In doubt it does."""
    values = (arguments[name] for name in _IN_BACKGROUND if arguments.get(name))
    return any(str(value).strip().lower() not in _FALSE for value in values)
