"""The rights of each mode and the decision type.

`MODE_TABLE` gives the effect for each action in each mode; it applies when no rule matches the call.
"""

from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import force_setattr

from outrider.types.modes import APPROVAL_LEVELS, UNATTENDED_MODES, ApprovalLevel, Mode
from outrider.types.origins import DataFlow
from outrider.types.outcomes import Confinement
from outrider.types.tool_declaration import Effect


class Decision(Struct, frozen=True):
    """The decision about one call.

    - `effect`: whether the call is allowed, needs an approval or is denied.
    - `reason`: why; front ends show it, and the model reads it if the call is denied.
    - `rule`: the text of the rule that decided; None if the mode or a protected path decided.
    - `confinement`: how an allowed command runs; None for other tools and for calls that are not allowed.
    - `flow`: the data that the call could send, if the session has read untrusted text; an allowed command then runs
      without a network.
    - `invalid`: True if the call cannot run whatever the rights are, because its arguments are wrong.
    """

    effect: Effect
    reason: str
    rule: str | None = None
    confinement: Confinement | None = None
    flow: DataFlow | None = None
    invalid: bool = False

    def __post_init__(self) -> None:
        # A file name in the reason may contain surrogate escapes, which the store cannot encode as UTF-8.
        if not self.reason.isascii():
            force_setattr(self, "reason", self.reason.encode("utf-8", "backslashreplace").decode())


Action = Literal["talk", "read", "shell that reads", "write", "shell", "beyond", "protected", "delegate"]
"""The class of effect of a call; `beyond` is network access, a path outside the workspace or an unknown tool."""

_DENY_ALL: dict[Action, Effect] = {action: "deny" for action in get_args(Action)}
_ALLOW_READS: dict[Action, Effect] = {
    "talk": "allow",
    "read": "allow",
    "shell that reads": "allow",
    "delegate": "allow",
}
_ASK_BEYOND: dict[Action, Effect] = {"beyond": "ask", "protected": "ask"}
_ASK_CHANGES: dict[Action, Effect] = {"write": "ask", "shell": "ask"}
_ALLOW_CHANGES: dict[Action, Effect] = {"write": "allow", "shell": "allow"}


class ModeRights(Struct, frozen=True, kw_only=True):
    """The rights of a mode.

    - `effects`: the effect for each action of calls that no rule decides.
    - `tools`: which tools the mode offers at all.
    - `outcomes`: what happens to files that a sandboxed command changed.
    - `rank`: the order of modes; a called agent never has a mode of a higher rank than its caller.
    """

    effects: dict[Action, Effect]
    tools: Literal["none", "read-only", "all"]
    outcomes: Literal["drop", "ask", "commit"]
    rank: int


# Agent and background rank equal: they differ in who approves, not in what is possible.
MODE_TABLE: dict[Mode, ModeRights] = {
    "chat": ModeRights(effects=_DENY_ALL, tools="none", outcomes="drop", rank=0),
    "plan": ModeRights(
        effects={**_DENY_ALL, **_ALLOW_READS, **_ASK_BEYOND}, tools="read-only", outcomes="drop", rank=1
    ),
    "agent": ModeRights(
        effects={**_DENY_ALL, **_ALLOW_READS, **_ASK_BEYOND, **_ASK_CHANGES}, tools="all", outcomes="ask", rank=2
    ),
    "background": ModeRights(
        effects={**_DENY_ALL, **_ALLOW_READS, **_ALLOW_CHANGES}, tools="all", outcomes="commit", rank=2
    ),
}


def stricter_mode(caller: Mode, callee: Mode) -> Mode:
    """Returns the mode of a delegated run: the caller's mode, unless the callee's mode permits less.

    On a tie the caller's mode wins, so a background caller never starts to ask for approvals.
    """
    return min(caller, callee, key=lambda mode: MODE_TABLE[mode].rank)


def mode_asks(mode: Mode) -> bool:
    """Returns whether calls in this mode can wait for an approval."""
    return mode not in UNATTENDED_MODES


def stricter_level(level: ApprovalLevel, other_level: ApprovalLevel) -> ApprovalLevel:
    """Returns the level that requires more approvals."""
    return level if APPROVAL_LEVELS.index(level) <= APPROVAL_LEVELS.index(other_level) else other_level


def mode_offers(mode: Mode, action: Action, *, changes: bool = False) -> bool:
    """Returns whether the mode offers the action at all; an allow rule cannot add what a mode does not offer.

    `changes` is True for a call that changes files, inside or outside the workspace.
    """
    match MODE_TABLE[mode].tools:
        case "none":
            return False
        case "read-only":
            return action != "write" and not changes
        case "all":
            return True
