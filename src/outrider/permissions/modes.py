"""The table of modes: what each kind of action may do where no rule speaks."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import force_setattr

Effect = Literal["allow", "ask", "deny"]
Mode = Literal["chat", "plan", "agent", "background"]
MODES: tuple[str, ...] = get_args(Mode)


class Decision(Struct, frozen=True):
    """`rule` is the rule that decided, as it was written; None: the mode, or a protection that no rule lifts."""

    effect: Effect
    reason: str
    rule: str | None = None

    def __post_init__(self) -> None:
        # A path in the reason may hold bytes that are no text, and a decision is stored.
        if not self.reason.isascii():
            force_setattr(self, "reason", self.reason.encode("utf-8", "backslashreplace").decode())


Action = Literal["talk", "read", "shell that reads", "write", "shell", "beyond", "protected", "delegate"]
"""What a call amounts to; `beyond` is the network, a path outside or a tool that is not known."""

_NOTHING: dict[Action, Effect] = {action: "deny" for action in get_args(Action)}
_READING: dict[Action, Effect] = {"talk": "allow", "read": "allow", "shell that reads": "allow", "delegate": "allow"}
_ASKING: dict[Action, Effect] = {"beyond": "ask", "protected": "ask"}
_CHANGING: dict[Action, Effect] = {"write": "ask", "shell": "ask"}
_ALONE: dict[Action, Effect] = {"write": "allow", "shell": "allow"}

MODE_TABLE: dict[Mode, dict[Action, Effect]] = {
    "chat": _NOTHING,
    "plan": {**_NOTHING, **_READING, **_ASKING},
    "agent": {**_NOTHING, **_READING, **_ASKING, **_CHANGING},
    "background": {**_NOTHING, **_READING, **_ALONE},
}
_ALLOWS: dict[Mode, int] = {"chat": 0, "plan": 1, "agent": 2, "background": 2}
WHY: dict[Action, str] = {
    "talk": "it changes nothing outside the session",
    "read": "it reads inside the workspace",
    "shell that reads": "every command in it is proven to read only",
    "write": "it changes files of the workspace",
    "shell": "it is not proven to read only",
    "beyond": "it reaches beyond the workspace",
    "protected": "it touches a protected file",
    "delegate": "another agent works under the same rights",
}


def stricter(caller: Mode, callee: Mode) -> Mode:
    """The mode of work that one agent gives another: the caller's, unless the callee's allows less. Whether somebody is
    asked is the caller's matter: neither agent nor background mode allows less than the other."""
    return min(caller, callee, key=_ALLOWS.__getitem__)


def offered(mode: Mode, action: Action, *, changes: bool = False) -> bool:
    """Whether the mode has such tools at all; no rule brings back what a mode does not have. `changes` says of a call
    that it would change files, wherever they are."""
    match mode:
        case "chat":
            return False
        case "plan":
            return action != "write" and not changes
        case "agent" | "background":
            return True


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
