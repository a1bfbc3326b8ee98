"""What the arguments of each built-in tool mean to the rules: which is a path, a command, an address."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

Kind = Literal["read", "write", "shell", "network", "talk", "delegate", "unknown"]


class ToolShape(Struct, frozen=True):
    """`subjects` are the names under which the argument that matters may come, best first."""

    kind: Kind
    subjects: tuple[str, ...] = ()
    op: str = "read"


_PATHS = ("file_path", "path", "filename", "file")
_FOLDERS = ("path", "directory", "dir", "cwd")
TOOLS: dict[str, ToolShape] = {
    "read": ToolShape("read", _PATHS),
    "list": ToolShape("read", _FOLDERS, "list"),
    "glob": ToolShape("read", _FOLDERS, "list"),
    "grep": ToolShape("read", _FOLDERS, "search"),
    "write": ToolShape("write", _PATHS, "write"),
    "edit": ToolShape("write", _PATHS, "edit"),
    "apply_patch": ToolShape("write", ("patch", "input", "diff"), "write"),
    "shell": ToolShape("shell", ("command", "cmd", "script")),
    "process": ToolShape("shell", ("command", "cmd")),
    "web_fetch": ToolShape("network", ("url", "address")),
    "web_search": ToolShape("network", ("url", "query")),
    "todo": ToolShape("talk"),
    "question": ToolShape("talk"),
    "finish": ToolShape("talk"),
    "skill": ToolShape("talk"),
    "task": ToolShape("delegate"),
    "call_agent": ToolShape("delegate"),
}
_ALIASES = {"bash": "shell", "sh": "shell", "execute": "shell", "ls": "list", "search": "grep", "multi_edit": "edit",
            "patch": "apply_patch", "fetch": "web_fetch", "webfetch": "web_fetch", "todo_write": "todo"}  # fmt: skip
_UNKNOWN = ToolShape("unknown")
_CWD = ("cwd", "workdir", "working_directory", "directory")


def canonical(tool: str) -> str:
    return _ALIASES.get(tool, tool)


def shape_of(tool: str) -> ToolShape:
    return TOOLS.get(canonical(tool), _UNKNOWN)


def subject_of(tool: str, arguments: Mapping[str, Any]) -> object:
    """The path, command or address that a call is about; None: it names none."""
    return next((arguments[name] for name in shape_of(tool).subjects if name in arguments), None)


def folder_of(arguments: Mapping[str, Any]) -> object:
    return next((arguments[name] for name in _CWD if arguments.get(name)), None)
