"""The table of modes: what each kind of action may do where no rule speaks."""

from typing import Literal, get_args

from outrider.permissions.decision import Effect, Mode

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
